//! A Llama-like decoder in f64, position by position, straight from the formulas: no cache, no batching, no tricks.

use candle_core::{DType, Device};
use serde_json::Value;

use crate::folder::Model;

pub struct Output {
    /// `[tokens][vocab]`.
    pub logits: Vec<Vec<f64>>,
    /// `[layers + 1][tokens][width]`: after each layer, then after the final norm.
    pub hidden: Vec<Vec<Vec<f64>>>,
}

struct Reference<'a> {
    model: &'a Model,
    frequencies: Vec<f64>,
    /// What cosines and sines are multiplied by.
    rope_scale: f64,
}

pub fn run(model: &Model, tokens: &[u32]) -> Output {
    let rope_scale = model.config["rope_scaling"]["attention_factor"].as_f64().unwrap_or(1.0);
    let reference = Reference { model, frequencies: frequencies(model), rope_scale };
    let embedding = reference.matrix("model.embed_tokens.weight").expect("an embedding");
    let mut rows: Vec<Vec<f64>> = tokens.iter().map(|&token| embedding[token as usize].clone()).collect();
    let mut hidden = Vec::new();
    for layer in 0..model.size("num_hidden_layers") {
        rows = reference.layer(&format!("model.layers.{layer}"), rows);
        hidden.push(rows.clone());
    }
    let normed: Vec<Vec<f64>> = rows.iter().map(|row| reference.norm("model.norm", row)).collect();
    hidden.push(normed.clone());
    let head = if model.config["tie_word_embeddings"] == true { "model.embed_tokens" } else { "lm_head" };
    let logits = normed.iter().map(|row| reference.linear(head, row)).collect();
    Output { logits, hidden }
}

impl Reference<'_> {
    fn layer(&self, prefix: &str, rows: Vec<Vec<f64>>) -> Vec<Vec<f64>> {
        let heads = self.model.size("num_attention_heads");
        let group = heads / self.model.size("num_key_value_heads");
        let head_dim = self.model.head_dim();
        // Of the families, only Mistral's window acts without further keys.
        let is_mistral = self.model.config["architectures"][0] == "MistralForCausalLM";
        let window = self.model.config["sliding_window"].as_u64().filter(|_| is_mistral).map(|window| window as usize);
        let (mut queries, mut keys, mut values) = (Vec::new(), Vec::new(), Vec::new());
        for (position, row) in rows.iter().enumerate() {
            let normed = self.norm(&format!("{prefix}.input_layernorm"), row);
            queries.push(self.rotated(&format!("{prefix}.self_attn.q"), &normed, position));
            keys.push(self.rotated(&format!("{prefix}.self_attn.k"), &normed, position));
            values.push(self.linear(&format!("{prefix}.self_attn.v_proj"), &normed));
        }
        let attend = |position: usize| -> Vec<f64> {
            (0..heads)
                .flat_map(|head| {
                    let query = &queries[position][head * head_dim..(head + 1) * head_dim];
                    let part = head / group * head_dim..(head / group + 1) * head_dim;
                    let first = window.map_or(0, |window| (position + 1).saturating_sub(window));
                    let scores = keys[first..=position].iter().map(|key| dot(query, &key[part.clone()]));
                    let weights = softmax(scores.map(|score| score / (head_dim as f64).sqrt()).collect());
                    let values = &values[first..];
                    part.map(move |i| weights.iter().zip(values).map(|(w, value)| w * value[i]).sum())
                })
                .collect()
        };
        let attended: Vec<Vec<f64>> = (0..rows.len()).map(attend).collect();
        rows.iter().zip(&attended).map(|(row, attended)| self.after_attention(prefix, row, attended)).collect()
    }

    fn after_attention(&self, prefix: &str, row: &[f64], attended: &[f64]) -> Vec<f64> {
        let row = sum(row, &self.linear(&format!("{prefix}.self_attn.o_proj"), attended));
        let normed = self.norm(&format!("{prefix}.post_attention_layernorm"), &row);
        let gate = self.linear(&format!("{prefix}.mlp.gate_proj"), &normed);
        let up = self.linear(&format!("{prefix}.mlp.up_proj"), &normed);
        let inner: Vec<f64> = gate.iter().zip(&up).map(|(gate, up)| gate / (1.0 + (-gate).exp()) * up).collect();
        sum(&row, &self.linear(&format!("{prefix}.mlp.down_proj"), &inner))
    }

    /// Queries or keys: projected, normalised per head where the model has such a norm, rotated.
    fn rotated(&self, name: &str, input: &[f64], position: usize) -> Vec<f64> {
        let (head_dim, half) = (self.model.head_dim(), self.model.head_dim() / 2);
        let has_norm = self.model.tensors.contains_key(&format!("{name}_norm.weight"));
        let projected = self.linear(&format!("{name}_proj"), input);
        let rotate = |head: &[f64]| -> Vec<f64> {
            let head = if has_norm { self.norm(&format!("{name}_norm"), head) } else { head.to_vec() };
            let angle = |i: usize| position as f64 * self.frequencies[i % half];
            let turned = |i: usize| if i < half { -head[i + half] } else { head[i - half] };
            let rotate = |i: usize| (head[i] * angle(i).cos() + turned(i) * angle(i).sin()) * self.rope_scale;
            (0..head_dim).map(rotate).collect()
        };
        projected.chunks(head_dim).flat_map(rotate).collect()
    }

    fn norm(&self, name: &str, row: &[f64]) -> Vec<f64> {
        let eps = self.model.config["rms_norm_eps"].as_f64().expect("rms_norm_eps");
        let scale = (dot(row, row) / row.len() as f64 + eps).sqrt().recip();
        let weight = self.vector(&format!("{name}.weight")).expect("a norm");
        row.iter().zip(weight).map(|(x, weight)| x * scale * weight).collect()
    }

    fn linear(&self, name: &str, input: &[f64]) -> Vec<f64> {
        let weight = self.matrix(&format!("{name}.weight")).expect("a weight");
        let out: Vec<f64> = weight.iter().map(|row| dot(row, input)).collect();
        self.vector(&format!("{name}.bias")).map_or(out.clone(), |bias| sum(&out, &bias))
    }

    fn matrix(&self, name: &str) -> Option<Vec<Vec<f64>>> {
        let tensor = self.model.tensors.get(name)?.to_dtype(DType::F64).expect("f64");
        Some(tensor.to_device(&Device::Cpu).and_then(|tensor| tensor.to_vec2()).expect("a matrix"))
    }

    fn vector(&self, name: &str) -> Option<Vec<f64>> {
        Some(self.model.tensors.get(name)?.to_dtype(DType::F64).and_then(|tensor| tensor.to_vec1()).expect("a vector"))
    }
}

