//! The built library, found by its config through the engine's loader, and in the engine itself on the shipped heads.
#![forbid(unsafe_code)]

#[path = "../../same_text.rs"]
mod same_text;

use std::path::{Path, PathBuf};

use foretoken::config;
use foretoken::plugins::registry::Registry;
use foretoken_plugin_api::testkit::library;
use same_text::assert_same_text_in_fewer_passes;

fn config_file(name: &str) -> PathBuf {
    library("foretoken-medusa", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn the_config_loads_it() {
    let config = config::load(&config_file("medusa.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "medusa");
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    let options = [
        "tree = { nodes = 32, depth = 4, branch = 8 }",
        "draft_sampling = \"drawn\"",
        "num_speculative_tokens = 2, draft_sampling = \"deterministic\", dtype = \"q8_0\"",
        "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
    ];
    let options = options.map(|form| format!("model = \"../examples/models/tiny-medusa\", {form}"));
    assert_same_text_in_fewer_passes(&config_file("medusa.toml"), &options.each_ref().map(String::as_str));
}
