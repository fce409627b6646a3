//! The built library, found by its config through the engine's loader, and in the engine itself on the shipped head.
#![forbid(unsafe_code)]

mod support;

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Completion, Engine, Request};
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::library;

fn config_file(name: &str) -> PathBuf {
    library("foretoken-eagle", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file("eagle.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "eagle");
    let host = || support::eagle("../examples/models/tiny-eagle3");
    conformance::part(&loaded, &Fixture::new(&config.proposers[0].options).with_host(host)).assert_passed();
}

/// Completions of four prompts, two of each, in order.
fn completions(config: &str, overrides: &[&str]) -> Vec<Completion> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let mut engine = Engine::new(config::load(&config_file(config), &overrides).unwrap()).unwrap();
    let mut sampling = engine.config().sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos, sampling.seed, sampling.n) = (60, true, 11, 2);
    let requests = (0..4).map(|salt| Request {
        prompt: (0..24 + 5 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    let faults: Vec<_> = engine.faults().filter_map(|(_, _, last)| last).collect();
    assert!(faults.is_empty(), "{faults:?}");
    done
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    for temperature in ["sampling.temperature=0.0", "sampling.temperature=0.8"] {
        let set = ["checks=true", "kv.num_slots=4096", temperature];
        let plain = completions("plain.toml", &set);
        for form in [
            "tree = { nodes = 24, depth = 6, branch = 6 }",
            "num_speculative_tokens = 5",
            "num_speculative_tokens = 3, draft_sampling = \"deterministic\", dtype = \"q8_0\"",
            "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
        ] {
            let options = format!("proposer.options={{ model = \"../examples/models/tiny-eagle3\", {form} }}");
            let drafted = completions("eagle.toml", &[set[0], set[1], set[2], &options]);
            assert_eq!((plain.len(), drafted.len()), (8, 8));
            for (plain, drafted) in plain.iter().zip(&drafted) {
                assert_eq!(plain.tokens(), drafted.tokens(), "{temperature} {form}");
            }
            let steps = |all: &[Completion]| all.iter().map(|completion| completion.stats.steps).sum::<u64>();
            println!("{temperature} {form}: {} steps for {}", steps(&drafted), steps(&plain));
            assert!(steps(&drafted) < steps(&plain), "{temperature} {form}");
        }
    }
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
