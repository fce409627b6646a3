//! The proposer on a toy: it conforms, and what it drafts does not depend on when it last drafted.
#![forbid(unsafe_code)]

mod support;

use foretoken_dflash::DFlash;
use foretoken_plugin_api::Proposer;
use foretoken_plugin_api::testkit::assert_a_pause_changes_no_draft;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};

const OPTIONS: [&str; 5] = [
    "num_speculative_tokens = 4",
    "draft_sampling = \"deterministic\"",
    "tree = { nodes = 9, depth = 40, branch = 3 }",
    "tree = { nodes = 3, depth = 1, branch = 50 }",
    "choices = [[0], [2], [0, 0], [0, 1], [2, 0], [0, 1, 0]]",
];

fn options(text: &str) -> String {
    format!("model = \"head\"\n{text}")
}

#[test]
fn it_conforms() {
    for text in OPTIONS {
        conformance::proposer::<DFlash>(&Fixture::new(&options(text)).with_host(|| support::host("head")))
            .assert_passed();
    }
}

#[test]
fn a_pause_changes_no_draft() {
    for text in OPTIONS {
        assert_a_pause_changes_no_draft::<DFlash>(|| support::host("head"), &options(text));
    }
}

#[test]
fn options_and_files_that_do_not_fit_are_refused() {
    let refusal = |text: &str| {
        let host = support::host("head").shared();
        let made = DFlash::new(toml::from_str(text).unwrap(), host.handle());
        made.err().map(|error| error.message).unwrap_or_default()
    };
    assert!(refusal("model = \"head\"\nnum_speculative_tokens = 0").contains("num_speculative_tokens is 0"));
    assert!(refusal("model = \"head\"\nnum_speculative_tokens = 6").contains("1 to 5"));
    assert!(refusal("model = \"head\"\nchoices = [[0], [0, 0], [0, 0, 0]]").is_empty());
    let deep: Vec<String> = (1..7).map(|len| format!("[{}]", vec!["0"; len].join(", "))).collect();
    let deep = refusal(&format!("model = \"head\"\nchoices = [{}]", deep.join(", ")));
    assert!(deep.contains("paths of 6 tokens"), "{deep}");
    assert!(refusal("model = \"head\"\ndtype = \"int3\"").contains("int3"));
    let missing = refusal("model = \"nowhere\"");
    assert!(missing.contains("nowhere"), "{missing}");
}
