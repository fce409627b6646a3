//! Engines for tests: a config text on the shipped model, prompts, and runs to the end.

use std::path::{Path, PathBuf};

use foretoken::config::{self, Sampling};
use foretoken::{Completion, Config, Engine, Event, FinishReason, Request};
use foretoken_plugin_api::SamplingParams;
use foretoken_plugin_api::testkit::library;

pub const PLAIN: &str = "";
pub const NGRAM: &str = "[proposer]\nplugin = \"ngram\"\n";
pub const DRAFT_MODEL: &str = "[proposer]\nplugin = \"draft-model\"\n[proposer.options]\nmodel = \"examples/models/tiny-draft\"\nnum_speculative_tokens = 5\n";

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The folder of the running build: `target/release`.
pub fn build_folder() -> PathBuf {
    let test = std::env::current_exe().expect("a running test has a path");
    test.ancestors().nth(2).expect("target/release/deps/test").to_owned()
}

/// A library that only tests load.
pub fn fixture(name: &str) -> PathBuf {
    build_folder().join("examples").join(format!("lib{name}.so"))
}

/// A config: `parts` (sections of TOML), integrity checks on, f32 or bf16 as the file says.
pub fn config(parts: &str) -> Config {
    try_config(parts).unwrap_or_else(|error| panic!("{error}"))
}

pub fn try_config(parts: &str) -> Result<Config, config::ConfigError> {
    for (package, folder) in [
        ("foretoken-ngram", "proposers/ngram"),
        ("foretoken-draft-model", "proposers/draft-model"),
        ("foretoken-gumbel", "samplers/gumbel"),
        ("foretoken-rejection", "samplers/rejection"),
        ("foretoken-cfg-pair", "schedulers/cfg-pair"),
        ("foretoken-paged", "kv/paged"),
    ] {
        library(package, root().join("plugins").join(folder)).unwrap_or_else(|error| panic!("{error}"));
    }
    let dirs = format!("[plugins]\ndirs = [{:?}, {:?}]\n", build_folder(), build_folder().join("examples"));
    let dirs = if parts.contains("[plugins]") { String::new() } else { dirs };
    let model = if parts.contains("[model]") { "" } else { "[model]\npath = \"examples/models/tiny\"\n" };
    let fixed = "[scheduler]\nplugin = \"fcfs\"\noptions = { policy = \"fixed\" }\n";
    let scheduler = if parts.contains("[scheduler]") { "" } else { fixed };
    // Room for 16 of the prompts; the recount after every step takes time by the slot.
    let kv = if parts.contains("[kv]") { "" } else { "[kv]\nnum_slots = 12288\n" };
    config::parse(&format!("checks = true\n{parts}\n{model}\n{scheduler}\n{kv}\n{dirs}"), "test", &root(), &[])
}

pub fn engine(parts: &str) -> Engine {
    Engine::new(config(parts)).unwrap_or_else(|error| panic!("{error}"))
}

/// The held-out prompts as tokens.
pub fn prompts(engine: &Engine, count: usize) -> Vec<Vec<u32>> {
    let text = std::fs::read_to_string(root().join("examples/prompts/python.jsonl")).expect("the shipped prompts");
    let prompts = text.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).expect("a JSON line");
        engine.tokenizer().encode(line["prompt"].as_str().expect("a prompt")).expect("text")
    });
    let prompts: Vec<_> = prompts.take(count).collect();
    assert_eq!(prompts.len(), count, "too few prompts");
    prompts
}

pub fn greedy(max_tokens: usize) -> Sampling {
    Sampling { max_tokens, ignore_eos: true, ..Sampling::default() }
}

pub fn sampled(max_tokens: usize, seed: u64) -> Sampling {
    let params = SamplingParams { temperature: 1.0, top_p: 0.95, ..SamplingParams::GREEDY };
    Sampling { params, seed, ..greedy(max_tokens) }
}

/// Runs all prompts together (`at_once`) or one after the other; completions in order of submission.
pub fn run(engine: &mut Engine, prompts: &[Vec<u32>], sampling: &Sampling, at_once: usize) -> Vec<Completion> {
    let mut done = Vec::new();
    for chunk in prompts.chunks(at_once) {
        for (index, prompt) in chunk.iter().enumerate() {
            let sampling = Sampling { seed: sampling.seed + (done.len() + index) as u64, ..sampling.clone() };
            engine.submit(Request { prompt: prompt.clone(), sampling, text: false }).expect("a good request");
        }
        let mut finished = Vec::new();
        engine.run(&mut |event| {
            if let Event::Finished(completion) = event {
                finished.push(completion);
            }
        });
        finished.sort_by_key(|completion| (completion.request, completion.index));
        done.append(&mut finished);
    }
    for completion in &done {
        assert!(!matches!(completion.reason, FinishReason::Error(_)), "{:?}", completion.reason);
    }
    balanced(engine);
    done
}

/// All slots are free when nothing runs.
pub fn balanced(engine: &mut Engine) {
    let stats = engine.kv_stats().expect("stats");
    assert_eq!((stats.free, stats.held), (stats.total, 0), "slots leaked");
}

pub fn tokens(completions: &[Completion]) -> Vec<Vec<u32>> {
    completions.iter().map(|completion| completion.tokens().to_vec()).collect()
}
