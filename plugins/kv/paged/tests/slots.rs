//! What the model test cannot see: where slots come from, and what errors say.

use foretoken_paged::{Paged, PagedOptions};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
use foretoken_plugin_api::{ErrorKind, KvFacts, KvManager, Result, SeqId, Slot};

const A: SeqId = SeqId(1);
const B: SeqId = SeqId(2);

fn kv(num_slots: usize, block_size: u32) -> Paged {
    let host = FakeHost::new(ToyModel::new(16, 1)).shared().handle();
    let mut kv = Paged::new(PagedOptions { block_size }, KvFacts { num_slots }, host).unwrap();
    kv.admit(A, &[1]).unwrap();
    kv.admit(B, &[1]).unwrap();
    kv
}

fn append(kv: &mut Paged, sequence: SeqId, count: usize) {
    kv.reserve(sequence, count).unwrap();
    let keep: Vec<_> = (0..count as u32).collect();
    kv.commit(sequence, &keep, &vec![0; count]).unwrap();
}

fn slots(kv: &Paged, sequence: SeqId) -> Vec<u32> {
    kv.slots(sequence).iter().map(|slot| slot.0).collect()
}

#[test]
fn sequences_that_grow_side_by_side_stay_in_blocks_of_their_own() {
    let mut kv = kv(16, 4);
    for _ in 0..6 {
        append(&mut kv, A, 1);
        append(&mut kv, B, 1);
    }
    assert_eq!(slots(&kv, A), [0, 1, 2, 3, 8, 9]);
    assert_eq!(slots(&kv, B), [4, 5, 6, 7, 12, 13]);
}

#[test]
fn the_last_slot_can_be_had_from_anothers_block() {
    let mut kv = kv(8, 4);
    append(&mut kv, A, 1);
    append(&mut kv, B, 7);
    assert_eq!((kv.stats().free, kv.stats().held), (0, 8));
    let refused = kv.reserve(A, 1).unwrap_err();
    assert_eq!((refused.kind, refused.message.as_str()), (ErrorKind::OutOfSlots, "out of KV slots: 1 needed, 0 free"));
}

#[test]
fn a_refused_reservation_changes_nothing() {
    let mut kv = kv(8, 4);
    append(&mut kv, A, 3);
    let before = (slots(&kv, A), kv.stats());
    assert_eq!(kv.reserve(A, 6).unwrap_err().kind, ErrorKind::OutOfSlots);
    assert_eq!((slots(&kv, A), kv.stats()), before);
    kv.reserve(A, 5).unwrap();
}

#[test]
fn rejected_slots_are_the_next_to_be_used() {
    let mut kv = kv(32, 4);
    append(&mut kv, A, 2);
    kv.reserve(A, 5).unwrap();
    assert_eq!(slots(&kv, A), [0, 1, 2, 3, 4, 5, 6]);
    kv.commit(A, &[1, 3], &[0; 2]).unwrap();
    assert_eq!(slots(&kv, A), [0, 1, 3, 5]);
    kv.reserve(A, 4).unwrap();
    assert_eq!(slots(&kv, A)[4..], [2, 4, 6, 7], "the hole first, then the tail, then nothing of a new block");
    kv.rollback(A);
    kv.reserve(A, 4).unwrap();
    assert_eq!(slots(&kv, A)[4..], [2, 4, 6, 7]);
}

#[test]
fn a_fork_shares_what_is_committed_and_outlives_its_parent() {
    let mut kv = kv(16, 4);
    append(&mut kv, A, 5);
    kv.reserve(A, 2).unwrap();
    let child = SeqId(3);
    kv.fork(A, child).unwrap();
    assert_eq!(kv.slots(child), &kv.slots(A)[..5]);
    assert_eq!(kv.stats().held, 7);
    kv.free(A);
    assert_eq!(kv.stats().held, 5);
    append(&mut kv, child, 1);
    kv.check().unwrap();
    kv.free(child);
    assert_eq!(kv.stats().free, 16);
}

#[test]
fn unknown_sequences_are_errors_where_work_was_asked_for_and_nothing_where_not() {
    let mut kv = kv(8, 4);
    let nobody = SeqId(99);
    let calls: [(&str, Result<()>); 4] = [
        ("reserve", kv.reserve(nobody, 1)),
        ("commit", kv.commit(nobody, &[0], &[0])),
        ("fork", kv.fork(nobody, SeqId(5))),
        ("already there", kv.admit(A, &[]).map(drop)),
    ];
    for (word, result) in calls {
        let error = result.unwrap_err();
        assert!(error.message.contains(word), "{error}");
    }
    kv.rollback(nobody);
    kv.free(nobody);
    assert_eq!(kv.slots(nobody), &[] as &[Slot]);
    kv.free(A);
    kv.free(A);
    kv.check().unwrap();
}

#[test]
fn a_wrong_commit_is_refused_and_changes_nothing() {
    let mut kv = kv(8, 4);
    assert!(kv.commit(A, &[], &[]).unwrap_err().message.contains("nothing is reserved"));
    kv.reserve(A, 3).unwrap();
    for keep in [&[3][..], &[1, 1], &[2, 0]] {
        let error = kv.commit(A, keep, &vec![0; keep.len()]).unwrap_err();
        assert!(error.message.contains("below the 3 reserved slots"), "{error}");
    }
    assert!(kv.commit(A, &[0], &[]).unwrap_err().message.contains("keeps 1 slots but names 0 tokens"));
    assert_eq!((slots(&kv, A).len(), kv.stats().held), (3, 3));
}

#[test]
fn options_and_facts_are_checked() {
    let make = |block_size, num_slots| Paged::with_slots(&PagedOptions { block_size }, num_slots).err();
    assert!(make(0, 8).is_some_and(|error| error.kind == ErrorKind::Options && error.message.contains("block_size")));
    assert!(make(16, 0).is_some_and(|error| error.kind == ErrorKind::Refused));
    assert!(make(16, usize::MAX).is_some_and(|error| error.kind == ErrorKind::Refused));
    assert!(make(1, 1).is_none() && make(u32::MAX - 1, 1).is_none());
}
