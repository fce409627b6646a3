//! The same checkpoint through candle-transformers' models, in f32.

use candle_core::{DType, Device, Tensor};
use candle_nn::VarBuilder;
use candle_transformers::models::{llama, mistral, qwen2, qwen3};

use crate::folder::Model;

/// Logits of every position, one token at a time, and of the last position in one pass.
pub struct Logits {
    pub stepwise: Vec<Vec<f64>>,
    pub prefill: Vec<f64>,
}

pub fn run(model: &Model, tokens: &[u32]) -> Logits {
    let mut stepper = forward(model);
    let stepwise = tokens.iter().enumerate().map(|(at, &token)| stepper(&[token], at)).collect();
    Logits { stepwise, prefill: forward(model)(tokens, 0) }
}

type Forward = Box<dyn FnMut(&[u32], usize) -> Vec<f64>>;

/// A fresh model with an empty cache: takes tokens and their first position, returns the last token's logits.
fn forward(model: &Model) -> Forward {
    let weights = || VarBuilder::from_tensors(model.tensors.clone(), DType::F32, &Device::Cpu);
    let text = config_for_candle(model);
    match model.config["architectures"][0].as_str().expect("a family") {
        "LlamaForCausalLM" => {
            let config: llama::LlamaConfig = serde_json::from_str(&text).expect("a config");
            let config = config.into_config(false);
            let mut cache = llama::Cache::new(true, DType::F32, &config, &Device::Cpu).expect("a cache");
            let loaded = llama::Llama::load(weights(), &config).expect("a model");
            Box::new(move |tokens, at| values(loaded.forward(&input(tokens), at, &mut cache)))
        }
        "MistralForCausalLM" => {
            let config: mistral::Config = serde_json::from_str(&text).expect("a config");
            let mut loaded = mistral::Model::new(&config, weights()).expect("a model");
            Box::new(move |tokens, at| values(loaded.forward(&input(tokens), at)))
        }
        "Qwen2ForCausalLM" => {
            let config: qwen2::Config = serde_json::from_str(&text).expect("a config");
            let mut loaded = qwen2::ModelForCausalLM::new(&config, weights()).expect("a model");
            Box::new(move |tokens, at| values(loaded.forward(&input(tokens), at)))
        }
        "Qwen3ForCausalLM" => {
            let config: qwen3::Config = serde_json::from_str(&text).expect("a config");
            let mut loaded = qwen3::ModelForCausalLM::new(&config, weights()).expect("a model");
            Box::new(move |tokens, at| values(loaded.forward(&input(tokens), at)))
        }
        other => panic!("{other}"),
    }
}

/// candle insists on keys that only matter with a sliding window.
fn config_for_candle(model: &Model) -> String {
    let mut config = model.config.clone();
    config["head_dim"] = model.head_dim().into();
    config["max_window_layers"] = 0.into();
    config["use_sliding_window"] = false.into();
    if config["architectures"][0] == "Qwen2ForCausalLM" {
        config["sliding_window"] = 64.into();
    }
    config.to_string()
}

fn input(tokens: &[u32]) -> Tensor {
    Tensor::new(tokens, &Device::Cpu).and_then(|row| row.unsqueeze(0)).expect("a row of tokens")
}

fn values(logits: candle_core::Result<Tensor>) -> Vec<f64> {
    let flat = logits.and_then(|logits| logits.flatten_all()?.to_dtype(DType::F64)).expect("logits");
    flat.to_vec1().expect("a row of logits")
}
