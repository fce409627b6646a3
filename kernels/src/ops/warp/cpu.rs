//! Weights `exp((logit - greatest) / temperature)` for all, truncation among candidates, one normalisation.
//!
//! Without truncation nothing is selected and three vectorised passes do it all. With one, the weights of the kept
//! tokens are carried over in their candidates while the row is cleared.

use super::truncate::{self, Candidate};
use super::{WarpError, WarpParams, WarpScratch};
use crate::ops::argmax::greatest;
use crate::ops::softmax::{divide, shifted_exp, sum};
use crate::simd::{Kernel, Simd};

pub(super) struct Warp<'a> {
    pub logits: &'a [f32],
    pub params: &'a WarpParams,
    pub probs: &'a mut [f32],
    pub scratch: &'a mut WarpScratch,
}

impl Kernel for Warp<'_> {
    type Output = Result<(), WarpError>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Result<(), WarpError> {
        let Self { logits, params, probs, scratch } = self;
        let greatest = finite_greatest::<S>(logits)?;
        if params.temperature <= 0.0 {
            probs.fill(0.0);
            let first = logits.iter().position(|logit| *logit == greatest);
            probs[first.expect("the greatest logit is one of them")] = 1.0;
            return Ok(());
        }
        probs.copy_from_slice(logits);
        shifted_exp::<S>(probs, greatest, params.temperature);
        let has_top_k = params.top_k > 0 && (params.top_k as usize) < logits.len();
        let has_top_p = params.top_p < 1.0;
        if has_top_k || has_top_p {
            let total = sum::<S>(probs);
            let candidates = if has_top_k {
                truncate::top_k(logits, params.top_k as usize, scratch)
            } else {
                truncate::heavier(logits, probs, total as f32, params.top_p, scratch)
            };
            keep(candidates, has_top_k, params, (probs, total));
        } else if params.min_p > 0.0 {
            for weight in probs.iter_mut().filter(|weight| **weight < params.min_p) {
                *weight = 0.0;
            }
        }
        let total = sum::<S>(probs);
        divide::<S>(probs, total as f32);
        Ok(())
    }
}

#[inline(always)]
fn finite_greatest<S: Simd>(logits: &[f32]) -> Result<f32, WarpError> {
    let vocab = logits.len();
    if logits.is_empty() {
        return Err(WarpError::Empty { vocab });
    }
    match greatest::<S>(logits) {
        None => Err(WarpError::NotANumber { vocab }),
        Some(f32::INFINITY) => Err(WarpError::Infinite { vocab }),
        Some(f32::NEG_INFINITY) => Err(WarpError::Empty { vocab }),
        Some(greatest) => Ok(greatest),
    }
}

/// Applies top-p and min-p to `candidates` and clears the weights of all other tokens in `row.0`.
fn keep(candidates: &mut Vec<Candidate>, has_top_k: bool, params: &WarpParams, row: (&mut [f32], f64)) {
    let (weights, total) = row;
    for candidate in candidates.iter_mut() {
        candidate.weight = weights[candidate.id as usize];
    }
    if params.top_p < 1.0 {
        let total = match has_top_k {
            true => candidates.iter().map(|c| f64::from(c.weight)).sum(),
            false => total,
        };
        let kept = truncate::top_p(candidates, f64::from(params.top_p) * total);
        candidates.truncate(kept);
    }
    weights.fill(0.0);
    for candidate in candidates.iter().filter(|candidate| candidate.weight >= params.min_p) {
        weights[candidate.id as usize] = candidate.weight;
    }
}
