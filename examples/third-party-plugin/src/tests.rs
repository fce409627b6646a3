//! The part's own tests: the conformance suite, and the two things the suite cannot know, what it learns and from whom.

use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, Runner, ToyModel};
use foretoken_plugin_api::{ErrorKind, Proposer, SeqId};

use super::table::BigramTable;
use super::{Bigram, Options};

#[test]
fn conforms() {
    conformance::proposer::<Bigram>(&Fixture::new("")).assert_passed();
    conformance::proposer::<Bigram>(&Fixture::new("num_speculative_tokens = 7\nmin_count = 1")).assert_passed();
}

#[test]
fn the_most_frequent_successor_wins_and_must_be_frequent_enough() {
    let mut table = BigramTable::default();
    table.learn(&[1, 2, 1, 3, 1, 3]);
    assert_eq!((table.successor(1, 2), table.successor(1, 3)), (Some(3), None));
    assert_eq!((table.successor(2, 1), table.successor(9, 0)), (Some(1), None));
}

#[test]
fn a_second_request_gains_from_the_first() {
    // A toy that looks one token back is a bigram model: once its cycle has been seen, every guess is right.
    let host = FakeHost::new(ToyModel::new(16, 3).with_order(1)).shared();
    let mut part = Bigram::new(Options { num_speculative_tokens: 4, min_count: 1 }, host.handle()).unwrap();
    let mut runner = Runner::new(&host, &mut part, 256).unwrap();
    runner.admit(&mut part, SeqId(1), &[5], 1).unwrap();
    (0..20).for_each(|_| drop(runner.step(&mut part, &[SeqId(1)], 4).unwrap()));
    runner.finish(&mut part, SeqId(1)).unwrap();

    runner.admit(&mut part, SeqId(2), &[5], 1).unwrap();
    let before = runner.tokens(SeqId(2)).len();
    runner.step(&mut part, &[SeqId(2)], 4).unwrap();
    assert_eq!(runner.tokens(SeqId(2)).len() - before, 5, "four kept guesses and the next token");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let host = FakeHost::new(ToyModel::new(16, 3)).shared();
    let options = Options { num_speculative_tokens: 0, ..Options::default() };
    assert_eq!(Bigram::new(options, host.handle()).err().unwrap().kind, ErrorKind::Options);
}
