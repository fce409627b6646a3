//! A toy target and a network for it.

use foretoken_plugin_api::testkit::{FakeHost, FakeTensors, ToyModel};

const VOCAB: usize = 16;
const CONFIG: &str = r#"{ "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2, "head_dim": 8,
    "num_key_value_heads": 1, "rms_norm_eps": 1e-5, "num_hidden_layers": 2, "block_size": 6, "mask_token_id": 3,
    "dflash_config": { "target_layer_ids": [0] } }"#;
const LAYER: [(&str, &[usize]); 11] = [
    ("self_attn.q_proj.weight", &[16, 16]),
    ("self_attn.k_proj.weight", &[8, 16]),
    ("self_attn.v_proj.weight", &[8, 16]),
    ("self_attn.o_proj.weight", &[16, 16]),
    ("self_attn.q_norm.weight", &[8]),
    ("self_attn.k_norm.weight", &[8]),
    ("mlp.gate_proj.weight", &[24, 16]),
    ("mlp.up_proj.weight", &[24, 16]),
    ("mlp.down_proj.weight", &[16, 24]),
    ("input_layernorm.weight", &[16]),
    ("post_attention_layernorm.weight", &[16]),
];

/// A host around the toy, whose hidden rows are as wide as its vocabulary, with made-up weights at `path`.
pub fn host(path: &str) -> FakeHost {
    let mut state = 12345u64;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    let own: [(&str, &[usize]); 3] = [("fc.weight", &[16, 16]), ("hidden_norm.weight", &[16]), ("norm.weight", &[16])];
    let layers = (0..2).flat_map(|layer| LAYER.map(|(name, shape)| (format!("layers.{layer}.{name}"), shape)));
    let all = own.map(|(name, shape)| (name.to_owned(), shape)).into_iter().chain(layers);
    let tensors = all.fold(FakeTensors::new().with_config(CONFIG), |tensors, (name, shape)| {
        tensors.with(&name, shape, (0..shape.iter().product()).map(|_| next()).collect())
    });
    FakeHost::new(ToyModel::new(VOCAB, 5).with_order(usize::MAX)).with_tensors(path, tensors)
}
