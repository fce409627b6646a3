//! The proposer on a toy: it conforms, and what it drafts does not depend on when it last drafted.
#![forbid(unsafe_code)]

mod support;

use foretoken_eagle::Eagle;
use foretoken_plugin_api::Proposer;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{RecordedDraft, Runner};
use foretoken_plugin_api::{SamplingParams, SeqId, Token};

const OPTIONS: [&str; 5] = [
    "num_speculative_tokens = 4",
    "num_speculative_tokens = 4\ndraft_sampling = \"deterministic\"",
    "tree = { nodes = 9, depth = 4, branch = 3 }",
    "tree = { nodes = 3, depth = 1, branch = 5 }",
    "choices = [[0], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0]]",
];

fn options(text: &str) -> String {
    format!("model = \"head\"\n{text}")
}

#[test]
fn it_conforms() {
    for text in OPTIONS {
        conformance::proposer::<Eagle>(&Fixture::new(&options(text)).with_host(|| support::host("head")))
            .assert_passed();
    }
}

/// The drafts of three sequences after 12 steps, in which the proposer was asked where `is_asked` says so.
fn drafts(text: &str, sampling: SamplingParams, is_asked: fn(usize) -> bool) -> Vec<RecordedDraft> {
    let host = support::host("head").shared();
    let mut part = Eagle::new(toml::from_str(&options(text)).unwrap(), host.handle()).unwrap();
    let mut runner = Runner::new(&host, &mut part, 512).unwrap().with_sampling(sampling);
    let ids = [SeqId(1), SeqId(2), SeqId(3)];
    for id in ids {
        let prompt: Vec<Token> =
            (0..3 + 4 * id.0).map(|index| ((index * 5 + id.0) % support::VOCAB as u64) as Token).collect();
        runner.admit(&mut part, id, &prompt, 4).unwrap();
    }
    for step in 0..12 {
        let budget = if is_asked(step) { 1 } else { 0 };
        runner.step(&mut part, &ids, budget).unwrap();
    }
    // Kept drafts made some texts longer; the toy's text is the same whatever was drafted.
    for id in ids {
        while runner.tokens(id).len() < 60 {
            runner.step(&mut part, &[id], 0).unwrap();
        }
    }
    runner.propose(&mut part, &ids, 9).unwrap().into_drafts()
}

#[test]
fn a_pause_changes_no_draft() {
    for text in OPTIONS {
        for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
            let paused = drafts(text, sampling, |_| false);
            assert!(paused.iter().all(|draft| !draft.tokens().is_empty()), "{text}");
            assert_eq!(drafts(text, sampling, |_| true), paused, "{text}: asked at every step");
            assert_eq!(drafts(text, sampling, |step| step % 3 == 0), paused, "{text}: asked at every third step");
        }
    }
}

#[test]
fn options_and_files_that_do_not_fit_are_refused() {
    let refusal = |text: &str| {
        let host = support::host("head").shared();
        let made = Eagle::new(toml::from_str(text).unwrap(), host.handle());
        made.err().map(|error| error.message).unwrap_or_default()
    };
    assert!(refusal("model = \"head\"\nnum_speculative_tokens = 0").contains("num_speculative_tokens is 0"));
    assert!(refusal("model = \"head\"\ntree = { nodes = 4, depth = 0 }").contains("above 0"));
    assert!(refusal("model = \"head\"\ndtype = \"int3\"").contains("int3"));
    let missing = refusal("model = \"nowhere\"");
    assert!(missing.contains("nowhere"), "{missing}");
}
