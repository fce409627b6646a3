//! The built library, found by its config through the engine's loader, and in the engine itself.

use std::path::{Path, PathBuf};

use foretoken::config::{self, Override};
use foretoken::plugins::registry::Registry;
use foretoken::{Engine, FinishReason, Request};
use foretoken_plugin_api::ErrorKind;
use foretoken_plugin_api::abi::scheduler::LoadedScheduler;
use foretoken_plugin_api::testkit::conformance::{Fixture, part};
use foretoken_plugin_api::testkit::{FakeHost, ToyModel, library};

fn config_file(name: &str) -> PathBuf {
    library("foretoken-cfg-pair", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn the_configs_load_them_and_they_conform() {
    for name in ["fcfs", "cfg-pair"] {
        let config = config::load(&config_file(&format!("{name}.toml")), &[]).unwrap();
        let loaded = Registry::new(config.plugins).find(&config.scheduler).unwrap();
        assert_eq!(loaded.name(), name);
        part(&loaded, &Fixture::new(&config.scheduler.options)).assert_passed();
    }
}

#[test]
fn wrong_options_are_refused_by_name() {
    let config = config::load(&config_file("fcfs.toml"), &[]).unwrap();
    let make = Registry::new(config.plugins).find(&config.scheduler).unwrap().scheduler().unwrap();
    let host = FakeHost::new(ToyModel::new(16, 1)).shared().handle();
    let cases = [
        ("policy = \"greedy\"", "`cost-aware`"),
        ("max_seqs = 3", "max_num_seqs"),
        ("max_num_seqs = 0", "at least 1"),
        ("max_num_batched_tokens = 9", "got 9 for 64"),
    ];
    for (options, expected) in cases {
        let error = LoadedScheduler::new(make, options, &host).err().expect(options);
        assert_eq!(error.kind, ErrorKind::Options, "{options}");
        assert!(error.message.contains(expected), "{options}: {error}");
    }
}

/// Greedy completions of several prompts, in order of submission.
fn completions(overrides: &[&str]) -> Vec<Vec<u32>> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let config = config::load(&config_file("fcfs.toml"), &overrides).unwrap();
    let mut sampling = config.sampling.clone();
    (sampling.max_tokens, sampling.ignore_eos) = (40, true);
    let mut engine = Engine::new(config).unwrap();
    let requests = (0..8).map(|salt| Request {
        prompt: (0..20 + 5 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    assert!(done.iter().all(|completion| completion.reason == FinishReason::Length));
    done.iter().map(|completion| completion.tokens().to_vec()).collect()
}

#[test]
fn scarce_slots_and_short_steps_change_no_token() {
    let plenty = completions(&["checks=true", "kv.num_slots=4096"]);
    assert_eq!(plenty.len(), 8);
    let scarce = ["checks=true", "kv.num_slots=130"];
    assert_eq!(completions(&scarce), plenty);
    let short = "scheduler.options={max_num_seqs=3,max_num_batched_tokens=9}";
    assert_eq!(completions(&["checks=true", "kv.num_slots=100", short]), plenty);
}
