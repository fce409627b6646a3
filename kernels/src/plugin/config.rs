//! What a head's `config.json` says of its decoder layers.

use foretoken_plugin_api::{Error, Result};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use crate::ops::{RopeScaling, RopeTable};

/// Objects in which some files keep fields that others have at the top: `speculators`, models of several modalities, and
/// what some heads add.
const NESTED: [&str; 4] = ["transformer_layer_config", "text_config", "eagle_config", "dflash_config"];

/// The Llama fields of a head's config. What they are called is what published files call them.
#[derive(Debug, Clone, Deserialize)]
pub struct DecoderConfig {
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Inner width of the MLP.
    pub intermediate_size: usize,
    /// Query heads.
    pub num_attention_heads: usize,
    num_key_value_heads: Option<usize>,
    head_dim: Option<usize>,
    #[serde(default = "default_eps")]
    rms_norm_eps: f64,
    #[serde(default = "default_theta")]
    rope_theta: f64,
    #[serde(default, alias = "rope_parameters")]
    rope_scaling: Option<Rope>,
    hidden_act: Option<String>,
    partial_rotary_factor: Option<f64>,
}

/// Rotary settings of `config.json`.
#[derive(Debug, Clone, Deserialize)]
struct Rope {
    #[serde(alias = "type")]
    rope_type: Option<String>,
    rope_theta: Option<f64>,
    partial_rotary_factor: Option<f64>,
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

impl DecoderConfig {
    /// Reads `text`, and the head's own fields as `T`; `label` (the part and the file) names it in the error.
    ///
    /// # Errors
    /// If it is no config of a Llama-like head.
    pub fn read<T: DeserializeOwned>(label: &str, text: &str) -> Result<(Self, T)> {
        let bad = |reason: String| Error::refused(format!("{label}/config.json: {reason}"));
        if text.is_empty() {
            return Err(bad("there is none, and it names the head's sizes".to_owned()));
        }
        let top: Map<String, Value> = serde_json::from_str(text).map_err(|error| bad(error.to_string()))?;
        // What stands at the top wins over what is nested.
        let mut merged = Map::new();
        for name in NESTED {
            merged.extend(top.get(name).and_then(Value::as_object).cloned().unwrap_or_default());
        }
        merged.extend(top);
        // Null is how these files write "unset".
        merged.retain(|_, value| !value.is_null());
        let merged = Value::Object(merged);
        let config: Self = serde_json::from_value(merged.clone()).map_err(|error| bad(error.to_string()))?;
        let own = serde_json::from_value(merged).map_err(|error| bad(error.to_string()))?;
        match config.hidden_act.as_deref() {
            None | Some("silu") => {}
            Some(other) => return Err(bad(format!("hidden_act is {other:?}, expected \"silu\""))),
        }
        if config.num_attention_heads == 0 || config.hidden_size == 0 {
            return Err(bad("num_attention_heads and hidden_size must be above 0".to_owned()));
        }
        let in_rope = config.rope_scaling.as_ref().and_then(|rope| rope.partial_rotary_factor);
        if let Some(share) = config.partial_rotary_factor.or(in_rope).filter(|share| *share != 1.0) {
            return Err(bad(format!("partial_rotary_factor is {share}, expected 1: every dimension is rotated")));
        }
        config.scaling().map_err(bad)?;
        Ok((config, own))
    }

    /// Dimensions of a head; `hidden_size / num_attention_heads` where unset.
    pub fn head_dim(&self) -> usize {
        self.head_dim.unwrap_or(self.hidden_size / self.num_attention_heads)
    }

    /// Key heads; as many as query heads where unset.
    pub fn kv_heads(&self) -> usize {
        self.num_key_value_heads.unwrap_or(self.num_attention_heads)
    }

    /// Epsilon of the norms.
    pub fn eps(&self) -> f32 {
        self.rms_norm_eps as f32
    }

    /// The rotary frequencies.
    ///
    /// # Errors
    /// As [`DecoderConfig::read`], which has looked already.
    pub fn rope(&self) -> Result<RopeTable> {
        let (theta, scaling) = self.scaling().map_err(Error::refused)?;
        Ok(RopeTable::new(self.head_dim(), theta, scaling))
    }

    /// Base and stretch of the rotary frequencies; the error says what is not supported.
    fn scaling(&self) -> Result<(f64, RopeScaling), String> {
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
}
