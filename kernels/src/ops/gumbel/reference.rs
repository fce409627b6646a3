//! The race with every logarithm taken.
//!
//! It makes the noise index by index through `noise::uniform`, so it also checks the blocks that the op makes.
//! The comparison is strict: the lowest id wins a tie.

use crate::noise::{NoiseKey, uniform};

/// The winner, or `None` if no probability is positive.
pub fn gumbel_argmax(probs: &[f32], key: NoiseKey) -> Option<u32> {
    let mut best: Option<(u32, f64)> = None;
    for (id, prob) in (0..).zip(probs).filter(|(_, prob)| **prob > 0.0) {
        let time = -uniform(key, id).ln() / f64::from(*prob);
        if best.is_none_or(|(_, best)| time < best) {
            best = Some((id, time));
        }
    }
    best.map(|(id, _)| id)
}
