//! The formula in f64.
//!
//! The greatest value is still subtracted first: f64 too overflows on large logits.
//! Returns a new row, where the op works in place.

/// `exp(x - max) / sum`.
pub fn softmax(row: &[f32]) -> Vec<f64> {
    let greatest = row.iter().fold(f64::NEG_INFINITY, |a, b| a.max(f64::from(*b)));
    let weights: Vec<f64> = row.iter().map(|x| (f64::from(*x) - greatest).exp()).collect();
    let total: f64 = weights.iter().sum();
    weights.iter().map(|w| w / total).collect()
}
