//! The built library, found by its config through the engine's loader, and in the engine itself.
#![forbid(unsafe_code)]

#[path = "../../same_text.rs"]
mod same_text;

use std::path::{Path, PathBuf};

use foretoken::config;
use foretoken::plugins::registry::Registry;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::library;
use foretoken_suffix::Suffix;
use same_text::assert_same_text_in_fewer_passes;

fn config_file(name: &str) -> PathBuf {
    library("foretoken-suffix", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn it_conforms() {
    for options in ["", "tree = true\nmax_spec_factor = 3.0\nnum_speculative_tokens = 9"] {
        conformance::proposer::<Suffix>(&Fixture::new(options)).assert_passed();
    }
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file("suffix.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "suffix");
    conformance::part(&loaded, &Fixture::new(&config.proposers[0].options)).assert_passed();
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    assert_same_text_in_fewer_passes(&config_file("suffix.toml"), &["", "tree = true"]);
}
