//! Random models on disk: a config, and the tensors it calls for, deterministic per seed.

use std::collections::HashMap;
use std::path::Path;

use candle_core::{Device, Tensor};
use serde_json::{Value, json};
use tempfile::TempDir;

/// A config for `family`, with `changes` on top. Sizes are no multiples of vector widths, so tails are exercised; the
/// epsilon is large, so that a wrong one shows.
pub fn config(family: &str, changes: Value) -> Value {
    let mut config = json!({"architectures": [family], "vocab_size": 101, "hidden_size": 72, "num_hidden_layers": 3,
        "num_attention_heads": 6, "num_key_value_heads": 2, "intermediate_size": 100, "max_position_embeddings": 64,
        "rms_norm_eps": 1e-3, "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": false,
        "bos_token_id": 1, "eos_token_id": 2, "sliding_window": null, "attention_bias": false});
    for (key, value) in changes.as_object().expect("a table") {
        config[key] = value.clone();
    }
    config
}

/// A model: its config and its tensors, as candle's models take them.
pub struct Model {
    pub config: Value,
    pub tensors: HashMap<String, Tensor>,
}

impl Model {
    pub fn random(config: Value, seed: u64) -> Self {
        let mut random = Random(seed);
        let tensors = shapes(&config)
            .into_iter()
            .map(|(name, shape)| {
                let count = shape.iter().product();
                let values: Vec<f32> = (0..count).map(|_| value_for(&name, &shape, random.uniform())).collect();
                (name, Tensor::from_vec(values, shape, &Device::Cpu).expect("a tensor"))
            })
            .collect();
        Self { config, tensors }
    }

    /// Writes `config.json` and `model.safetensors`.
    pub fn write(&self) -> TempDir {
        let folder = self.write_config();
        self.save(&folder.path().join("model.safetensors"), |_| true);
        folder
    }

    pub fn write_config(&self) -> TempDir {
        let folder = tempfile::tempdir().expect("temp folder");
        std::fs::write(folder.path().join("config.json"), self.config.to_string()).expect("write config.json");
        folder
    }

    /// Writes the tensors that `keep` chooses by name.
    pub fn save(&self, path: &Path, keep: impl Fn(&str) -> bool) {
        let kept: HashMap<&str, Tensor> =
            self.tensors.iter().filter(|(name, _)| keep(name)).map(|(name, t)| (name.as_str(), t.clone())).collect();
        candle_core::safetensors::save(&kept, path).expect("write safetensors");
    }

    pub fn size(&self, key: &str) -> usize {
        self.config[key].as_u64().unwrap_or_else(|| panic!("{key} is missing")) as usize
    }

    pub fn head_dim(&self) -> usize {
        self.config["head_dim"]
            .as_u64()
            .map_or(self.size("hidden_size") / self.size("num_attention_heads"), |d| d as usize)
    }
}

/// Names and shapes as transformers writes them, sorted by name.
fn shapes(config: &Value) -> Vec<(String, Vec<usize>)> {
    let size = |key: &str| config[key].as_u64().expect(key) as usize;
    let flag = |key: &str| config[key].as_bool().unwrap_or(false);
    let family = config["architectures"][0].as_str().expect("a family");
    let (width, inner, heads) = (size("hidden_size"), size("intermediate_size"), size("num_attention_heads"));
    let head_dim = config["head_dim"].as_u64().map_or(width / heads, |d| d as usize);
    let (query, kv) = (heads * head_dim, size("num_key_value_heads") * head_dim);
    let qkv_bias = flag("attention_bias") || family == "Qwen2ForCausalLM";
    let mut all = vec![
        ("model.embed_tokens.weight".to_owned(), vec![size("vocab_size"), width]),
        ("model.norm.weight".to_owned(), vec![width]),
    ];
    if !flag("tie_word_embeddings") {
        all.push(("lm_head.weight".to_owned(), vec![size("vocab_size"), width]));
    }
    for layer in 0..size("num_hidden_layers") {
        let linears = [
            ("self_attn.q_proj", query, width, qkv_bias),
            ("self_attn.k_proj", kv, width, qkv_bias),
            ("self_attn.v_proj", kv, width, qkv_bias),
            ("self_attn.o_proj", width, query, flag("attention_bias")),
            ("mlp.gate_proj", inner, width, flag("mlp_bias")),
            ("mlp.up_proj", inner, width, flag("mlp_bias")),
            ("mlp.down_proj", width, inner, flag("mlp_bias")),
        ];
        for (name, outs, ins, bias) in linears {
            all.push((format!("model.layers.{layer}.{name}.weight"), vec![outs, ins]));
            if bias {
                all.push((format!("model.layers.{layer}.{name}.bias"), vec![outs]));
            }
        }
        let mut norms = vec![("input_layernorm", width), ("post_attention_layernorm", width)];
        if family == "Qwen3ForCausalLM" {
            norms.extend([("self_attn.q_norm", head_dim), ("self_attn.k_norm", head_dim)]);
        }
        for (name, len) in norms {
            all.push((format!("model.layers.{layer}.{name}.weight"), vec![len]));
        }
    }
    all.sort();
    all
}

/// Norms around 1, biases small, matrices so that activations keep their size.
fn value_for(name: &str, shape: &[usize], uniform: f32) -> f32 {
    match (name.ends_with("norm.weight"), shape) {
        (true, _) => 1.0 + 0.3 * uniform,
        (_, [_]) => 0.3 * uniform,
        _ if name.contains("embed_tokens") => uniform,
        _ => uniform * (3.0 / shape[1] as f32).sqrt(),
    }
}

/// SplitMix64.
pub struct Random(pub u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// In [-1, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1_u64 << 23) as f32 - 1.0
    }

    pub fn below(&mut self, end: u32) -> u32 {
        (self.next() % u64::from(end)) as u32
    }

    pub fn tokens(&mut self, count: usize, vocab: usize) -> Vec<u32> {
        (0..count).map(|_| self.below(vocab as u32)).collect()
    }
}
