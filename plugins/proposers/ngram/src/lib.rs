//! Prompt lookup, after Saxena's *prompt lookup decoding* and vLLM's `ngram`: what followed the same words before.
//!
//! Options and the export line only; [`ngram`] drafts, [`index`] remembers. It knows no model and costs a hash lookup, so
//! it pays wherever text repeats itself: code, quotations, summaries of the prompt, loops.
#![forbid(unsafe_code)]

pub mod index;
pub mod ngram;

use foretoken_plugin_api::export_plugin;
use schemars::JsonSchema;
use serde::Deserialize;

pub use ngram::Ngram;

/// Options of `ngram`, named as in vLLM.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct NgramOptions {
    /// Fewest last tokens that must have occurred before. Default: 2, or `prompt_lookup_max` where only that is set.
    pub prompt_lookup_min: Option<usize>,
    /// Most last tokens that are looked up. Default: 5, or `prompt_lookup_min` where only that is set.
    pub prompt_lookup_max: Option<usize>,
    /// Longest draft.
    pub num_speculative_tokens: usize,
}

impl Default for NgramOptions {
    fn default() -> Self {
        Self { prompt_lookup_min: None, prompt_lookup_max: None, num_speculative_tokens: 5 }
    }
}

export_plugin! { proposer "ngram" => Ngram, "prompt lookup: what followed the same words before" }
