//! A draw by exponential race: `argmin -ln(u_i) / prob_i`, which is Gumbel-max in other words.
//!
//! The same noise picks the same token from similar distributions, which is why a draft drawn with the target's noise
//! so often matches (Daliri et al., 2408.07978). Token i's noise is `noise::uniform(key, i)`, a number with a
//! resolution of 2^-32 strictly inside (0, 1), and the race is run in f64. So the law is that of `probs` up to terms
//! of order 2^-32: ties between the quantised times, won by the lowest id, and the missing tail below 2^-33.

mod cpu;
pub mod reference;

use crate::noise::NoiseKey;

/// The winner among tokens of positive probability. `probs` is `[vocab]` and need not sum to 1.
///
/// Panics if no probability is positive.
pub fn gumbel_argmax(probs: &[f32], key: NoiseKey) -> u32 {
    let winner = cpu::gumbel_argmax(probs, key);
    winner.expect("gumbel_argmax: no probability is positive")
}
