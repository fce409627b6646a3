//! What the tree keeps, shares and gives up.

use foretoken_paged::{PagedOptions, Radix};
use foretoken_plugin_api::{ErrorKind, KvManager, SeqId, Token};

fn kv(num_slots: usize) -> Radix {
    Radix::with_slots(&PagedOptions { block_size: 4 }, num_slots).unwrap()
}

/// Admits `tokens` and computes all but the last; how many were there already.
fn run(kv: &mut Radix, id: u64, tokens: &[Token]) -> usize {
    let id = SeqId(id);
    let cached = kv.admit(id, tokens).unwrap();
    append(kv, id, &tokens[cached..tokens.len() - 1]);
    kv.check().unwrap();
    cached
}

fn append(kv: &mut Radix, id: SeqId, tokens: &[Token]) {
    if tokens.is_empty() {
        return;
    }
    kv.reserve(id, tokens.len()).unwrap();
    let keep: Vec<u32> = (0..tokens.len() as u32).collect();
    kv.commit(id, &keep, tokens).unwrap();
}

#[test]
fn a_prefix_is_shared_token_by_token_while_it_is_held_and_after() {
    let mut kv = kv(64);
    let text: Vec<Token> = (10..30).collect();
    assert_eq!(run(&mut kv, 1, &text), 0);
    assert_eq!(run(&mut kv, 2, &[&text[..7], &[99, 98, 97]].concat()), 7, "of a sequence that runs");
    assert_eq!(kv.slots(SeqId(1))[..7], kv.slots(SeqId(2))[..7]);
    kv.free(SeqId(1));
    assert_eq!(kv.stats().cached, 19 - 7);
    assert_eq!(run(&mut kv, 3, &text), 19, "all but the last token, which is to be computed");
    [2, 3].into_iter().for_each(|id| kv.free(SeqId(id)));
    assert_eq!((kv.stats().cached, kv.stats().held), (19 + 2, 0));
    kv.check().unwrap();
}

#[test]
fn what_was_not_used_for_longest_is_given_up_first_and_only_as_much_as_is_needed() {
    let mut kv = kv(32);
    let texts: Vec<Vec<Token>> =
        (0..3).map(|text| (0..11).map(|at| if at == 0 { 1 } else { 50 * text + at }).collect()).collect();
    (0..3).for_each(|id| assert_eq!(run(&mut kv, id, &texts[id as usize]), u32::from(id > 0) as usize));
    [0, 2, 1].into_iter().for_each(|id| kv.free(SeqId(id)));
    assert_eq!((kv.stats().free, kv.stats().cached), (4, 28));
    append_new(&mut kv, 9, 10);
    let found = |kv: &mut Radix, text: usize| {
        let cached = kv.admit(SeqId(70), &texts[text]).unwrap();
        kv.free(SeqId(70));
        cached
    };
    assert_eq!([found(&mut kv, 0), found(&mut kv, 2), found(&mut kv, 1)], [4, 10, 10], "six of the oldest text's end");
    kv.check().unwrap();
}

fn append_new(kv: &mut Radix, id: u64, count: usize) {
    kv.admit(SeqId(id), &[0]).unwrap();
    let tokens: Vec<Token> = (1000..1000 + count as Token).collect();
    append(kv, SeqId(id), &tokens);
}

#[test]
fn what_two_compute_side_by_side_is_kept_once() {
    let mut kv = kv(64);
    let text: Vec<Token> = (10..20).collect();
    [1, 2].into_iter().for_each(|id| assert_eq!(kv.admit(SeqId(id), &text).unwrap(), 0));
    [1, 2].into_iter().for_each(|id| append(&mut kv, SeqId(id), &text[..9]));
    append(&mut kv, SeqId(2), &[77]);
    kv.check().unwrap();
    [1, 2].into_iter().for_each(|id| kv.free(SeqId(id)));
    assert_eq!(kv.stats().cached, 9);
    assert_eq!(run(&mut kv, 3, &text), 9);
}

#[test]
fn slots_that_sequences_hold_are_never_given_up() {
    let mut kv = kv(20);
    assert_eq!(run(&mut kv, 1, &(0..11).collect::<Vec<_>>()), 0);
    kv.fork(SeqId(1), SeqId(2)).unwrap();
    let error = kv.reserve(SeqId(2), 11).unwrap_err();
    assert_eq!(error.kind, ErrorKind::OutOfSlots);
    kv.reserve(SeqId(2), 10).unwrap();
    kv.rollback(SeqId(2));
    kv.free(SeqId(1));
    assert_eq!((kv.stats().held, kv.stats().cached), (10, 0), "the fork holds them");
    kv.free(SeqId(2));
    kv.admit(SeqId(3), &[500]).unwrap();
    kv.reserve(SeqId(3), 20).unwrap();
    assert_eq!(kv.stats().cached, 0);
    kv.check().unwrap();
}
