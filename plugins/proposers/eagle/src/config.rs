//! What a head's `config.json` says, in the EAGLE repository's form (Llama fields at the top) or that of `speculators` (the
//! Llama fields in `transformer_layer_config`).

use foretoken_kernels::ops::RopeScaling;
use foretoken_plugin_api::{Error, Result};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The fields that matter here. What they are called is what published files call them.
#[derive(Debug, Clone, Deserialize)]
pub struct HeadConfig {
    /// Width of the head's residual stream.
    pub hidden_size: usize,
    /// Inner width of its MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    /// Key heads; as many as query heads where unset.
    pub num_key_value_heads: Option<usize>,
    /// Dimensions of a head; `hidden_size / num_attention_heads` where unset.
    pub head_dim: Option<usize>,
    /// Epsilon of the norms.
    #[serde(default = "default_eps")]
    pub rms_norm_eps: f64,
    /// Base of the rotary frequencies.
    #[serde(default = "default_theta")]
    pub rope_theta: f64,
    /// How they are stretched.
    #[serde(default, alias = "rope_parameters")]
    pub rope_scaling: Option<Rope>,
    /// EAGLE-3: tokens the head can guess; all of the target's where unset.
    pub draft_vocab_size: Option<usize>,
    /// EAGLE-3: the target's hidden rows, counted from the embedding: id i is what layer i reads.
    pub eagle_aux_hidden_state_layer_ids: Option<Vec<usize>>,
    /// EAGLE-3: whether the residual is the normed feature.
    #[serde(default)]
    pub norm_before_residual: bool,
    /// The activation of the MLP.
    pub hidden_act: Option<String>,
}

/// Rotary settings of `config.json`.
#[derive(Debug, Clone, Deserialize)]
pub struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<usize>,
}

fn default_eps() -> f64 {
    1e-6
}

fn default_theta() -> f64 {
    10_000.0
}

impl HeadConfig {
    /// Reads `text`; `path` names it in the error.
    ///
    /// # Errors
    /// If it is no config of a Llama-like head.
    pub fn read(path: &str, text: &str) -> Result<Self> {
        let bad = |reason: String| Error::refused(format!("eagle: {path}/config.json: {reason}"));
        if text.is_empty() {
            return Err(bad("there is none, and it names the head's sizes".to_owned()));
        }
        let top: Map<String, Value> = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        let nested = |name: &str| top.get(name).and_then(Value::as_object).cloned().unwrap_or_default();
        // What stands at the top wins over what is nested.
        let mut merged = nested("transformer_layer_config");
        merged.extend(nested("eagle_config"));
        merged.extend(top.clone());
        // Null is how these files write "unset".
        merged.retain(|_, value| !value.is_null());
        let config: Self = serde_json::from_value(Value::Object(merged)).map_err(|error| bad(error.to_string()))?;
        match config.hidden_act.as_deref() {
            None | Some("silu") => {}
            Some(other) => return Err(bad(format!("hidden_act is {other:?}, expected \"silu\""))),
        }
        if config.num_attention_heads == 0 || config.hidden_size == 0 {
            return Err(bad("num_attention_heads and hidden_size must be above 0".to_owned()));
        }
        config.scaling().map_err(bad)?;
        Ok(config)
    }

    /// Base and stretch of the rotary frequencies; the error says what is not supported.
    ///
    /// # Errors
    /// If the stretch is of another kind than `linear` and `llama3`, or misses a number.
    pub fn scaling(&self) -> Result<(f64, RopeScaling), String> {
        let Some(rope) = &self.rope_scaling else { return Ok((self.rope_theta, RopeScaling::None)) };
        let theta = rope.rope_theta.unwrap_or(self.rope_theta);
        let need = |name: &str, value: Option<f64>| value.ok_or_else(|| format!("rope_scaling.{name} is missing"));
        let scaling = match rope.rope_type.as_deref() {
            None | Some("default") => RopeScaling::None,
            Some("linear") => RopeScaling::Linear { factor: need("factor", rope.factor)? },
            Some("llama3") => RopeScaling::Llama3 {
                factor: need("factor", rope.factor)?,
                low_freq_factor: need("low_freq_factor", rope.low_freq_factor)?,
                high_freq_factor: need("high_freq_factor", rope.high_freq_factor)?,
                original_max_position_embeddings: rope
                    .original_max_position_embeddings
                    .ok_or("rope_scaling.original_max_position_embeddings is missing")?,
            },
            Some(other) => return Err(format!("rope_scaling is {other:?}, expected none, \"linear\" or \"llama3\"")),
        };
        Ok((theta, scaling))
    }

    /// Dimensions of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Key heads.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }
}
