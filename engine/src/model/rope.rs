//! Rotary position embedding as `config.json` describes it.
//!
//! Neighbours: `architectures` holds the settings, the kernels' `RopeTable` makes frequencies of them. Both
//! spellings are read, `rope_theta` + `rope_scaling` (transformers 4) and `rope_parameters` (transformers 5). A scaling
//! type changes every logit, so an unknown one is refused rather than ignored.

use foretoken_kernels::ops::{RopeScaling, RopeTable};
use serde::Deserialize;
use serde_json::Value;

use super::architectures::{ConfigError, Keys};

/// Rotary frequencies of a model.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
}

#[derive(Debug, Default, Deserialize)]
struct RawRope {
    rope_type: Option<String>,
    #[serde(rename = "type")]
    old_type: Option<String>,
    rope_theta: Option<f64>,
    factor: Option<f64>,
    low_freq_factor: Option<f64>,
    high_freq_factor: Option<f64>,
    original_max_position_embeddings: Option<f64>,
    partial_rotary_factor: Option<f64>,
}

impl Rope {
    /// The frequencies of the `head_dim / 2` rotated pairs.
    pub fn table(&self, head_dim: usize) -> RopeTable {
        RopeTable::new(head_dim, self.theta, self.scaling)
    }
}

/// The settings in a parsed `config.json`.
pub(super) fn rope_of(config: &Value, keys: &Keys<'_>) -> Result<Rope, ConfigError> {
    let key = if config["rope_parameters"].is_null() { "rope_scaling" } else { "rope_parameters" };
    let raw: RawRope = match &config[key] {
        Value::Null => RawRope::default(),
        table => RawRope::deserialize(table)
            .map_err(|error| keys.refuse(key, table, "a table of numbers and a rope_type", &error.to_string()))?,
    };
    let partial = raw.partial_rotary_factor.or(config["partial_rotary_factor"].as_f64());
    if partial.is_some_and(|share| share != 1.0) {
        let got = partial.unwrap_or_default();
        return Err(keys.refuse("partial_rotary_factor", got, 1, "Partly rotated heads are not supported"));
    }
    let theta = raw.rope_theta.or(config["rope_theta"].as_f64()).unwrap_or(10_000.0);
    if !(theta.is_finite() && theta > 0.0) {
        return Err(keys.refuse("rope_theta", theta, "a positive number", "The config is damaged"));
    }
    Ok(Rope { theta, scaling: scaling_of(&raw, config, key, keys)? })
}

fn scaling_of(raw: &RawRope, config: &Value, key: &str, keys: &Keys<'_>) -> Result<RopeScaling, ConfigError> {
    let need = |name: &str, value: Option<f64>| {
        let expected = "a positive number, as the rope_type needs it";
        let damaged = || keys.refuse(&format!("{key}.{name}"), "missing or not positive", expected, "Add it");
        value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(damaged)
    };
    match raw.rope_type.as_deref().or(raw.old_type.as_deref()).unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: need("factor", raw.factor)? }),
        "llama3" => {
            let original = raw.original_max_position_embeddings;
            let original = original.or(config["original_max_position_embeddings"].as_f64());
            let low_freq_factor = need("low_freq_factor", raw.low_freq_factor)?;
            let high_freq_factor = need("high_freq_factor", raw.high_freq_factor)?;
            if high_freq_factor <= low_freq_factor {
                let expected = format!("more than low_freq_factor = {low_freq_factor}");
                let key = format!("{key}.high_freq_factor");
                return Err(keys.refuse(&key, high_freq_factor, expected, "The config is damaged"));
            }
            Ok(RopeScaling::Llama3 {
                factor: need("factor", raw.factor)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: need("original_max_position_embeddings", original)? as usize,
            })
        }
        other => {
            let fix = "Remove the key to run the model within its original context, if its makers allow that";
            Err(keys.refuse(&format!("{key}.rope_type"), other, "default, linear or llama3", fix))
        }
    }
}
