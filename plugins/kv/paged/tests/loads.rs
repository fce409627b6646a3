//! The built library, found by its config through the engine's loader, and in the engine itself.

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Engine, FinishReason, Request};
use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::testkit::conformance::{Fixture, part};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel, library};
use foretoken_plugin_api::{ErrorKind, KvFacts};

fn config_file(name: &str) -> PathBuf {
    library("foretoken-paged", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(format!("{name}.toml"))
}

#[test]
fn the_configs_load_them_and_they_conform() {
    for name in ["paged", "radix"] {
        let config = config::load(&config_file(name), &[]).unwrap();
        let loaded = Registry::new(config.plugins).find(&config.kv).unwrap();
        assert_eq!(loaded.name(), name);
        part(&loaded, &Fixture::new(&config.kv.options)).assert_passed();
    }
}

#[test]
fn wrong_options_are_refused_by_name() {
    let config = config::load(&config_file("paged"), &[]).unwrap();
    let make = Registry::new(config.plugins).find(&config.kv).unwrap().kv().unwrap();
    let host = FakeHost::new(ToyModel::new(16, 1)).shared().handle();
    for (options, expected) in [("block_size = 0", "at least 1"), ("blocks = 4", "block_size")] {
        let error = LoadedKv::new(make, options, &KvFacts { num_slots: 64 }, &host).err().expect(options);
        assert_eq!(error.kind, ErrorKind::Options, "{options}");
        assert!(error.message.contains(expected), "{options}: {error}");
    }
}

/// Greedy completions of prompts with siblings, in order; every slot is free again afterwards.
fn completions(name: &str, overrides: &[&str]) -> Vec<Vec<u32>> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let config = config::load(&config_file(name), &overrides).unwrap();
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
    assert_eq!((stats.free + stats.cached, stats.held), (stats.total, 0));
    done.iter().map(|completion| completion.tokens().to_vec()).collect()
}

#[test]
fn neither_block_size_nor_scarce_slots_change_a_token() {
    let plenty = completions("paged", &["checks=true", "kv.num_slots=4096"]);
    assert_eq!(plenty.len(), 12);
    for (slots, block_size) in [(150, 1), (150, 16), (95, 1000)] {
        let slots = format!("kv.num_slots={slots}");
        let block_size = format!("kv.options={{block_size={block_size}}}");
        for name in ["paged", "radix"] {
            assert_eq!(completions(name, &["checks=true", &slots, &block_size]), plenty, "{name} {slots} {block_size}");
        }
    }
}

/// Rows computed, tokens, guesses kept and guesses made for `prompts`, one after the other in one engine.
fn one_by_one(kv: &str, proposer: &str, prompts: &[Vec<u32>]) -> Vec<(u64, Vec<u32>, u64, u64)> {
    let overrides = ["checks=true", "kv.num_slots=4096", "sampling.max_tokens=40", "sampling.ignore_eos=true"];
    let mut overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    overrides.push(format!("kv.plugin=\"{kv}\"").parse().unwrap());
    let mut engine = Engine::new(config::load(&config_file(proposer), &overrides).unwrap()).unwrap();
    let sampling = engine.config().sampling.clone();
    let run = |prompt: &Vec<u32>| {
        let before = engine.totals().rows;
        let request = Request { prompt: prompt.clone(), sampling: sampling.clone(), text: false };
        let done = engine.complete([request]).unwrap().remove(0);
        (engine.totals().rows - before, done.tokens().to_vec(), done.stats.accepted, done.stats.drafted)
    };
    prompts.iter().map(run).collect()
}

/// 900 tokens that come again are not computed again, and what a proposer keeps behind them is there too.
#[test]
fn a_prefix_that_comes_again_costs_nothing_and_drafts_as_well() {
    let prompt =
        |tail: u32| (0..910u32).map(|at| if at < 900 { 40 + at * 7 % 90 } else { tail + at % 5 }).collect::<Vec<_>>();
    let prompts = [prompt(200), prompt(300), prompt(200)];
    for proposer in ["draft-model", "eagle"] {
        let cold = one_by_one("paged", proposer, &prompts);
        let warm = one_by_one("radix", proposer, &prompts);
        for (place, (cold, warm)) in cold.iter().zip(&warm).enumerate() {
            assert_eq!((&warm.1, warm.2, warm.3), (&cold.1, cold.2, cold.3), "{proposer}, prompt {place}");
            assert!(warm.3 > 0, "{proposer} drafted nothing");
        }
        assert_eq!(warm[0].0, cold[0].0);
        assert_eq!(cold[1].0 - warm[1].0, 900, "{proposer}: all but the tail was cached");
        assert_eq!(cold[2].0 - warm[2].0, 909, "{proposer}: all but the last token was cached");
    }
}
