//! What is drafted, for how long, from whose text; options.
#![forbid(unsafe_code)]

mod support;

use foretoken_plugin_api::testkit::ProposeInput;
use foretoken_plugin_api::{CommitBatch, CommitSequence, ErrorKind, Proposer, SeqId, Token};
use foretoken_suffix::Suffix;
use support::{drafted, drafts, proposer, tree};

#[test]
fn what_followed_most_often_is_drafted_and_the_latest_of_equals() {
    let mut suffix = proposer("max_spec_factor = 4.0").unwrap();
    assert_eq!(drafted(&mut suffix, 1, &[1, 2, 7, 1, 2, 7, 1, 2, 8, 1, 2], 1), [7]);
    assert_eq!(drafted(&mut suffix, 2, &[1, 2, 7, 1, 2, 8, 1, 2], 1), [8]);
    // The longer match is surer of itself than a shorter one that has seen both.
    assert_eq!(drafted(&mut suffix, 3, &[1, 2, 7, 9, 2, 8, 9, 2, 8, 1, 2], 1), [7]);
}

#[test]
fn a_draft_is_as_long_as_the_match_allows() {
    let text = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3];
    for (factor, expected) in [("1.0", &[4, 5, 6][..]), ("0.5", &[4]), ("1.5", &[4, 5, 6, 7]), ("0.1", &[])] {
        let mut suffix = proposer(&format!("max_spec_factor = {factor}")).unwrap();
        assert_eq!(drafted(&mut suffix, 1, &text, 9), expected, "{factor}");
    }
}

#[test]
fn a_draft_ends_where_it_is_unlikely() {
    // After `1 2` came five different tokens once each, with `6` behind the latest.
    let text: Vec<Token> = (10..15).flat_map(|token| [1, 2, token, 6, 7]).chain([1, 2]).collect();
    let draft = |least: &str| {
        let mut suffix = proposer(&format!("min_token_prob = {least}\nmax_spec_factor = 9.0")).unwrap();
        drafted(&mut suffix, 1, &text, 4)
    };
    assert_eq!(draft("0.2"), [14, 6, 7, 1]);
    assert!(draft("0.3").is_empty());
}

#[test]
fn a_draft_that_promises_little_is_left_to_the_next_proposer() {
    // Seen twice with two continuations, each half as likely: a draft of three hopes for 1.5.
    let text = [1, 2, 7, 9, 5, 1, 2, 8, 6, 4, 1, 2];
    let draft = |least: &str, budget| {
        let mut suffix = proposer(&format!("min_score = {least}\nmax_spec_factor = 1.5")).unwrap();
        drafted(&mut suffix, 1, &text, budget)
    };
    assert_eq!(draft("1.5", 9), [8, 6, 4]);
    assert!(draft("1.6", 9).is_empty());
    // No draft of one token can hope for more than 1, and this one is not sure of it.
    assert!(draft("1.5", 1).is_empty());
    let mut suffix = proposer("min_score = 3.0").unwrap();
    assert_eq!(drafted(&mut suffix, 1, &[5; 9], 2), [5, 5], "sure of all that the budget allows");
}

#[test]
fn a_loop_goes_on() {
    let mut suffix = proposer("").unwrap();
    assert_eq!(drafted(&mut suffix, 1, &[5; 9], 5), [5; 5]);
    assert_eq!(drafted(&mut suffix, 2, &[9, 1, 2, 3, 1, 2, 3, 1, 2, 3, 1, 2], 5), [3, 1, 2, 3, 1]);
}

#[test]
fn a_tree_branches_where_the_text_did() {
    let suffix = || proposer("tree = true\nmax_spec_factor = 4.0").unwrap();
    let text = [1, 2, 7, 3, 1, 2, 8, 4, 1, 2];
    assert_eq!(tree(&mut suffix(), &text, 4), [(None, 7), (None, 8), (Some(0), 3), (Some(1), 4)]);
    // A likely path goes deeper before an unlikely one is begun.
    let text = [1, 2, 7, 3, 1, 2, 7, 3, 1, 2, 8, 4, 1, 2];
    assert_eq!(tree(&mut suffix(), &text, 3), [(None, 7), (Some(0), 3), (Some(1), 1)]);
    assert!(suffix().needs().tree && !proposer("").unwrap().needs().tree);
}

