//! A decoder layer on the target's hidden rows guesses, token by token or as a tree: EAGLE-1 (Li et al., 2401.15077),
//! EAGLE-2's dynamic trees (2406.16858), EAGLE-3 (2503.01840), and the multi-token-prediction modules that models bring
//! along (DeepSeek-V3, 2412.19437, section 2.2).
//!
//! Options and the export line only. [`load`] reads published files, [`network`] is the head itself, [`recurrent`] the
//! proposers.
#![forbid(unsafe_code)]

pub mod load;
pub mod network;
pub mod recurrent;

use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftSampling, export_plugin};
use schemars::JsonSchema;
use serde::Deserialize;

pub use recurrent::{Eagle, Mtp};

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

/// Options of `mtp`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MtpOptions {
    /// The folder of the modules; the target's own where unset, since models bring them along.
    #[serde(default)]
    pub model: Option<String>,
    /// Longest draft, where drafts are chains. Past the last module the first follows.
    #[serde(default = "default_num_speculative_tokens")]
    pub num_speculative_tokens: usize,
    /// Drafts are trees of this shape, the most probable paths first; chains where unset.
    #[serde(default)]
    pub tree: Option<TreeShape>,
    /// Drafts are always this tree: paths of ranks, as in `eagle`.
    #[serde(default)]
    pub choices: Option<Vec<Vec<usize>>>,
    /// How a chain's token is chosen from the logits; a tree's are always the most probable ones.
    #[serde(default)]
    pub draft_sampling: DraftSampling,
    /// How the modules' weights are stored (`f32`, `bf16`, `f16`, `q8_0`); as in their file where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

export_plugin! {
    proposer "eagle" => Eagle, "a one-layer head on the target's hidden rows guesses";
    proposer "mtp" => Mtp, "the model's own multi-token-prediction modules guess";
}
