//! Independent heads on the target's last hidden row guess one position ahead each: Medusa (Cai et al., 2401.10774), and
//! the plain two-layer MLP head.
//!
//! Options and the export line only. [`heads`] are the networks, [`medusa`] the proposer.
#![forbid(unsafe_code)]

pub mod heads;
pub mod medusa;

use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftSampling, export_plugin};
use schemars::JsonSchema;
use serde::Deserialize;

pub use medusa::Medusa;

/// Options of `medusa`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MedusaOptions {
    /// The heads' folder or file. How many there are shows in the names of its tensors.
    pub model: String,
    /// Longest draft, where drafts are chains; as many as there are heads where unset.
    #[serde(default)]
    pub num_speculative_tokens: Option<usize>,
    /// Drafts are trees of this shape, the most probable paths first; `branch` is how many guesses of each head are looked at.
    #[serde(default)]
    pub tree: Option<TreeShape>,
    /// Drafts are always this tree: paths of ranks, as in `medusa_choices` (`[[0], [0, 0], [1]]` is the best two guesses of
    /// the first head, and under the best of them the best of the second).
    #[serde(default)]
    pub choices: Option<Vec<Vec<usize>>>,
    /// How a chain's token is chosen from a head's logits; a tree's are always the most probable ones.
    #[serde(default)]
    pub draft_sampling: DraftSampling,
    /// How the heads' weights are stored (`f32`, `bf16`, `f16`, `q8_0`); as in their file where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

export_plugin! { proposer "medusa" => Medusa, "independent heads guess the next tokens from one hidden row" }
