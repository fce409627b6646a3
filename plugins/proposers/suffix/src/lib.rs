//! Suffix decoding, after SuffixDecoding (arXiv 2411.04975): what most often followed the longest match, in the text so
//! far and in what earlier sequences wrote.
//!
//! Options and the export line only; [`suffix`] drafts, [`guess`] makes drafts from matches, [`automaton`] finds matches,
//! [`outputs`] remembers other sequences. It knows no model and costs about a microsecond a token. Where `ngram` repeats
//! the last thing that followed a few tokens, this one counts, trusts a match the further the longer it is, and can
//! branch where texts did.
#![forbid(unsafe_code)]

pub mod automaton;
pub mod guess;
pub mod outputs;
pub mod suffix;

use foretoken_plugin_api::export_plugin;
use schemars::JsonSchema;
use serde::Deserialize;

pub use suffix::Suffix;

/// Options of `suffix`; those that vLLM's suffix decoding has are named as there, without its prefix.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct SuffixOptions {
    /// Most tokens of a draft.
    pub num_speculative_tokens: usize,
    /// Most tokens of a draft for each token of the match.
    pub max_spec_factor: f64,
    /// Least estimated probability of a drafted token.
    pub min_token_prob: f64,
    /// Least tokens that a draft must hope for, the sum of its tokens' estimated probabilities; what promises less is left
    /// to the next proposer of the list, as in SuffixDecoding's hybrid. 0 drafts whatever was found.
    pub min_score: f64,
    /// Whether drafts may branch.
    pub tree: bool,
    /// MiB for the outputs of earlier sequences, the oldest forgotten first; 0 remembers none.
    pub max_shared_mb: usize,
}

impl Default for SuffixOptions {
    fn default() -> Self {
        Self {
            num_speculative_tokens: 16,
            max_spec_factor: 1.0,
            min_token_prob: 0.1,
            min_score: 0.0,
            tree: false,
            max_shared_mb: 64,
        }
    }
}

export_plugin! { proposer "suffix" => Suffix, "suffix decoding: what most often followed the longest match, here and in earlier outputs" }
