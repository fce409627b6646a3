//! A draw by inverse distribution function.
//!
//! Rounding must never return a token of probability 0 (a truncated one, or one the residual rule excluded), so the
//! sum is f64, normalised by its own total, and the search stops at tokens of positive probability only.

mod cpu;
pub mod reference;

/// The token whose share of the summed `probs` (`[vocab]`, any positive total) holds `u` in (0, 1).
///
/// Panics if no probability is positive: the caller's distribution is broken, and any token would hide that.
pub fn sample(probs: &[f32], u: f64) -> u32 {
    let drawn = cpu::sample(probs, u);
    drawn.expect("sample: no probability is positive")
}
