//! GGUF files for tests, made of Hugging Face models as llama.cpp's convert_hf_to_gguf.py makes them.
//!
//! Neighbours: `folder` makes the models, `gguf` and `gguf_text` compare, the engine's tests share this file. Written
//! from the converter and from ggml's docs/gguf.md, not from our reader: names by a table, rows of q and k of a Llama by
//! the converter's reshape and transposition. candle writes the file.

use std::collections::HashMap;
use std::path::Path;

use candle_core::quantized::gguf_file::{self, Value};
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{DType, Tensor};
use serde_json::Value as Json;

/// `config.json`'s key and the metadata's.
const SIZES: [(&str, &str); 7] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("num_key_value_heads", "attention.head_count_kv"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("head_dim", "attention.key_length"),
];

const NAMES: [(&str, &str); 14] = [
    ("model.embed_tokens", "token_embd"),
    ("model.norm", "output_norm"),
    ("lm_head", "output"),
    ("input_layernorm", "attn_norm"),
    ("post_attention_layernorm", "ffn_norm"),
    ("self_attn.q_proj", "attn_q"),
    ("self_attn.k_proj", "attn_k"),
    ("self_attn.v_proj", "attn_v"),
    ("self_attn.o_proj", "attn_output"),
    ("self_attn.q_norm", "attn_q_norm"),
    ("self_attn.k_norm", "attn_k_norm"),
    ("mlp.gate_proj", "ffn_gate"),
    ("mlp.up_proj", "ffn_up"),
    ("mlp.down_proj", "ffn_down"),
];

/// A file to be written.
pub struct GgufFile {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<(String, QTensor)>,
}

impl GgufFile {
    /// The model of this config and these tensors, matrices as `kind` and vectors as F32.
    pub fn convert(config: &Json, tensors: &HashMap<String, Tensor>, kind: GgmlDType) -> Self {
        let arch = match config["architectures"][0].as_str().expect("a family") {
            "LlamaForCausalLM" | "MistralForCausalLM" => "llama",
            "Qwen2ForCausalLM" => "qwen2",
            "Qwen3ForCausalLM" => "qwen3",
            other => panic!("{other}"),
        };
        let mut file = Self { metadata: Vec::new(), tensors: Vec::new() };
        file.set("general.architecture", text(arch));
        for (name, key) in SIZES {
            if let Some(size) = config[name].as_u64() {
                file.set(&format!("{arch}.{key}"), Value::U32(size as u32));
            }
        }
        let number = |name: &str| Value::F32(config[name].as_f64().expect(name) as f32);
        file.set(&format!("{arch}.vocab_size"), Value::U32(config["vocab_size"].as_u64().expect("a size") as u32));
        file.set(&format!("{arch}.attention.layer_norm_rms_epsilon"), number("rms_norm_eps"));
        file.set(&format!("{arch}.rope.freq_base"), number("rope_theta"));
        for (name, key) in [("bos_token_id", "bos"), ("eos_token_id", "eos")] {
            let id = config[name].as_u64().expect("an id") as u32;
            file.set(&format!("tokenizer.ggml.{key}_token_id"), Value::U32(id));
        }
        let heads = |name: &str| config[name].as_u64().expect(name) as usize;
        let mut names: Vec<&String> = tensors.keys().collect();
        names.sort();
        for name in names {
            let tensor = tensors[name].to_dtype(DType::F32).expect("a float tensor");
            let tensor = match () {
                () if arch != "llama" => tensor,
                () if name.contains("q_proj") => permuted(&tensor, heads("num_attention_heads")),
                () if name.contains("k_proj") => permuted(&tensor, heads("num_key_value_heads")),
                () => tensor,
            };
            let kind = if tensor.rank() == 2 { kind } else { GgmlDType::F32 };
            file.tensors.push((gguf_name(name), QTensor::quantize(&tensor, kind).expect("whole blocks")));
        }
        file
    }

    /// Adds or replaces a metadata value.
    pub fn set(&mut self, key: &str, value: Value) {
        self.remove(key);
        self.metadata.push((key.to_owned(), value));
    }

    pub fn remove(&mut self, key: &str) {
        self.metadata.retain(|(name, _)| name != key);
    }

    /// The metadata of a byte-level BPE tokenizer.json; `pre` names its pre-tokenizer.
    pub fn set_bpe(&mut self, tokenizer: &Json, pre: &str) {
        let vocab = tokenizer["model"]["vocab"].as_object().expect("a vocabulary");
        let mut entries: Vec<(u64, &str)> =
            vocab.iter().map(|(text, id)| (id.as_u64().expect("id"), &**text)).collect();
        let added = tokenizer["added_tokens"].as_array().expect("added tokens");
        entries.extend(added.iter().map(|t| (t["id"].as_u64().expect("id"), t["content"].as_str().expect("text"))));
        entries.sort_unstable();
        entries.dedup();
        let kinds = entries.iter().map(|(id, _)| match added.iter().find(|token| token["id"] == *id) {
            Some(token) if token["special"] == true => Value::I32(3),
            Some(_) => Value::I32(4),
            None => Value::I32(1),
        });
        let merges = tokenizer["model"]["merges"].as_array().expect("merges").iter();
        let merges = merges.map(|pair| format!("{} {}", pair[0].as_str().expect("a"), pair[1].as_str().expect("b")));
        self.set("tokenizer.ggml.model", text("gpt2"));
        self.set("tokenizer.ggml.pre", text(pre));
        self.set("tokenizer.ggml.token_type", Value::Array(kinds.collect()));
        self.set("tokenizer.ggml.merges", Value::Array(merges.map(Value::String).collect()));
        self.set("tokenizer.ggml.tokens", Value::Array(entries.iter().map(|(_, word)| text(word)).collect()));
    }

    pub fn bytes(&self) -> Vec<u8> {
        let metadata: Vec<(&str, &Value)> = self.metadata.iter().map(|(key, value)| (key.as_str(), value)).collect();
        let tensors: Vec<(&str, &QTensor)> =
            self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor)).collect();
        let mut bytes = std::io::Cursor::new(Vec::new());
        gguf_file::write(&mut bytes, &metadata, &tensors).expect("a writable file");
        bytes.into_inner()
    }

    pub fn save(&self, path: &Path) {
        std::fs::write(path, self.bytes()).expect("write the file");
    }
}

pub fn text(text: &str) -> Value {
    Value::String(text.to_owned())
}

fn gguf_name(name: &str) -> String {
    let (stem, suffix) = name.rsplit_once('.').expect("a suffix");
    let own = |stem: &str| NAMES.iter().find(|(hf, _)| *hf == stem).unwrap_or_else(|| panic!("{stem}")).1;
    match stem.strip_prefix("model.layers.").and_then(|rest| rest.split_once('.')) {
        Some((layer, role)) => format!("blk.{layer}.{}.{suffix}", own(role)),
        None => format!("{}.{suffix}", own(stem)),
    }
}

/// `LlamaModel.permute`: `reshape(heads, 2, rows / heads / 2, ..).swapaxes(1, 2).reshape(..)`.
fn permuted(tensor: &Tensor, heads: usize) -> Tensor {
    let rows = tensor.dim(0).expect("rows");
    let columns = tensor.elem_count() / rows;
    let split = tensor.reshape((heads, 2, rows / heads / 2, columns)).and_then(|split| split.transpose(1, 2));
    split.and_then(|swapped| swapped.contiguous()?.reshape(tensor.shape())).expect("whole heads")
}
