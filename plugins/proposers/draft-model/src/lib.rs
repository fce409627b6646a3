//! A smaller model of the same vocabulary guesses, token by token (Leviathan et al., 2211.17192; Chen et al., 2302.01318).
//!
//! Options and the export line only. [`draft_model`] is the proposer of chains, [`tree`] that of trees (SpecInfer, Miao et
//! al., 2305.09781; Sequoia, Chen et al., 2402.12374), [`passes`] decides which rows run together, [`chain`] is one
//! sequence's part in a step, [`drafter`] says which model it is,
//! [`vocabulary`] translates for one with another tokenizer. The network is the engine's own decoder, served through the
//! host, so this crate is strategy and holds no weights; its KV lives in a lane and follows the target's slots.
#![forbid(unsafe_code)]

pub mod chain;
pub mod draft_model;
pub mod drafter;
pub mod passes;
pub mod tree;
pub mod vocabulary;

use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftSampling, export_plugin};
use schemars::JsonSchema;
use serde::Deserialize;

pub use draft_model::DraftModel;
pub use tree::Tree;

/// Options of `draft-model`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DraftModelOptions {
    /// The draft model's folder.
    #[serde(default)]
    pub model: Option<String>,
    /// What its vocabulary has to do with the target's.
    #[serde(default)]
    pub vocabulary: Vocabulary,
    /// Instead of another model: a copy of the target, its weights stored so.
    #[serde(default)]
    pub quantize: Option<Quantize>,
    /// Longest draft.
    #[serde(default = "default_num_speculative_tokens")]
    pub num_speculative_tokens: usize,
    /// A draft ends before the token of which the draft model's likeliest one has less than this probability. 0 never ends it.
    #[serde(default)]
    pub min_draft_prob: f32,
    /// What becomes of the KV computed while drafting.
    #[serde(default)]
    pub kv_strategy: KvStrategy,
    /// How a token is chosen from the draft model's logits.
    #[serde(default)]
    pub draft_sampling: DraftSampling,
    /// How the draft model's weights are stored; as the target's where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

fn default_num_speculative_tokens() -> usize {
    5
}

/// How a copy of the target is stored that drafts for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Quantize {
    /// 8 bits a weight.
    #[serde(rename = "q8_0")]
    Q8_0,
    /// 4 bits a weight.
    Q4,
}

/// What a draft model's vocabulary has to do with the target's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Vocabulary {
    /// It is the same.
    #[default]
    Same,
    /// It is another: drafts are made of the tokens that both have.
    Intersection,
}

/// What becomes of the KV computed while drafting.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum KvStrategy {
    /// Rows of kept tokens are copied to their slots, the rest is dropped.
    #[default]
    KeepAndRollback,
    /// Everything is dropped; the next draft computes the kept tokens again.
    Discard,
}

/// Options of `tree`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TreeOptions {
    /// The draft model's folder.
    #[serde(default)]
    pub model: Option<String>,
    /// What its vocabulary has to do with the target's.
    #[serde(default)]
    pub vocabulary: Vocabulary,
    /// Instead of another model: a copy of the target, its weights stored so.
    #[serde(default)]
    pub quantize: Option<Quantize>,
    /// Drafts are grown to this shape, the most probable paths first. The default where `choices` is unset.
    #[serde(default)]
    pub tree: Option<TreeShape>,
    /// Drafts are always this tree: paths of ranks (`[[0], [0, 0], [1]]` is two tokens, and one behind the first).
    #[serde(default)]
    pub choices: Option<Vec<Vec<usize>>>,
    /// How the nodes of `choices` are chosen.
    #[serde(default)]
    pub candidates: Candidates,
    /// How the draft model's weights are stored; as the target's where unset.
    #[serde(default)]
    pub dtype: Option<String>,
}

/// How the children of a node are chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Candidates {
    /// The most probable tokens.
    #[default]
    TopK,
    /// Drawn from the draft model's distribution, no token twice; the most probable ones at temperature 0.
    WithoutReplacement,
}

export_plugin! {
    proposer "draft-model" => DraftModel, "a smaller model guesses for a larger one";
    proposer "tree" => Tree, "a smaller model guesses a tree of continuations";
}
