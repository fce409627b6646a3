//! A head of one decoder layer on the target's hidden rows guesses, token by token or as a tree: EAGLE-1 (Li et al.,
//! 2401.15077), EAGLE-2's dynamic trees (2406.16858) and EAGLE-3 (2503.01840).
//!
//! Options and the export line only. [`config`] reads a published `config.json`, [`network`] is the head itself, [`eagle`]
//! the proposer.
#![forbid(unsafe_code)]

pub mod config;
pub mod eagle;
pub mod network;

use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftSampling, export_plugin};
use schemars::JsonSchema;
use serde::Deserialize;

pub use eagle::Eagle;

/// Options of `eagle`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct EagleOptions {
    /// The head's folder: `config.json` and weights. Which EAGLE it is shows in the names of its tensors.
    pub model: String,
    /// Longest draft, where drafts are chains.
    #[serde(default = "default_num_speculative_tokens")]
    pub num_speculative_tokens: usize,
    /// Drafts are trees of this shape, the most probable paths first (EAGLE-2); chains where unset.
    #[serde(default)]
    pub tree: Option<TreeShape>,
    /// Drafts are always this tree: paths of ranks (`[[0], [0, 0], [1]]` is the two most probable tokens, and the most
    /// probable one behind the first).
    #[serde(default)]
    pub choices: Option<Vec<Vec<usize>>>,
    /// How a chain's token is chosen from the head's logits; a tree's are always the most probable ones.
    #[serde(default)]
    pub draft_sampling: DraftSampling,
    /// How the head's weights are stored (`f32`, `bf16`, `f16`, `q8_0`); as in its file where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

fn default_num_speculative_tokens() -> usize {
    5
}

export_plugin! { proposer "eagle" => Eagle, "a one-layer head on the target's hidden rows guesses" }
