//! `config.json` of a Hugging Face folder, as one `Architecture` for every supported family.
//!
//! Neighbours: `gguf` words a GGUF file's metadata as such a config, `weights` checks tensor shapes against the result,
//! `decoder` is built from it, `text::tokenizer` takes the vocabulary and token ids. Families differ in a few switches
//! only (biases, q/k norm, tying, windows), so there is one decoder and no trait per family. What would silently change
//! outputs (an unknown RoPE scaling, an active sliding window, quantised weights) is refused here, before any weight is
//! read, with the key and the way out.

use std::path::{Path, PathBuf};

use foretoken_kernels::blocks::{KvDtype, KvShape};
use serde::{Deserialize, Deserializer};
use serde_json::Value;

use super::gguf::{self, Gguf, GgufError};
use super::nearest::nearest;
use super::rope::{Rope, rope_of};
use super::window::RawWindow;

/// The architectures this build can run, as `config.json` names them.
pub const SUPPORTED: [&str; 4] = ["LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"];

/// Far above any model; a damaged number of layers must not become an allocation.
const MOST_LAYERS: usize = 10_000;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "cannot read {path}: {source}. A model is a Hugging Face folder with config.json, tokenizer.json and \
        *.safetensors, or a .gguf file"
    )]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a model config: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error(
        "{path}: architecture `{got}` is not supported. Supported: {supported}; the nearest is `{nearest}`",
        supported = supported.join(", ")
    )]
    UnknownArchitecture { path: PathBuf, got: String, supported: &'static [&'static str], nearest: &'static str },
    #[error("{path}: `{key}` is {got}, expected {expected}. {fix}")]
    Unsupported { path: PathBuf, key: String, got: String, expected: String, fix: String },
}

/// What a decoder is made of. All sizes are counts of elements.
#[derive(Debug, Clone, PartialEq)]
pub struct Architecture {
    /// One of `SUPPORTED`.
    pub name: &'static str,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub layers: usize,
    pub heads: usize,
    /// Heads of keys and values; divides `heads` (grouped-query attention).
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Width inside the MLP.
    pub intermediate_size: usize,
    pub rms_norm_eps: f64,
    pub rope: Rope,
    /// Per layer the sliding window in tokens: a row at position `i` sees positions above `i - window` only. `None`
    /// sees all before it.
    pub windows: Vec<Option<usize>>,
    /// Positions `0..max_positions` are legal.
    pub max_positions: usize,
    /// Whether the output projection is the embedding table.
    pub tied_embeddings: bool,
    pub qkv_bias: bool,
    pub output_bias: bool,
    pub mlp_bias: bool,
    /// Whether queries and keys are RMS-normalised per head before RoPE.
    pub qk_norm: bool,
    pub token_ids: TokenIds,
}

/// The ids that begin and end a sequence, as `config.json` and `generation_config.json` both write them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub struct TokenIds {
    #[serde(rename = "bos_token_id", default)]
    pub bos: Option<u32>,
    #[serde(rename = "eos_token_id", default, deserialize_with = "one_or_many")]
    pub eos: Vec<u32>,
}

#[derive(Debug, Deserialize)]
struct RawConfig {
    vocab_size: usize,
    hidden_size: usize,
    num_hidden_layers: usize,
    num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    intermediate_size: usize,
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    max_position_embeddings: usize,
    #[serde(default)]
    tie_word_embeddings: bool,
    #[serde(default)]
    attention_bias: bool,
    #[serde(default)]
    mlp_bias: bool,
    #[serde(default = "default_act")]
    hidden_act: String,
    #[serde(flatten)]
    window: RawWindow,
    quantization_config: Option<Value>,
    #[serde(flatten)]
    token_ids: TokenIds,
}

fn default_eps() -> f64 {
    1e-6
}

fn default_act() -> String {
    "silu".into()
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<u32>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Ids {
        One(u32),
        Many(Vec<u32>),
    }
    Ok(match Option::<Ids>::deserialize(deserializer)? {
        None => Vec::new(),
        Some(Ids::One(id)) => vec![id],
        Some(Ids::Many(ids)) => ids,
    })
}

impl Architecture {
    /// Reads `config.json` of the folder `path`, or the metadata of the GGUF file `path`.
    pub fn open(path: &Path) -> Result<Self, ConfigError> {
        if gguf::is_gguf(path) {
            return gguf::architecture(&Gguf::open(path)?);
        }
        let path = path.join("config.json");
        let text = std::fs::read_to_string(&path);
        let text = text.map_err(|source| ConfigError::Unreadable { path: path.clone(), source })?;
        Self::parse(&text, &path)
    }

    /// Parses the text of a `config.json`; `path` is for messages.
    pub fn parse(text: &str, path: &Path) -> Result<Self, ConfigError> {
        let json: Value = serde_json::from_str(text).map_err(|error| malformed(path, &error))?;
        Self::from_json(json, path)
    }

