//! The one sampling order, for target and drafts alike: temperature, top-k, top-p, min-p, softmax.
//!
//! Verification compares target_prob with draft_prob, so both must come out of the same function. Penalties come
//! before it ([`penalise`](crate::ops::penalise())). Truncated tokens get exactly 0.
//!
//! "Greater" means by logit, then by lower id, so a truncation has exactly one outcome. The vocabulary is never
//! sorted: top-k finds a threshold from block maxima, top-p first drops all tokens that together weigh less than
//! 1 - top_p, and both then select among the few that are left.

mod cpu;
pub mod reference;
mod truncate;

use crate::simd::{SimdLevel, dispatch};

/// How a request shapes its distributions.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarpParams {
    /// Divides the logits; 0 is greedy.
    pub temperature: f32,
    /// Keep the k greatest; 0 is off.
    pub top_k: u32,
    /// Keep the smallest set of greatest tokens whose probability reaches this, the crossing token included; 1 is off.
    pub top_p: f32,
    /// Keep tokens of at least this share of the greatest probability; 0 is off.
    pub min_p: f32,
}

impl Default for WarpParams {
    fn default() -> Self {
        Self { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// Logits that stand for no distribution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum WarpError {
    /// A logit is NaN.
    #[error("the logits contain NaN: no distribution over the {vocab} tokens")]
    NotANumber {
        /// Number of logits.
        vocab: usize,
    },
    /// A logit is +inf. It might mean "this token", but no model says so on purpose, so it is a fault.
    #[error("the logits contain +inf: no distribution over the {vocab} tokens")]
    Infinite {
        /// Number of logits.
        vocab: usize,
    },
    /// Every token is forbidden, or there is none.
    #[error("all {vocab} logits are -inf: no token is allowed")]
    Empty {
        /// Number of logits.
        vocab: usize,
    },
}

/// Candidates of a truncation, reused between calls.
#[derive(Debug, Default)]
pub struct WarpScratch {
    candidates: Vec<truncate::Candidate>,
    maxima: Vec<f32>,
}

impl WarpScratch {
    /// An empty scratch, which grows to the vocabulary once.
    pub fn new() -> Self {
        Self::default()
    }
}

/// Probabilities of `logits` under `params`; both `[vocab]`.
///
/// Temperature 0 gives one for the greatest logit and zero for the others. An out-of-range parameter (negative
/// temperature, top_p of 0 or less) acts as its nearest sensible value: greedy, and the greatest token alone.
pub fn warp(
    logits: &[f32],
    params: &WarpParams,
    probs: &mut [f32],
    scratch: &mut WarpScratch,
) -> Result<(), WarpError> {
    assert_eq!(probs.len(), logits.len(), "probs must be [vocab] like logits");
    dispatch(SimdLevel::detect(), cpu::Warp { logits, params, probs, scratch })
}
