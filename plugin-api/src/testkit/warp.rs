//! From logits to a distribution, slowly and obviously, in f64: what samplers are measured against.

use super::noise::uniform;
use crate::types::{NoiseKey, SamplingParams, Token};

/// The lowest id among the largest logits.
///
/// # Panics
/// If `logits` is empty.
pub fn argmax(logits: &[f32]) -> Token {
    assert!(!logits.is_empty(), "argmax of nothing");
    let best = (1..logits.len()).fold(0, |best, token| if logits[token] > logits[best] { token } else { best });
    best as Token
}

/// target_prob `[vocab]`: temperature, then top-k, top-p, min-p, softmax; one-hot at temperature 0.
pub fn target_prob(logits: &[f32], params: &SamplingParams) -> Vec<f64> {
    let mut probs = vec![0.0; logits.len()];
    if params.is_greedy() {
        probs[argmax(logits) as usize] = 1.0;
        return probs;
    }
    let largest = f64::from(logits[argmax(logits) as usize]);
    let weight = |logit: f32| ((f64::from(logit) - largest) / f64::from(params.temperature)).exp();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]).then(a.cmp(&b)));
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|&token| weight(logits[token])).sum();
    let mut mass = 0.0;
    let kept_by_top_p = order.iter().take_while(|&&token| {
        let enough = mass >= f64::from(params.top_p);
        mass += weight(logits[token]) / total;
        params.top_p >= 1.0 || !enough
    });
    let kept = kept_by_top_p.take_while(|&&token| weight(logits[token]) >= f64::from(params.min_p));
    kept.for_each(|&token| probs[token] = weight(logits[token]));
    let total: f64 = probs.iter().sum();
    probs.iter_mut().for_each(|prob| *prob /= total);
    probs
}

/// Up to `count` tokens drawn from `probs` one after the other without replacement, by Gumbel-max with the noise of
/// `key` from index `first` on; the first alone is a plain draw.
pub fn gumbel_draw(probs: &[f64], key: NoiseKey, first: u32, count: usize) -> Vec<Token> {
    let score = |token: usize| probs[token].ln() - (-uniform(key, first + token as u32).ln()).ln();
    let mut scored: Vec<(usize, f64)> =
        (0..probs.len()).filter(|&token| probs[token] > 0.0).map(|token| (token, score(token))).collect();
    scored.sort_by(|a, b| b.1.total_cmp(&a.1));
    scored.truncate(count);
    scored.into_iter().map(|(token, _)| token as Token).collect()
}
