//! The built library, found by its config through the engine's loader, and in the engine itself.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Completion, Engine, Request};
use foretoken_ngram::Ngram;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::library;

fn config_file(name: &str) -> PathBuf {
    library("foretoken-ngram", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn it_conforms() {
    for options in ["", "prompt_lookup_min = 1\nprompt_lookup_max = 3\nnum_speculative_tokens = 9"] {
        conformance::proposer::<Ngram>(&Fixture::new(options)).assert_passed();
    }
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file("ngram.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "ngram");
    conformance::part(&loaded, &Fixture::new(&config.proposers[0].options)).assert_passed();
}

/// Completions of prompts that repeat themselves, in order of submission.
fn completions(config: &str, overrides: &[&str]) -> Vec<Completion> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let config = config::load(&config_file(config), &overrides).unwrap();
    let mut sampling = config.sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos, sampling.seed) = (60, true, 11);
    let mut engine = Engine::new(config).unwrap();
    let requests = (0..4).map(|salt| Request {
        prompt: (0..24 + 5 * salt).map(|index| 40 + (index % 7) * (salt + 3)).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    assert!(engine.faults().all(|(_, faults, _)| faults == 0));
    done
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    for temperature in ["sampling.temperature=0.0", "sampling.temperature=0.8"] {
        let set = ["checks=true", "kv.num_slots=2048", temperature];
        let (plain, drafted) = (completions("plain.toml", &set), completions("ngram.toml", &set));
        assert_eq!((plain.len(), drafted.len()), (4, 4));
        for (plain, drafted) in plain.iter().zip(&drafted) {
            assert_eq!(plain.tokens(), drafted.tokens(), "{temperature}");
        }
        let steps = |all: &[Completion]| all.iter().map(|completion| completion.stats.steps).sum::<u64>();
        let accepted: u64 = drafted.iter().map(|completion| completion.stats.accepted).sum();
        println!("{temperature}: {} passes instead of {}, {accepted} kept", steps(&drafted), steps(&plain));
        assert!(accepted > 0 && steps(&drafted) < steps(&plain), "{temperature}");
    }
}