    /// The same from a parsed `config.json`.
    pub(super) fn from_json(json: Value, path: &Path) -> Result<Self, ConfigError> {
        // Before the fields, so that a model of another kind is called by its name and not by a missing key.
        let name = supported_name(&json, path)?;
        let raw = RawConfig::deserialize(&json).map_err(|error| malformed(path, &error))?;
        let keys = Keys { path };
        keys.check_features(&raw)?;
        let (heads, kv_heads, head_dim) = keys.heads(&raw)?;
        let is_llama = name == "LlamaForCausalLM";
        let (layers, rope) = (keys.layers(&raw)?, rope_of(&json, &keys)?);
        let max_positions = keys.positive("max_position_embeddings", raw.max_position_embeddings)?;
        let max_positions = rope.stretched(max_positions);
        let own_bias = raw.attention_bias && (is_llama || name == "Qwen3ForCausalLM");
        Ok(Self {
            name,
            vocab_size: keys.positive("vocab_size", raw.vocab_size)?,
            hidden_size: keys.positive("hidden_size", raw.hidden_size)?,
            layers,
            heads,
            kv_heads,
            head_dim,
            intermediate_size: keys.positive("intermediate_size", raw.intermediate_size)?,
            rms_norm_eps: raw.rms_norm_eps,
            rope,
            windows: raw.window.per_layer(name, layers, max_positions),
            max_positions,
            tied_embeddings: raw.tie_word_embeddings,
            qkv_bias: own_bias || name == "Qwen2ForCausalLM",
            output_bias: own_bias,
            mlp_bias: raw.mlp_bias && is_llama,
            qk_norm: name == "Qwen3ForCausalLM",
            token_ids: raw.token_ids,
        })
    }

    /// Width of all query heads together.
    pub fn query_width(&self) -> usize {
        self.heads.saturating_mul(self.head_dim)
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.kv_heads.saturating_mul(self.head_dim)
    }

    /// What a slot of the model's keys and values holds.
    pub fn kv_shape(&self, dtype: KvDtype) -> KvShape {
        KvShape { layers: self.layers, heads: self.kv_heads, head_dim: self.head_dim, dtype }
    }
}

fn malformed(path: &Path, error: &serde_json::Error) -> ConfigError {
    ConfigError::Malformed { path: path.to_owned(), reason: error.to_string() }
}

fn supported_name(json: &Value, path: &Path) -> Result<&'static str, ConfigError> {
    let names: Vec<&str> = json["architectures"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    if let Some(name) = SUPPORTED.into_iter().find(|supported| names.contains(supported)) {
        return Ok(name);
    }
    let got = names.first().copied().unwrap_or("(none named in `architectures`)").to_owned();
    let nearest = nearest(&got, SUPPORTED).unwrap_or(SUPPORTED[0]);
    Err(ConfigError::UnknownArchitecture { path: path.to_owned(), got, supported: &SUPPORTED, nearest })
}

/// Checks on keys, each failure naming the file.
pub(super) struct Keys<'a> {
    path: &'a Path,
}

impl Keys<'_> {
    pub(super) fn refuse(&self, key: &str, got: impl ToString, expected: impl ToString, fix: &str) -> ConfigError {
        ConfigError::Unsupported {
            path: self.path.to_owned(),
            key: key.to_owned(),
            got: got.to_string(),
            expected: expected.to_string(),
            fix: fix.to_owned(),
        }
    }

    fn positive(&self, key: &str, value: usize) -> Result<usize, ConfigError> {
        if value > 0 {
            return Ok(value);
        }
        Err(self.refuse(key, 0, "at least 1", "The config is damaged; download it again"))
    }

    fn layers(&self, raw: &RawConfig) -> Result<usize, ConfigError> {
        let layers = self.positive("num_hidden_layers", raw.num_hidden_layers)?;
        if layers <= MOST_LAYERS {
            return Ok(layers);
        }
        Err(self.refuse("num_hidden_layers", layers, format!("at most {MOST_LAYERS}"), "The config is damaged"))
    }

    fn heads(&self, raw: &RawConfig) -> Result<(usize, usize, usize), ConfigError> {
        let heads = self.positive("num_attention_heads", raw.num_attention_heads)?;
        let kv_heads = self.positive("num_key_value_heads", raw.num_key_value_heads.unwrap_or(heads))?;
        if !heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of num_attention_heads = {heads}");
            return Err(self.refuse("num_key_value_heads", kv_heads, expected, "The config is damaged"));
        }
        if raw.head_dim.is_none() && !raw.hidden_size.is_multiple_of(heads) {
            let expected = format!("a multiple of num_attention_heads = {heads}");
            return Err(self.refuse("hidden_size", raw.hidden_size, expected, "Or give head_dim explicitly"));
        }
        let head_dim = self.positive("head_dim", raw.head_dim.unwrap_or(raw.hidden_size / heads))?;
        if !head_dim.is_multiple_of(2) {
            return Err(self.refuse("head_dim", head_dim, "an even number", "RoPE rotates pairs"));
        }
        Ok((heads, kv_heads, head_dim))
    }

    /// Refuses what the decoder would compute wrongly.
    fn check_features(&self, raw: &RawConfig) -> Result<(), ConfigError> {
        if raw.hidden_act != "silu" {
            return Err(self.refuse("hidden_act", &raw.hidden_act, "silu", "Other activations are not supported"));
        }
        if let Some(quantized) = &raw.quantization_config {
            let method = quantized["quant_method"].as_str().unwrap_or("present");
            let fix = "Take the unquantised model, and set `dtype` in the [model] table instead";
            return Err(self.refuse("quantization_config", method, "absent", fix));
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "architectures_tests.rs"]
mod tests;
