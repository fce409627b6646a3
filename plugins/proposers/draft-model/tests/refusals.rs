//! What is refused, and what the refusal says.
#![forbid(unsafe_code)]

use foretoken_draft_model::{DraftModel, DraftModelOptions, KvStrategy};
use foretoken_plugin_api::DraftSampling;
use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
use foretoken_plugin_api::{ErrorKind, LaneSource, Proposer, Result};

fn options(text: &str) -> Result<DraftModelOptions, toml::de::Error> {
    toml::from_str(text)
}

fn host() -> FakeHost {
    FakeHost::new(ToyModel::new(16, 1))
        .with_model("small", ToyModel::new(16, 2))
        .with_model("odd", ToyModel::new(24, 2))
}

fn refusal(host: FakeHost, text: &str) -> (ErrorKind, String) {
    let error = DraftModel::new(options(text).unwrap(), host.shared().handle()).err().expect("a refusal");
    (error.kind, error.message)
}

#[test]
fn another_vocabulary_is_refused_with_both_sizes() {
    let (kind, message) = refusal(host(), "model = \"odd\"");
    assert_eq!(kind, ErrorKind::Refused);
    assert!(["odd", "24", "toy", "16", "vocabulary size"].iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn another_tokenizer_is_refused_with_both_digests() {
    let host = host().with_facts(|facts| facts.tokenizer_digest = "abcd".to_owned());
    let (kind, message) = refusal(host, "model = \"small\"");
    assert_eq!(kind, ErrorKind::Refused);
    assert!(["small", "toy-16", "abcd", "tokenizer"].iter().all(|word| message.contains(word)), "{message}");
}

#[test]
fn a_missing_model_and_an_empty_draft_are_errors() {
    let (_, message) = refusal(host(), "model = \"none\"");
    assert!(message.contains("\"none\""), "{message}");
    let (kind, message) = refusal(host(), "model = \"small\"\nnum_speculative_tokens = 0");
    assert_eq!(kind, ErrorKind::Options);
    assert!(message.contains("num_speculative_tokens is 0"), "{message}");
}

#[test]
fn one_model_drafts_and_it_is_named_once() {
    for (text, words) in [
        ("", ["neither model", "quantize"]),
        ("model = \"small\"\nquantize = \"q4\"", ["both given", "expected one"]),
        ("quantize = \"q8_0\"\ndtype = \"bf16\"", ["dtype = \"bf16\"", "quantize"]),
        ("model = \"small\"\nmin_draft_prob = 1.5", ["min_draft_prob is 1.5", "0 to 1"]),
    ] {
        let (kind, message) = refusal(host(), text);
        assert_eq!(kind, ErrorKind::Options);
        assert!(words.iter().all(|word| message.contains(word)), "{message}");
    }
}

#[test]
fn options_have_defaults_and_unknown_ones_are_named() {
    let defaults = options("model = \"small\"").unwrap();
    assert_eq!(defaults.num_speculative_tokens, 5);
    assert_eq!((defaults.kv_strategy, defaults.draft_sampling), (KvStrategy::KeepAndRollback, DraftSampling::Drawn));
    for (text, word) in [
        ("model = \"small\"\nkv = 1", "unknown field `kv`"),
        ("model = \"small\"\nkv_strategy = \"keep\"", "keep_and_rollback"),
        ("model = \"small\"\ndraft_sampling = \"greedy\"", "deterministic"),
    ] {
        let message = options(text).unwrap_err().to_string();
        assert!(message.contains(word), "{message}");
    }
}

#[test]
fn needs_name_the_lane_and_its_scratch() {
    let needs = |text, max_sequences| {
        let host = host().with_facts(|facts| facts.max_sequences = max_sequences).shared();
        DraftModel::new(options(text).unwrap(), host.handle()).unwrap().needs()
    };
    let drawn = needs("model = \"small\"\nnum_speculative_tokens = 3", 8);
    assert!(drawn.draws && !drawn.tree);
    assert_eq!((drawn.max_draft, drawn.lanes.len()), (3, 1));
    let lane = &drawn.lanes[0];
    assert_eq!((lane.name.as_str(), lane.bytes_per_slot, lane.scratch_rows), ("draft-kv", 4, 8 * 3));
    assert_eq!(lane.source, LaneSource::Plugin);
    assert!(!needs("model = \"small\"\ndraft_sampling = \"deterministic\"", 8).draws);
    assert_eq!(needs("model = \"small\"", 0).lanes[0].scratch_rows, 64 * 5, "unknown: room for 64 sequences");
    assert_eq!(needs("model = \"small\"", 500).lanes[0].scratch_rows, 64 * 5);
}

#[test]
fn a_lane_without_scratch_rows_is_an_error_and_no_panic() {
    use foretoken_plugin_api::testkit::{DrawNoise, ProposeInput, RecordingDrafts, SinkRules, SinkSequence};
    let host = host().shared();
    let mut proposer = DraftModel::new(options("model = \"small\"").unwrap(), host.handle()).unwrap();
    let input = ProposeInput::new(1, &[1, 2, 3], 5);
    let rules = SinkRules { vocab_size: 16, tree: false, noise: DrawNoise::ByOutput };
    let mut sink = RecordingDrafts::new(rules, vec![SinkSequence::of(&input.view())]);
    let error = foretoken_plugin_api::testkit::with_propose_batch(&[input], |batch| {
        proposer.propose(&batch, &mut foretoken_plugin_api::Drafts::new(&mut sink))
    });
    assert!(error.unwrap_err().message.contains("no 40 scratch rows"));
}
