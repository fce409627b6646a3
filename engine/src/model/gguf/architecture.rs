//! A GGUF file's metadata, worded as the `config.json` of the same model.
//!
//! Neighbours: `model::architectures` reads the result as it reads any config, so that defaults, checks and refusals
//! exist once; `renamed` gives its refusals the file's own keys. What a config
//! does not say (biases of a Llama, `rope_freqs`, the window of a Mistral that calls itself llama) is set afterwards,
//! from the tensors there are. Keys: ggml's docs/gguf.md and llama.cpp's llama-arch.cpp.

use serde_json::{Map, Value, json};

use super::metadata::FromValue;
use super::{Gguf, GgufError};
use crate::model::architectures::{Architecture, ConfigError, TokenIds};
use crate::model::nearest::nearest;

/// The names that GGUF files give the architectures this build can run.
const SUPPORTED: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// `config.json`'s key and the file's, after the architecture's name: sizes that must be there.
const NEEDED: [(&str, &str); 6] = [
    ("hidden_size", "embedding_length"),
    ("num_hidden_layers", "block_count"),
    ("num_attention_heads", "attention.head_count"),
    ("intermediate_size", "feed_forward_length"),
    ("max_position_embeddings", "context_length"),
    ("rms_norm_eps", "attention.layer_norm_rms_epsilon"),
];

/// The same for what has a default.
const OPTIONAL: [(&str, &str); 3] = [
    ("num_key_value_heads", "attention.head_count_kv"),
    ("head_dim", "attention.key_length"),
    ("rope_theta", "rope.freq_base"),
];

/// What the file says of the model's shape.
pub(in crate::model) fn architecture(gguf: &Gguf) -> Result<Architecture, ConfigError> {
    let arch: String = gguf.need("general.architecture")?;
    let name = match arch.as_str() {
        "llama" => "LlamaForCausalLM",
        "qwen2" => "Qwen2ForCausalLM",
        "qwen3" => "Qwen3ForCausalLM",
        _ => {
            let (path, nearest) = (gguf.path().to_owned(), nearest(&arch, SUPPORTED).unwrap_or(SUPPORTED[0]));
            return Err(ConfigError::UnknownArchitecture { path, got: arch, supported: &SUPPORTED, nearest });
        }
    };
    let keys = Keys { gguf, arch: &arch };
    let mut config = keys.sizes()?;
    keys.refuse_features(&config)?;
    config.insert("architectures".into(), json!([name]));
    config.insert("vocab_size".into(), keys.vocab_size()?.into());
    config.insert("tie_word_embeddings".into(), (!gguf.has_tensor("output.weight")).into());
    config.insert("rope_scaling".into(), keys.rope_scaling()?);
    let mut architecture =
        Architecture::from_json(Value::Object(config), gguf.path()).map_err(|error| keys.renamed(error))?;
    if arch == "llama" {
        architecture.qkv_bias = gguf.has_tensor("blk.0.attn_q.bias");
        architecture.output_bias = gguf.has_tensor("blk.0.attn_output.bias");
        architecture.mlp_bias = gguf.has_tensor("blk.0.ffn_gate.bias");
    }
    architecture.rope.factors = keys.rope_factors(architecture.head_dim)?;
    let window =
        keys.get("attention.sliding_window")?.filter(|window| (1..architecture.max_positions).contains(window));
    architecture.windows = vec![window; architecture.layers];
    architecture.token_ids = TokenIds {
        bos: gguf.get("tokenizer.ggml.bos_token_id")?,
        eos: gguf.get("tokenizer.ggml.eos_token_id")?.into_iter().collect(),
    };
    Ok(architecture)
}

/// The keys of one file, which begin with its architecture's name.
struct Keys<'a> {
    gguf: &'a Gguf,
    arch: &'a str,
}

