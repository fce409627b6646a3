//! A block of masks behind the anchor is filled in by one pass of a few layers, whose context is the target's own hidden
//! rows: DFlash (2602.06036), as a chain or as the best tree over its positions (DDTree, 2604.12989).
//!
//! Options and the export line only. [`network`] is the block's network, [`dflash`] the proposer.
#![forbid(unsafe_code)]

pub mod dflash;
pub mod network;

use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftSampling, export_plugin};
use schemars::JsonSchema;
use serde::Deserialize;

pub use dflash::DFlash;

/// Options of `dflash`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DFlashOptions {
    /// The folder of the block's network: `config.json` and weights.
    pub model: String,
    /// Longest draft, where drafts are chains; one less than the block it was trained on where unset.
    #[serde(default)]
    pub num_speculative_tokens: Option<usize>,
    /// Drafts are trees of this shape, the most probable paths first; `branch` is how many guesses of each position are
    /// looked at.
    #[serde(default)]
    pub tree: Option<TreeShape>,
    /// Drafts are always this tree: paths of ranks (`[[0], [0, 0], [1]]` is the best two guesses of the first position, and
    /// under the best of them the best of the second).
    #[serde(default)]
    pub choices: Option<Vec<Vec<usize>>>,
    /// How a chain's token is chosen from a position's logits; a tree's are always the most probable ones.
    #[serde(default)]
    pub draft_sampling: DraftSampling,
    /// How the weights are stored (`f32`, `bf16`, `f16`, `q8_0`); as in their file where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

export_plugin! { proposer "dflash" => DFlash, "one pass over a block of masks guesses the next tokens" }
