//! Published forms of heads load, give the logits that PyTorch gives, and are refused by name where they do not fit.
#![forbid(unsafe_code)]

use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock};

use foretoken::model::Decoder;
use foretoken::plugins::host::{EngineHost, Shared};
use foretoken::plugins::lanes::Lanes;
use foretoken_eagle::load;
use foretoken_eagle::network::{HeadRows, Network};
use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::ops::AttentionSeq;
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{Host, TargetFacts};
use serde::Deserialize;

#[derive(Deserialize)]
struct Expected {
    tokens: Vec<u32>,
    hidden: Vec<f32>,
    first: Vec<f32>,
    second: Vec<f32>,
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
    Host::new(Arc::new(EngineHost::new(Arc::new(shared), "eagle", Arc::new(Lanes::default()))))
}

fn assert_close(what: &str, got: &[f32], expected: &[f32]) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let scale = expected.iter().fold(1.0f32, |most, value| most.max(value.abs()));
    let worst = got.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    println!("{what}: {worst:.1e} apart, logits to {scale:.1}");
    assert!(worst <= 1e-4 * scale, "{what}: {worst} apart, logits to {scale}");
}

type Load = fn(&str, Option<WeightDtype>, &Host) -> foretoken_plugin_api::Result<Network>;

/// Two steps of the head over the expected hidden rows.
fn check(name: &str, load: Load) {
    let host = host(|_| {});
    let mut network = load(name, None, &host).unwrap();
    let expected: Expected =
        serde_json::from_str(&std::fs::read_to_string(folder().join(name).join("expected.json")).unwrap()).unwrap();
    let (width, modules, rows) = (network.width(), network.modules(), expected.tokens.len() - 1);
    let plane = rows * width;
    let mut store = KvStore::new(network.kv(), rows + 1);
    let mut features = vec![0.0; modules * plane];
    network.fuse(&expected.hidden, &mut features[..plane]);
    let mut embeddings = vec![0.0; plane];
    host.embed(&expected.tokens[1..], &mut embeddings).unwrap();
    let (positions, slots): (Vec<u32>, Vec<u32>) = ((0..rows as u32).collect(), (0..rows as u32).collect());
    let seqs = [AttentionSeq { context: &[], rows: 0..rows, new_slots: &slots, tree: None }];
    let pass = HeadRows {
        embeddings: &embeddings,
        features: &mut features,
        are_chained: true,
        positions: &positions,
        slots: &slots,
        seqs: &seqs,
    };
    network.forward(pass, &mut store.view_mut());
    let mut logits = vec![0.0; rows * network.vocab_size()];
    network.logits(0, &features[..plane], &host, &mut logits).unwrap();
    assert_close(&format!("{name}, first step"), &logits, &expected.first);

    // The second step of a draft that begins one row earlier: the last token on the head's own feature of the row before.
    let given = |module: usize| &features[(module + modules - 1) % modules * plane..][(rows - 2) * width..][..width];
    let mut own: Vec<f32> = (0..modules).flat_map(given).copied().collect();
    let last = rows as u32 - 1;
    let seqs = [AttentionSeq { context: &slots[..rows - 1], rows: 0..1, new_slots: &[last + 1], tree: None }];
    let pass = HeadRows {
        embeddings: &embeddings[(rows - 1) * width..],
        features: &mut own,
        are_chained: false,
        positions: &[last],
        slots: &[last + 1],
        seqs: &seqs,
    };
    network.forward(pass, &mut store.view_mut());
    let mut logits = vec![0.0; network.vocab_size()];
    let module = 1 % modules;
    network.logits(module, &own[module * width..][..width], &host, &mut logits).unwrap();
    assert_close(&format!("{name}, second step"), &logits, &expected.second);
}

#[test]
fn eagle_agrees_with_pytorch() {
    check("eagle", load::eagle);
}

#[test]
fn eagle3_agrees_with_pytorch() {
    check("eagle3", load::eagle);
}

#[test]
fn the_speculators_form_agrees_with_pytorch() {
    check("speculators", load::eagle);
}

#[test]
fn two_deepseek_modules_in_the_target_s_file_agree_with_pytorch() {
    check("deepseek", load::mtp);
    let exec = Exec::cpu(1).unwrap();
    let target = Decoder::load(&folder().join("deepseek"), WeightDtype::F32, exec).unwrap();
    assert_eq!(target.architecture().layers, 5, "the modules are no layers of the target");
}

#[test]
fn a_qwen_module_agrees_with_pytorch() {
    check("qwen", load::mtp);
}

#[test]
fn a_mimo_module_agrees_with_pytorch() {
    check("mimo", load::mtp);
}

fn refusal(name: &str, load: Load, change: impl FnOnce(&mut TargetFacts)) -> String {
    match load(name, None, &host(change)) {
        Ok(_) => panic!("{name} was taken"),
        Err(error) => error.message,
    }
}

#[test]
fn a_head_for_another_target_is_refused_by_name() {
    let message = refusal("eagle3", load::eagle, |facts| facts.hidden_size = 48);
    assert!(message.contains("hidden_size is 32") && message.contains("48"), "{message}");
    let message = refusal("eagle3", load::eagle, |facts| facts.vocab_size = 40);
    assert!(message.contains("d2t") && message.contains("40"), "{message}");
    let message = refusal("speculators", load::eagle, |facts| facts.num_layers = 3);
    assert!(message.contains("eagle_aux_hidden_state_layer_ids"), "{message}");
    let message = refusal("base", load::eagle, |_| {});
    assert!(message.contains("fc.weight"), "{message}");
    let message = refusal("base", load::mtp, |_| {});
    assert!(message.contains("model.layers.5.eh_proj.weight") && message.contains("mtp.fc.weight"), "{message}");
    let message = refusal("nothing", load::eagle, |_| {});
    assert!(message.contains("nothing"), "{message}");
}
