//! The built library, found by its config through the engine's loader, and in the engine itself.

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Engine, FinishReason, Request};
use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::testkit::conformance::{Fixture, part};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel, library};
use foretoken_plugin_api::{ErrorKind, KvFacts};

fn config_file() -> PathBuf {
    library("foretoken-paged", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs/paged.toml")
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file(), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.kv).unwrap();
    assert_eq!(loaded.name(), "paged");
    part(&loaded, &Fixture::new(&config.kv.options)).assert_passed();
}

#[test]
fn wrong_options_are_refused_by_name() {
    let config = config::load(&config_file(), &[]).unwrap();
    let make = Registry::new(config.plugins).find(&config.kv).unwrap().kv().unwrap();
    let host = FakeHost::new(ToyModel::new(16, 1)).shared().handle();
    for (options, expected) in [("block_size = 0", "at least 1"), ("blocks = 4", "block_size")] {
        let error = LoadedKv::new(make, options, &KvFacts { num_slots: 64 }, &host).err().expect(options);
        assert_eq!(error.kind, ErrorKind::Options, "{options}");
        assert!(error.message.contains(expected), "{options}: {error}");
    }
}

/// Greedy completions of prompts with siblings, in order; every slot is free again afterwards.
fn completions(overrides: &[&str]) -> Vec<Vec<u32>> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let config = config::load(&config_file(), &overrides).unwrap();
    let mut sampling = config.sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos, sampling.n) = (40, true, 3);
    let mut engine = Engine::new(config).unwrap();
    let requests = (0..4).map(|salt| Request {
        prompt: (0..20 + 9 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    assert!(done.iter().all(|completion| completion.reason == FinishReason::Length));
    let stats = engine.kv_stats().unwrap();
    assert_eq!((stats.free, stats.held), (stats.total, 0));
    done.iter().map(|completion| completion.tokens().to_vec()).collect()
}

#[test]
fn neither_block_size_nor_scarce_slots_change_a_token() {
    let plenty = completions(&["checks=true", "kv.num_slots=4096"]);
    assert_eq!(plenty.len(), 12);
    for (slots, block_size) in [(150, 1), (150, 16), (95, 1000)] {
        let slots = format!("kv.num_slots={slots}");
        let block_size = format!("kv.options={{block_size={block_size}}}");
        assert_eq!(completions(&["checks=true", &slots, &block_size]), plenty, "{slots} {block_size}");
    }
}
