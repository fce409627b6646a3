//! A toy target and an EAGLE head for it.

use foretoken_plugin_api::testkit::{FakeHost, FakeTensors, ToyModel};

pub const VOCAB: usize = 16;
const CONFIG: &str = r#"{ "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "bias": true }"#;

/// An EAGLE head of made-up weights for the toy, whose hidden rows are as wide as its vocabulary.
fn head() -> FakeTensors {
    let shapes: [(&str, &[usize]); 11] = [
        ("fc.weight", &[16, 32]),
        ("fc.bias", &[16]),
        ("embed_tokens.weight", &[16, 16]),
        ("layers.0.self_attn.q_proj.weight", &[16, 16]),
        ("layers.0.self_attn.k_proj.weight", &[8, 16]),
        ("layers.0.self_attn.v_proj.weight", &[8, 16]),
        ("layers.0.self_attn.o_proj.weight", &[16, 16]),
        ("layers.0.mlp.gate_proj.weight", &[24, 16]),
        ("layers.0.mlp.up_proj.weight", &[24, 16]),
        ("layers.0.mlp.down_proj.weight", &[16, 24]),
        ("layers.0.post_attention_layernorm.weight", &[16]),
    ];
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    shapes.iter().fold(FakeTensors::new().with_config(CONFIG), |tensors, (name, shape)| {
        tensors.with(name, shape, (0..shape.iter().product()).map(|_| next()).collect())
    })
}

/// A host that finds the head at `path`.
pub fn host(path: &str) -> FakeHost {
    FakeHost::new(ToyModel::new(VOCAB, 5).with_order(usize::MAX)).with_tensors(path, head())
}
