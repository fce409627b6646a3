//! The built library, found by its config through the engine's loader, and in the engine itself.

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Engine, FinishReason, Request};
use foretoken_plugin_api::ErrorKind;
use foretoken_plugin_api::abi::sampler::LoadedSampler;
use foretoken_plugin_api::testkit::conformance::{Fixture, part};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel, library};

fn config_file(name: &str) -> PathBuf {
    library("foretoken-rejection", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("../../../configs/{name}.toml"))
}

#[test]
fn the_configs_load_both_parts_and_they_conform() {
    for name in ["rejection", "block"] {
        let config = config::load(&config_file(name), &[]).unwrap();
        let loaded = Registry::new(config.plugins).find(&config.sampler).unwrap();
        assert_eq!(loaded.name(), name);
        part(&loaded, &Fixture::new(&config.sampler.options)).assert_passed();
    }
}

#[test]
fn an_option_is_refused_by_name() {
    let config = config::load(&config_file("rejection"), &[]).unwrap();
    let make = Registry::new(config.plugins).find(&config.sampler).unwrap().sampler().unwrap();
    let host = FakeHost::new(ToyModel::new(16, 1)).shared().handle();
    let error = LoadedSampler::new(make, "noise = 1", &host).err().expect("there are no options");
    assert!(error.kind == ErrorKind::Options && error.message.contains("noise"), "{error}");
}

/// Completions of several prompts under `file`, in order of submission.
fn completions(file: &Path, overrides: &[&str]) -> Vec<Vec<u32>> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let config = config::load(file, &overrides).unwrap();
    let mut sampling = config.sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos) = (100, true);
    let mut engine = Engine::new(config).unwrap();
    let requests = (0..4).map(|salt| Request {
        prompt: (0..12 + 5 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    assert!(done.iter().all(|completion| completion.reason == FinishReason::Length));
    done.iter().map(|completion| completion.tokens().to_vec()).collect()
}

#[test]
fn sampled_text_is_reproducible_and_greedy_text_is_that_of_plain_decoding() {
    let plain = completions(&config_file("plain"), &["checks=true"]);
    for name in ["rejection", "block"] {
        let file = config_file(name);
        let sampled = completions(&file, &["checks=true"]);
        assert!(sampled.len() == 4 && sampled == completions(&file, &["checks=true"]), "{name}");
        assert_eq!(completions(&file, &["checks=true", "sampling.temperature=0.0"]), plain, "{name}");
    }
}