/// Written from transformers' `modeling_rope_utils.py`, by wavelength as there.
fn frequencies(model: &Model) -> Vec<f64> {
    let (config, head_dim) = (&model.config, model.head_dim());
    let theta = config["rope_theta"].as_f64().expect("rope_theta");
    let scaling = &config["rope_scaling"];
    let number = |key: &str| scaling[key].as_f64().expect("a number");
    let kind = scaling.get("rope_type").and_then(Value::as_str).unwrap_or("default");
    // YaRN's ramp lies between the dimensions that turn `beta_fast` and `beta_slow` times over the original context.
    let dimension_of = |beta: &str| {
        let turns = std::f64::consts::TAU * number(beta) / number("original_max_position_embeddings");
        -turns.ln() / theta.ln() * head_dim as f64 / 2.0
    };
    let scaled = |i: usize, frequency: f64| match kind {
        "yarn" => {
            let (first, last) = (dimension_of("beta_fast").floor().max(0.0), dimension_of("beta_slow").ceil());
            let divided = ((i as f64 - first) / (last - first)).clamp(0.0, 1.0);
            frequency * (1.0 - divided + divided / number("factor"))
        }
        "default" => frequency,
        "linear" => frequency / number("factor"),
        "llama3" => {
            let wavelength = std::f64::consts::TAU / frequency;
            let original = number("original_max_position_embeddings");
            let (low, high) = (number("low_freq_factor"), number("high_freq_factor"));
            if wavelength < original / high {
                frequency
            } else if wavelength > original / low {
                frequency / number("factor")
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                (1.0 - smooth) * frequency / number("factor") + smooth * frequency
            }
        }
        other => panic!("{other}"),
    };
    (0..head_dim / 2).map(|i| scaled(i, theta.powf(-2.0 * i as f64 / head_dim as f64))).collect()
}

fn dot(left: &[f64], right: &[f64]) -> f64 {
    left.iter().zip(right).map(|(left, right)| left * right).sum()
}

fn sum(left: &[f64], right: &[f64]) -> Vec<f64> {
    left.iter().zip(right).map(|(left, right)| left + right).collect()
}

fn softmax(scores: Vec<f64>) -> Vec<f64> {
    let most = scores.iter().copied().fold(f64::MIN, f64::max);
    let total: f64 = scores.iter().map(|score| (score - most).exp()).sum();
    scores.iter().map(|score| (score - most).exp() / total).collect()
}
