//! The definition: the first token whose cumulative share exceeds u.
//!
//! Sums every prefix anew, which is quadratic and leaves nothing to get wrong.
//! The fallback to the last positive token covers a `u` that rounds up to the total.

/// The drawn token, or `None` if no probability is positive.
pub fn sample(probs: &[f32], u: f64) -> Option<u32> {
    let total: f64 = probs.iter().map(|p| f64::from(*p)).sum();
    let share = |id: usize| probs[..=id].iter().map(|p| f64::from(*p)).sum::<f64>() / total;
    let first = (0..probs.len()).find(|id| probs[*id] > 0.0 && share(*id) > u);
    first.or_else(|| probs.iter().rposition(|p| *p > 0.0)).map(|id| id as u32)
}
