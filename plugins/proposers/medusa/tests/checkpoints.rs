//! Published forms of heads load, give the logits that PyTorch gives, and are refused by name where they do not fit.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use foretoken::plugins::host::{EngineHost, Shared};
use foretoken::plugins::lanes::Lanes;
use foretoken_kernels::Exec;
use foretoken_kernels::blocks::KvDtype;
use foretoken_medusa::heads::Heads;
use foretoken_plugin_api::{Host, TargetFacts};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    heads: usize,
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints")
}

fn host(hidden_size: usize, vocab_size: usize) -> Host {
    let shared = Shared {
        facts: TargetFacts { hidden_size, vocab_size, ..TargetFacts::default() },
        exec: Exec::cpu(2).unwrap(),
        folder: folder(),
        dtype: None,
        kv_dtype: KvDtype::F32,
        target: OnceLock::new(),
        counters: Mutex::default(),
    };
    Host::new(Arc::new(EngineHost::new(Arc::new(shared), "medusa", Arc::new(Lanes::default()))))
}

fn check(name: &str) {
    let mut heads = Heads::load(name, None, &host(32, 48)).unwrap();
    let expected: Expected =
        serde_json::from_str(&std::fs::read_to_string(folder().join(name).join("expected.json")).unwrap()).unwrap();
    assert_eq!(heads.len(), expected.heads, "{name}");
    let mut logits = Vec::new();
    heads.logits(&expected.hidden, expected.heads, &mut logits);
    assert_eq!(logits.len(), expected.logits.len(), "{name}");
    let worst = logits.iter().zip(&expected.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{name}: {worst:.1e} apart");
    assert!(worst <= 1e-4, "{name}: {worst} apart");
}

#[test]
fn a_pickled_file_agrees_with_pytorch_and_its_heads_are_counted() {
    check("pickled");
}

#[test]
fn heads_of_a_merged_model_agree_with_pytorch() {
    check("merged");
}

#[test]
fn plain_heads_agree_with_pytorch() {
    check("plain");
}

#[test]
fn heads_for_another_target_are_refused_by_name() {
    let refusal = |name: &str, hidden_size, vocab_size| match Heads::load(name, None, &host(hidden_size, vocab_size)) {
        Ok(_) => panic!("{name} was taken"),
        Err(error) => error.message,
    };
    for name in ["pickled", "plain"] {
        let message = refusal(name, 40, 48);
        assert!(message.contains("0.0") && message.contains("40"), "{message}");
        let message = refusal(name, 32, 50);
        assert!(message.contains("weight") && message.contains("50"), "{message}");
    }
    let message = refusal("../../../eagle/tests/checkpoints/eagle", 32, 48);
    assert!(message.contains("there are no heads"), "{message}");
}
