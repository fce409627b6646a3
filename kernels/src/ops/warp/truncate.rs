//! Selection of the greatest tokens without a sort of the vocabulary.
//!
//! The bounds are exact, not heuristic. The k-th greatest of the maxima of disjoint blocks is at most the k-th greatest
//! value. And tokens that each weigh less than (1 - top_p) * total / vocab weigh less than 1 - top_p together, so
//! top-p never needs them; half of that bound leaves room for rounding.

use super::WarpScratch;
use std::cmp::Ordering;

/// Tokens per block maximum.
const BLOCK: usize = 64;
/// Greatest tokens that top-p sorts first; each further batch is four times as large.
const FIRST_BATCH: usize = 64;

/// A token that may survive.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate {
    logit: f32,
    pub id: u32,
    pub weight: f32,
}

/// Greatest logit first, then lowest id.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    b.logit.total_cmp(&a.logit).then(a.id.cmp(&b.id))
}

fn collect(logits: &[f32], candidates: &mut Vec<Candidate>, is_kept: impl Fn(usize, f32) -> bool) {
    candidates.clear();
    candidates.reserve(logits.len());
    for (id, logit) in logits.iter().enumerate() {
        if is_kept(id, *logit) {
            // -0 and +0 are one logit: the sum makes both +0, so that total_cmp ties them.
            candidates.push(Candidate { logit: *logit + 0.0, id: id as u32, weight: 0.0 });
        }
    }
}

/// The `k` greatest tokens, in no order.
pub(super) fn top_k<'a>(logits: &[f32], k: usize, scratch: &'a mut WarpScratch) -> &'a mut Vec<Candidate> {
    let bound = kth_block_maximum(logits, k, &mut scratch.maxima);
    collect(logits, &mut scratch.candidates, |_, logit| logit >= bound);
    let candidates = &mut scratch.candidates;
    if k < candidates.len() {
        candidates.select_nth_unstable_by(k - 1, order);
        candidates.truncate(k);
    }
    candidates
}

/// A value that at least `k` logits reach.
fn kth_block_maximum(logits: &[f32], k: usize, maxima: &mut Vec<f32>) -> f32 {
    maxima.clear();
    maxima.extend(
        logits.chunks(BLOCK).map(|block| block.iter().fold(f32::NEG_INFINITY, |a, b| if *b > a { *b } else { a })),
    );
    if k > maxima.len() {
        return f32::NEG_INFINITY;
    }
    let (_, bound, _) = maxima.select_nth_unstable_by(k - 1, |a, b| b.total_cmp(a));
    *bound
}

/// A superset of what top-p keeps, in no order.
pub(super) fn heavier<'a>(
    logits: &[f32],
    weights: &[f32],
    total: f32,
    top_p: f32,
    scratch: &'a mut WarpScratch,
) -> &'a mut Vec<Candidate> {
    let bound = 0.5 * (1.0 - top_p) * total / logits.len() as f32;
    // The greatest token weighs 1; it stays whatever top_p says.
    let bound = bound.min(1.0);
    collect(logits, &mut scratch.candidates, |id, _| weights[id] >= bound);
    &mut scratch.candidates
}

/// Moves the smallest set of greatest candidates whose weight reaches `target` to the front, sorted; returns its size.
pub(super) fn top_p(candidates: &mut [Candidate], target: f64) -> usize {
    let (mut sorted, mut batch, mut sum) = (0, FIRST_BATCH, 0.0);
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let len = batch.min(rest.len());
        if len < rest.len() {
            rest.select_nth_unstable_by(len - 1, order);
        }
        rest[..len].sort_unstable_by(order);
        for (index, candidate) in rest[..len].iter().enumerate() {
            sum += f64::from(candidate.weight);
            if sum >= target {
                return sorted + index + 1;
            }
        }
        (sorted, batch) = (sorted + len, batch * 4);
    }
    candidates.len()
}
