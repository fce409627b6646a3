//! Options, budgets, loops, and sequences that come and go.
#![forbid(unsafe_code)]

mod support;

use foretoken_plugin_api::{ErrorKind, Proposer, SeqId};
use support::{drafted, drafts, proposer};

#[test]
fn what_followed_the_latest_occurrence_of_the_longest_suffix_is_drafted() {
    let mut ngram = proposer("").unwrap();
    // `1 2 3` occurred once, `2 3` later again: the longer match wins over the later one.
    assert_eq!(drafted(&mut ngram, 1, &[1, 2, 3, 7, 8, 9, 2, 3, 5, 1, 2, 3], 3), [7, 8, 9]);
    // Of two equally long matches the later one wins.
    assert_eq!(drafted(&mut ngram, 2, &[1, 2, 7, 1, 2, 8, 9, 1, 2], 2), [8, 9]);
    // A single token in common is not enough by default.
    assert!(drafted(&mut ngram, 3, &[1, 2, 3, 1], 3).is_empty());
}

#[test]
fn a_loop_goes_on() {
    let mut ngram = proposer("").unwrap();
    assert_eq!(drafted(&mut ngram, 1, &[5, 5, 5], 5), [5; 5]);
    assert_eq!(drafted(&mut ngram, 2, &[9, 1, 2, 3, 1, 2, 3, 1, 2], 5), [3, 1, 2, 3, 1]);
}

#[test]
fn each_sequence_keeps_to_its_own_budget_and_text() {
    let mut ngram = proposer("num_speculative_tokens = 4").unwrap();
    let (threes, pairs) = ([3u32; 9], [1u32, 2, 1, 2, 1, 2]);
    let batch: [(u64, &[u32], u32); 4] = [(1, &threes, 0), (2, &pairs, 3), (3, &threes, 9), (4, &[], 5)];
    assert_eq!(drafts(&mut ngram, &batch), [vec![], vec![1, 2, 1], vec![3; 4], vec![]]);
}

#[test]
fn a_preempted_sequence_and_a_finished_one_start_again() {
    let mut ngram = proposer("").unwrap();
    let text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2];
    assert_eq!(drafted(&mut ngram, 1, &text, 3), [3, 4, 1]);
    assert_eq!(drafted(&mut ngram, 1, &text[..6], 3), [3, 4, 1], "shorter: it came back from its first token");
    ngram.finish(SeqId(1));
    assert_eq!(drafted(&mut ngram, 1, &[9, 9, 1, 2, 7, 7, 1, 2], 3), [7, 7, 1], "nothing of the old text is left");
}

#[test]
fn one_of_the_two_lookup_options_stands_for_both() {
    let twice_1 = [1, 4, 5, 6, 1];
    assert_eq!(drafted(&mut proposer("prompt_lookup_max = 1").unwrap(), 1, &twice_1, 1), [4]);
    assert_eq!(drafted(&mut proposer("prompt_lookup_min = 1").unwrap(), 1, &twice_1, 1), [4]);
    // Both are 3 here, so two tokens in common are too few.
    let twice_12 = [1, 2, 5, 6, 1, 2];
    assert!(drafted(&mut proposer("prompt_lookup_max = 3").unwrap(), 1, &twice_12, 1).is_empty());
    assert_eq!(drafted(&mut proposer("").unwrap(), 1, &twice_12, 1), [5]);
}

#[test]
fn wrong_options_are_named_with_their_values() {
    let refusal = |options: &str| {
        let error = proposer(options).err().unwrap_or_else(|| panic!("{options:?} was accepted"));
        assert_eq!(error.kind, ErrorKind::Options, "{error}");
        error.message
    };
    for (options, words) in [
        ("prompt_lookup_min = 4\nprompt_lookup_max = 3", ["prompt_lookup_min = 4", "prompt_lookup_max = 3"]),
        ("prompt_lookup_min = 0\nprompt_lookup_max = 3", ["prompt_lookup_min = 0", "1 <= min <= max"]),
        ("prompt_lookup_max = 0", ["prompt_lookup_max = 0", "1 <= min <= max"]),
        ("num_speculative_tokens = 0", ["num_speculative_tokens is 0", "at least 1"]),
        ("prompt_lookup = 3", ["unknown field `prompt_lookup`", "prompt_lookup_min"]),
    ] {
        let message = refusal(options);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}
