//! A toy target and heads for it.

use foretoken_plugin_api::testkit::{FakeHost, FakeTensors, ToyModel};

const VOCAB: usize = 16;
const CONFIG: &str = r#"{ "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "bias": true, "num_hidden_layers": 1,
    "num_nextn_predict_layers": 2 }"#;
/// Names and shapes of tensors.
type Shapes<'a> = [(&'a str, &'a [usize])];

const LAYER: [(&str, &[usize]); 8] = [
    ("self_attn.q_proj.weight", &[16, 16]),
    ("self_attn.k_proj.weight", &[8, 16]),
    ("self_attn.v_proj.weight", &[8, 16]),
    ("self_attn.o_proj.weight", &[16, 16]),
    ("mlp.gate_proj.weight", &[24, 16]),
    ("mlp.up_proj.weight", &[24, 16]),
    ("mlp.down_proj.weight", &[16, 24]),
    ("post_attention_layernorm.weight", &[16]),
];
const MODULE: [(&str, &[usize]); 6] = [
    ("eh_proj.weight", &[16, 32]),
    ("enorm.weight", &[16]),
    ("hnorm.weight", &[16]),
    ("input_layernorm.weight", &[16]),
    ("shared_head.norm.weight", &[16]),
    ("shared_head.head.weight", &[16, 16]),
];

/// A host around the toy, whose hidden rows are as wide as its vocabulary, with made-up weights at `path`: each prefix
/// before the names and shapes that go with it.
fn host(path: &str, parts: &[(&str, &Shapes<'_>)]) -> FakeHost {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let mut tensors = FakeTensors::new().with_config(CONFIG);
    for (prefix, shapes) in parts {
        for (name, shape) in *shapes {
            let values = (0..shape.iter().product()).map(|_| next()).collect();
            tensors = tensors.with(&format!("{prefix}{name}"), shape, values);
        }
    }
    FakeHost::new(ToyModel::new(VOCAB, 5).with_order(usize::MAX)).with_tensors(path, tensors)
}

/// With an EAGLE head at `path`.
pub fn eagle(path: &str) -> FakeHost {
    let own: [(&str, &[usize]); 3] = [("fc.weight", &[16, 32]), ("fc.bias", &[16]), ("embed_tokens.weight", &[16, 16])];
    host(path, &[("", &own), ("layers.0.", &LAYER)])
}

/// With two multi-token-prediction modules at `path`.
pub fn mtp(path: &str) -> FakeHost {
    let [first, second] = ["model.layers.1.", "model.layers.2."];
    host(path, &[(first, &LAYER), (first, &MODULE), (second, &LAYER), (second, &MODULE)])
}
