//! Published forms of networks load, give the logits that PyTorch gives, and are refused by name where they do not fit.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use foretoken::model::Decoder;
use foretoken::plugins::host::{EngineHost, Shared};
use foretoken::plugins::lanes::Lanes;
use foretoken_dflash::network::{Network, RowPlaces};
use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{Host, TargetFacts};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<u32>,
    anchors: Vec<usize>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/checkpoints")
}

/// An engine's host around the small target, or one whose facts the test changes.
fn host(change: impl FnOnce(&mut TargetFacts)) -> Host {
    let exec = Exec::cpu(2).unwrap();
    let target = Decoder::load(&folder().join("base"), WeightDtype::F32, exec.clone()).unwrap();
    let architecture = target.architecture();
    let mut facts = TargetFacts {
        vocab_size: architecture.vocab_size,
        hidden_size: architecture.hidden_size,
        num_layers: architecture.layers,
        path: "base".to_owned(),
        ..TargetFacts::default()
    };
    change(&mut facts);
    let shared = Shared {
        facts,
        exec,
        folder: folder(),
        dtype: None,
        kv_dtype: KvDtype::F32,
        target: OnceLock::from(Arc::new(target)),
        counters: Mutex::default(),
    };
    Host::new(Arc::new(EngineHost::new(Arc::new(shared), "dflash", Arc::new(Lanes::default()))))
}

/// The blocks behind two anchors, in one pass.
fn check(name: &str) {
    let host = host(|_| {});
    let mut network = Network::load(name, None, &host).unwrap();
    let expected: Expected =
        serde_json::from_str(&std::fs::read_to_string(folder().join(name).join("expected.json")).unwrap()).unwrap();
    let (width, block, count) = (network.width(), network.block_size(), expected.tokens.len());
    let mut store = KvStore::new(network.kv(), count + expected.anchors.len() * block);
    let places: Vec<u32> = (0..count as u32).collect();
    network.store(&expected.hidden, RowPlaces { positions: &places, slots: &places }, &mut store.view_mut());

    let positions: Vec<u32> = expected.anchors.iter().flat_map(|&anchor| (anchor as u32..).take(block)).collect();
    let slots: Vec<u32> = (count as u32..).take(positions.len()).collect();
    let mut tokens = vec![network.mask(); positions.len()];
    for (index, &anchor) in expected.anchors.iter().enumerate() {
        tokens[index * block] = expected.tokens[anchor];
    }
    let mut rows = vec![0.0; tokens.len() * width];
    host.embed(&tokens, &mut rows).unwrap();
    let contexts: Vec<&[u32]> = expected.anchors.iter().map(|&anchor| &places[..anchor]).collect();
    let pass = (RowPlaces { positions: &positions, slots: &slots }, block);
    network.fill(&mut rows, pass, &contexts, &mut store.view_mut());
    let guesses: Vec<f32> = rows.chunks(block * width).flat_map(|rows| &rows[width..]).copied().collect();
    let mut logits = vec![0.0; guesses.len() / width * host.target().vocab_size];
    host.lm_head(&guesses, &mut logits).unwrap();

    assert_eq!(logits.len(), expected.logits.len(), "{name}");
    let scale = expected.logits.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    let worst = logits.iter().zip(&expected.logits).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{name}: {worst:.1e} apart, logits to {scale:.1}");
    assert!(worst <= 1e-4 * scale, "{name}: {worst} apart, logits to {scale}");
}

#[test]
fn a_config_with_its_own_part_agrees_with_pytorch() {
    check("nested");
}

#[test]
fn a_config_that_names_no_layers_agrees_with_pytorch() {
    check("old");
}

#[test]
fn the_speculators_form_with_a_sliding_layer_agrees_with_pytorch() {
    check("speculators");
}

#[test]
fn a_network_for_another_target_is_refused_by_name() {
    let refusal = |name: &str, change: fn(&mut TargetFacts)| match Network::load(name, None, &host(change)) {
        Ok(_) => panic!("{name} was taken"),
        Err(error) => error.message,
    };
    let message = refusal("nested", |facts| facts.hidden_size = 48);
    assert!(message.contains("hidden_size is 32") && message.contains("48"), "{message}");
    let message = refusal("nested", |facts| facts.vocab_size = 40);
    assert!(message.contains("mask_token_id is 63") && message.contains("40"), "{message}");
    let message = refusal("speculators", |facts| facts.num_layers = 3);
    assert!(message.contains("target_layer_ids"), "{message}");
    let message = refusal("base", |_| {});
    assert!(message.contains("mask_token_id"), "{message}");
    let message = refusal("nothing", |_| {});
    assert!(message.contains("nothing"), "{message}");
}
