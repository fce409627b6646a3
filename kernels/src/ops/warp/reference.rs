//! The sampling order with a full sort, in f64.
//!
//! Sorts the whole vocabulary and takes each truncation from its definition, so that the selection code in `truncate`
//! has something to be equal to. Ties keep their id order because the sort is stable.

use super::WarpParams;

/// Probabilities of finite (or `-inf`) logits.
pub fn warp(logits: &[f32], params: &WarpParams) -> Vec<f64> {
    let mut ids: Vec<usize> = (0..logits.len()).collect();
    // A stable sort keeps ids ascending among equal logits.
    ids.sort_by(|a, b| logits[*b].partial_cmp(&logits[*a]).expect("no NaN"));
    let mut probs = vec![0.0; logits.len()];
    if params.temperature <= 0.0 {
        probs[ids[0]] = 1.0;
        return probs;
    }
    let scaled = |id: usize| (f64::from(logits[id]) - f64::from(logits[ids[0]])) / f64::from(params.temperature);
    let weights: Vec<f64> = (0..logits.len()).map(|id| scaled(id).exp()).collect();
    let greatest = ids[0];
    if params.top_k > 0 {
        ids.truncate(params.top_k as usize);
    }
    if params.top_p < 1.0 {
        let total: f64 = ids.iter().map(|id| weights[*id]).sum();
        let mut sum = 0.0;
        let crossing = ids.iter().position(|id| {
            sum += weights[*id];
            sum >= f64::from(params.top_p) * total
        });
        ids.truncate(crossing.map_or(ids.len(), |crossing| crossing + 1));
    }
    ids.retain(|id| weights[*id] >= f64::from(params.min_p) * weights[greatest]);
    let total: f64 = ids.iter().map(|id| weights[*id]).sum();
    for id in ids {
        probs[id] = weights[id] / total;
    }
    probs
}