#[test]
fn each_sequence_keeps_to_its_own_budget_and_text() {
    let mut suffix = proposer("num_speculative_tokens = 4").unwrap();
    let (threes, pairs) = ([3u32; 9], [1u32, 2, 1, 2, 1, 2, 1, 2]);
    let batch: [(u64, &[u32], u32); 4] = [(1, &threes, 0), (2, &pairs, 3), (3, &threes, 9), (4, &[], 5)];
    assert_eq!(drafts(&mut suffix, &batch), [vec![], vec![1, 2, 1], vec![3; 4], vec![]]);
}

/// A sequence with `prompt` writes `output` and finishes.
fn write(suffix: &mut Suffix, id: u64, prompt: &[Token], output: &[Token]) {
    let mut input = ProposeInput::new(id, &[prompt, &output[..1]].concat(), 1);
    input.output_index = 1;
    support::propose(suffix, &[input], false);
    let tokens = [prompt, output].concat();
    let batch = [CommitSequence::new(SeqId(id), 0, &[], &tokens, &[])];
    suffix.commit(&CommitBatch::new(&batch)).unwrap();
    suffix.finish(SeqId(id));
}

#[test]
fn what_one_sequence_wrote_another_one_is_drafted() {
    let mut suffix = proposer("").unwrap();
    write(&mut suffix, 1, &[50, 51, 52, 53], &[10, 11, 12, 13, 14, 15]);
    assert_eq!(drafted(&mut suffix, 2, &[7, 10, 11, 12], 9), [13, 14, 15], "up to the end of that output");
    assert!(drafted(&mut suffix, 3, &[7, 50, 51, 52], 9).is_empty(), "prompts are not shared");
    let mut alone = proposer("max_shared_mb = 0").unwrap();
    write(&mut alone, 1, &[50], &[10, 11, 12, 13, 14]);
    assert!(drafted(&mut alone, 2, &[7, 10, 11, 12], 9).is_empty());
}

#[test]
fn a_preempted_sequence_and_a_finished_one_start_again() {
    let mut suffix = proposer("max_shared_mb = 0").unwrap();
    let text = [1, 2, 3, 4, 1, 2, 3, 4, 1, 2];
    assert_eq!(drafted(&mut suffix, 1, &text, 3), [3, 4, 1]);
    assert_eq!(drafted(&mut suffix, 1, &text[..6], 3), [3, 4], "shorter: it came back from its first token");
    suffix.finish(SeqId(1));
    assert_eq!(drafted(&mut suffix, 1, &[9, 9, 1, 2, 7, 7, 1, 2], 3), [7, 7], "nothing of the old text is left");
}

#[test]
fn wrong_options_are_named_with_their_values() {
    for (options, words) in [
        ("num_speculative_tokens = 0", ["num_speculative_tokens is 0", "at least 1"]),
        ("max_spec_factor = 0.0", ["max_spec_factor is 0", "above 0"]),
        ("max_spec_factor = inf", ["max_spec_factor is inf", "above 0"]),
        ("min_token_prob = 1.5", ["min_token_prob is 1.5", "0 to 1"]),
        ("min_score = 16.0", ["min_score is 16", "less than num_speculative_tokens, 16"]),
        ("prompt_lookup_min = 3", ["unknown field `prompt_lookup_min`", "min_token_prob"]),
    ] {
        let error = proposer(options).err().unwrap_or_else(|| panic!("{options:?} was accepted"));
        assert_eq!(error.kind, ErrorKind::Options, "{error}");
        assert!(words.iter().all(|word| error.message.contains(word)), "{}", error.message);
    }
}
