//! Rotary position embedding as `config.json` describes it.
//!
//! Neighbours: `architectures` holds the settings, the kernels' `RopeTable` makes frequencies of them. Both
//! spellings are read, `rope_theta` + `rope_scaling` (transformers 4) and `rope_parameters` (transformers 5). A scaling
//! type changes every logit, so an unknown one is refused rather than ignored. YaRN's defaults are those of
//! transformers 5: `factor` counts as written; some releases of transformers 4 put the ratio of the two contexts in its
//! place, which turns YaRN off for models that keep `max_position_embeddings` at the trained context.

use foretoken_kernels::ops::{RopeScaling, RopeTable, Yarn};
use serde::Deserialize;
use serde_json::Value;

use super::architectures::{ConfigError, Keys};

/// Rotary frequencies of a model.
#[derive(Debug, Clone, PartialEq)]
pub struct Rope {
    pub theta: f64,
    pub scaling: RopeScaling,
    /// What frequency i is divided by besides, `[head_dim / 2]`: how GGUF files write out Llama 3's scaling.
    pub factors: Option<Vec<f32>>,
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
    attention_factor: Option<f64>,
    beta_fast: Option<f64>,
    beta_slow: Option<f64>,
    mscale: Option<f64>,
    mscale_all_dim: Option<f64>,
    truncate: Option<bool>,
}

impl Rope {
    /// The frequencies of the `head_dim / 2` rotated pairs.
    pub fn table(&self, head_dim: usize) -> RopeTable {
        let table = RopeTable::new(head_dim, self.theta, self.scaling);
        match &self.factors {
            Some(factors) => table.divided(factors),
            None => table,
        }
    }

    /// The context that the scaling reaches: models run under YaRN keep the trained one in `max_position_embeddings`.
    pub(super) fn stretched(&self, max_positions: usize) -> usize {
        match self.scaling {
            RopeScaling::Yarn(yarn) => {
                max_positions.max((yarn.factor * yarn.original_max_position_embeddings as f64) as usize)
            }
            _ => max_positions,
        }
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
    Ok(Rope { theta, scaling: scaling_of(&raw, config, key, keys)?, factors: None })
}

fn scaling_of(raw: &RawRope, config: &Value, key: &str, keys: &Keys<'_>) -> Result<RopeScaling, ConfigError> {
    let need = |name: &str, value: Option<f64>| {
        let expected = "a positive number, as the rope_type needs it";
        let damaged = || keys.refuse(&format!("{key}.{name}"), "missing or not positive", expected, "Add it");
        value.filter(|value| value.is_finite() && *value > 0.0).ok_or_else(damaged)
    };
    let original = raw.original_max_position_embeddings.or(config["original_max_position_embeddings"].as_f64());
    match raw.rope_type.as_deref().or(raw.old_type.as_deref()).unwrap_or("default") {
        "default" => Ok(RopeScaling::None),
        "linear" => Ok(RopeScaling::Linear { factor: need("factor", raw.factor)? }),
        "llama3" => {
            let low_freq_factor = need("low_freq_factor", raw.low_freq_factor)?;
            let high_freq_factor = need("high_freq_factor", raw.high_freq_factor)?;
            above(keys, &format!("{key}.high_freq_factor"), high_freq_factor, ("low_freq_factor", low_freq_factor))?;
            Ok(RopeScaling::Llama3 {
                factor: need("factor", raw.factor)?,
                low_freq_factor,
                high_freq_factor,
                original_max_position_embeddings: need("original_max_position_embeddings", original)? as usize,
            })
        }
        "yarn" => {
            let (trained, trained_key) =
                (config["max_position_embeddings"].as_f64(), "original_max_position_embeddings");
            let original = need(trained_key, original.or(trained))?;
            let factor = need("factor", raw.factor.or(trained.map(|trained| trained / original)))?;
            let (beta_fast, beta_slow) = (raw.beta_fast.unwrap_or(32.0), raw.beta_slow.unwrap_or(1.0));
            let (beta_fast, beta_slow) = (need("beta_fast", Some(beta_fast))?, need("beta_slow", Some(beta_slow))?);
            above(keys, &format!("{key}.beta_fast"), beta_fast, ("beta_slow", beta_slow))?;
            Ok(RopeScaling::Yarn(Yarn {
                factor,
                original_max_position_embeddings: original as usize,
                beta_fast,
                beta_slow,
                attention_factor: need("attention_factor", Some(attention_factor(raw, factor)))?,
                truncate: raw.truncate.unwrap_or(true),
            }))
        }
        other => {
            let fix = "Remove the key to run the model within its original context, if its makers allow that";
            Err(keys.refuse(&format!("{key}.rope_type"), other, "default, linear, llama3 or yarn", fix))
        }
    }
}

fn above(keys: &Keys<'_>, key: &str, value: f64, (low_key, low): (&str, f64)) -> Result<(), ConfigError> {
    if value > low {
        return Ok(());
    }
    Err(keys.refuse(key, value, format!("more than {low_key} = {low}"), "The config is damaged"))
}

/// As given, else the paper's `0.1 ln(factor) + 1`, or DeepSeek's ratio of two such with their own slopes.
fn attention_factor(raw: &RawRope, factor: f64) -> f64 {
    let mscale = |slope: f64| if factor <= 1.0 { 1.0 } else { 0.1 * slope * factor.ln() + 1.0 };
    let slopes = raw.mscale.zip(raw.mscale_all_dim).filter(|(one, all)| *one != 0.0 && *all != 0.0);
    let suggested = slopes.map_or_else(|| mscale(1.0), |(one, all)| mscale(one) / mscale(all));
    raw.attention_factor.unwrap_or(suggested)
}
