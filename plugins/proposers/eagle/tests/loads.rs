//! The built library, found by its config through the engine's loader, and in the engine itself on the shipped head.
#![forbid(unsafe_code)]

#[path = "../../same_text.rs"]
mod same_text;
mod support;

use std::path::{Path, PathBuf};

use foretoken::Engine;
use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, library};
use same_text::assert_same_text_in_fewer_passes;

fn config_file(name: &str) -> PathBuf {
    library("foretoken-eagle", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

fn assert_it_loads_and_conforms(name: &str, host: fn() -> FakeHost) {
    let config = config::load(&config_file(&format!("{name}.toml")), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), name);
    conformance::part(&loaded, &Fixture::new(&config.proposers[0].options).with_host(host)).assert_passed();
}

#[test]
fn their_configs_load_them_and_they_conform() {
    assert_it_loads_and_conforms("eagle", || support::eagle("../examples/models/tiny-eagle3"));
    assert_it_loads_and_conforms("mtp", || support::mtp("../examples/models/tiny-mtp"));
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    for (name, head) in [("eagle", "tiny-eagle3"), ("mtp", "tiny-mtp")] {
        let file = config_file(&format!("{name}.toml"));
        let options = [
            "tree = { nodes = 24, depth = 6, branch = 6 }",
            "num_speculative_tokens = 5",
            "num_speculative_tokens = 3, draft_sampling = \"deterministic\", dtype = \"q8_0\"",
            "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
        ];
        let options = options.map(|form| format!("model = \"../examples/models/{head}\", {form}"));
        assert_same_text_in_fewer_passes(&file, &options.each_ref().map(String::as_str));
    }
}

/// EAGLE-1's head, a chain and a tree.
#[test]
fn the_first_eagle_writes_the_same_text_too() {
    let options = ["num_speculative_tokens = 5", "tree = { nodes = 24, depth = 6, branch = 6 }"];
    let options = options.map(|form| format!("model = \"../examples/models/tiny-eagle\", {form}"));
    assert_same_text_in_fewer_passes(&config_file("eagle.toml"), &options.each_ref().map(String::as_str));
}

/// The shipped head with its vocabulary moved by one token.
fn shifted_head(folder: &Path) {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../examples/models/tiny-eagle3");
    std::fs::copy(shipped.join("config.json"), folder.join("config.json")).unwrap();
    let mut bytes = std::fs::read(shipped.join("model.safetensors")).unwrap();
    let header_len = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
    let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + header_len]).unwrap();
    let place = |index: usize| 8 + header_len + header["d2t"]["data_offsets"][index].as_u64().unwrap() as usize;
    let offsets = bytes[place(0)..place(1)].as_chunks_mut::<8>().0;
    // The last token of the head may be the target's last one.
    let last = offsets.len() - 1;
    for offset in &mut offsets[..last] {
        *offset = (i64::from_le_bytes(*offset) + 1).to_le_bytes();
    }
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
}

#[test]
fn a_head_that_guesses_near_chance_is_noticed_at_load() {
    let folder = tempfile::tempdir().unwrap();
    shifted_head(folder.path());
    let guesses = |model: &str| {
        let options: Override = format!("proposer.options={{ model = {model:?} }}").parse().unwrap();
        let engine = Engine::new(config::load(&config_file("eagle.toml"), &[options]).unwrap()).unwrap();
        assert!(engine.counters().is_empty(), "the look at load is no work of the run's");
        engine.first_guesses().to_vec()
    };
    let good = guesses("../examples/models/tiny-eagle3");
    println!("{good:?}");
    assert_eq!((good.len(), good[0].asked, good[0].is_near_chance()), (1, 16, false));
    let shifted = guesses(folder.path().to_str().unwrap());
    println!("{shifted:?}");
    assert!(shifted[0].is_near_chance() && shifted[0].asked == 16, "{shifted:?}");
}