impl Keys<'_> {
    fn key(&self, key: &str) -> String {
        format!("{}.{key}", self.arch)
    }

    fn get<T: FromValue>(&self, key: &str) -> Result<Option<T>, GgufError> {
        self.gguf.get(&self.key(key))
    }

    fn sizes(&self) -> Result<Map<String, Value>, GgufError> {
        let mut config = Map::new();
        for (name, key) in NEEDED {
            let value = match name {
                "rms_norm_eps" => json!(self.gguf.need::<f64>(&self.key(key))?),
                _ => json!(self.gguf.need::<usize>(&self.key(key))?),
            };
            config.insert(name.into(), value);
        }
        for (name, key) in OPTIONAL {
            let value = match name {
                "rope_theta" => self.get::<f64>(key)?.map(Value::from),
                _ => self.get::<usize>(key)?.map(Value::from),
            };
            config.extend(value.map(|value| (name.to_owned(), value)));
        }
        Ok(config)
    }

    /// Refuses what config.json has no words for.
    fn refuse_features(&self, config: &Map<String, Value>) -> Result<(), ConfigError> {
        let size = |name: &str| config.get(name).and_then(Value::as_u64).map(|size| size as usize);
        let even = size("hidden_size").zip(size("num_attention_heads")).and_then(|(all, heads)| all.checked_div(heads));
        let head_dim = size("head_dim").or(even).unwrap_or(0);
        let features = [
            ("expert_count", 0, "0: mixtures of experts are not supported"),
            ("attention.value_length", head_dim, "the length of a key"),
            ("rope.dimension_count", head_dim, "all of a head: partly rotated heads are not supported"),
            ("rope.scaling.yarn_ext_factor", 1, "1"),
        ];
        for (key, allowed, expected) in features {
            let got: Option<f64> = self.get(key)?;
            if let Some(got) = got.filter(|got| *got != allowed as f64) {
                let (path, fix) = (self.gguf.path().to_owned(), "Take a model without it".to_owned());
                let (key, got, expected) = (self.key(key), got.to_string(), expected.to_owned());
                return Err(ConfigError::Unsupported { path, key, got, expected, fix });
            }
        }
        Ok(())
    }

    fn vocab_size(&self) -> Result<usize, GgufError> {
        match self.get("vocab_size")? {
            Some(size) => Ok(size),
            None => Ok(self.gguf.need::<Vec<String>>("tokenizer.ggml.tokens")?.len()),
        }
    }

    /// `rope_scaling` of a config. Without a type a factor means linear, as in llama.cpp.
    fn rope_scaling(&self) -> Result<Value, GgufError> {
        let factor = self.get::<f64>("rope.scaling.factor")?.or(self.get("rope.scale_linear")?);
        let factor = factor.filter(|factor| *factor != 0.0);
        let kind = self.get::<String>("rope.scaling.type")?.unwrap_or_else(|| "linear".to_owned());
        match (kind.as_str(), factor) {
            ("none", _) | ("linear", None) => Ok(Value::Null),
            ("yarn", _) => {
                let mut scaling = json!({"rope_type": kind, "factor": factor,
                    "original_max_position_embeddings": self.get::<usize>("rope.scaling.original_context_length")?,
                    "beta_fast": self.get::<f64>("rope.scaling.yarn_beta_fast")?,
                    "beta_slow": self.get::<f64>("rope.scaling.yarn_beta_slow")?});
                // llama.cpp multiplies what the paper suggests by it; a config's `attention_factor` is the product.
                let scale = self.get::<f64>("rope.scaling.attn_factor")?.or(self.get("rope.scaling.yarn_attn_factor")?);
                if let Some(scale) = scale {
                    let suggested = 1.0 + 0.1 * factor.unwrap_or(1.0).max(1.0).ln();
                    scaling["attention_factor"] = (scale * suggested).into();
                }
                Ok(scaling)
            }
            _ => Ok(json!({"rope_type": kind, "factor": factor})),
        }
    }

    /// Llama 3's scaling, which converters write out as one divisor per frequency.
    fn rope_factors(&self, head_dim: usize) -> Result<Option<Vec<f32>>, GgufError> {
        let factors = self.gguf.f32_vector("rope_freqs.weight")?;
        match &factors {
            Some(factors) if factors.len() != head_dim / 2 || factors.iter().any(|f| !(f.is_finite() && *f > 0.0)) => {
                let got = format!("holds {} values", factors.len());
                let expected = format!("head_dim / 2 = {} positive ones", head_dim / 2);
                Err(self.gguf.bad("rope_freqs.weight", got, &expected))
            }
            _ => Ok(factors),
        }
    }

    /// A refusal of a config's key under the file's own name of it.
    fn renamed(&self, error: ConfigError) -> ConfigError {
        let ConfigError::Unsupported { path, key, got, expected, fix } = error else { return error };
        let scaling = [("rope_scaling.rope_type", "rope.scaling.type"), ("rope_scaling.factor", "rope.scaling.factor")];
        let own = NEEDED.into_iter().chain(OPTIONAL).chain(scaling).find(|(name, _)| *name == key);
        let key = own.map_or(key.clone(), |(_, own)| self.key(own));
        ConfigError::Unsupported { path, key, got, expected, fix }
    }
}
