//! The proposers on a toy: they conform, and what they draft does not depend on when they last drafted.
#![forbid(unsafe_code)]

mod support;

use foretoken_eagle::{Eagle, Mtp};
use foretoken_plugin_api::Proposer;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, assert_a_pause_changes_no_draft};

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
fn they_conform() {
    for text in OPTIONS {
        let fixture = |host: fn(&str) -> FakeHost| Fixture::new(&options(text)).with_host(move || host("head"));
        conformance::proposer::<Eagle>(&fixture(support::eagle)).assert_passed();
        conformance::proposer::<Mtp>(&fixture(support::mtp)).assert_passed();
    }
}

#[test]
fn a_pause_changes_no_draft() {
    for text in OPTIONS {
        assert_a_pause_changes_no_draft::<Eagle>(|| support::eagle("head"), &options(text));
        assert_a_pause_changes_no_draft::<Mtp>(|| support::mtp("head"), &options(text));
    }
}

#[test]
fn options_and_files_that_do_not_fit_are_refused() {
    let refusal = |text: &str| {
        let host = support::eagle("head").shared();
        let made = Eagle::new(toml::from_str(text).unwrap(), host.handle());
        made.err().map(|error| error.message).unwrap_or_default()
    };
    assert!(refusal("model = \"head\"\nnum_speculative_tokens = 0").contains("num_speculative_tokens is 0"));
    assert!(refusal("model = \"head\"\ntree = { nodes = 4, depth = 0 }").contains("above 0"));
    assert!(refusal("model = \"head\"\ndtype = \"int3\"").contains("int3"));
    let missing = refusal("model = \"nowhere\"");
    assert!(missing.contains("nowhere"), "{missing}");
}
