//! The definition over the whole vocabulary, counting anew for every token, in f64.
//!
//! Takes slices where the op takes iterators, and looks at tokens that nothing has touched, too;
//! that is what shows that the op's scratch is clean between calls.

use super::Penalties;

/// The penalised logits.
pub fn penalise(
    logits: &[f32],
    bias: &[(u32, f32)],
    penalties: &Penalties,
    prompt: &[u32],
    output: &[u32],
) -> Vec<f64> {
    let one = |(token, logit): (u32, &f32)| {
        let bias: f64 = bias.iter().filter(|(t, _)| *t == token).map(|(_, b)| f64::from(*b)).sum();
        let (mut x, count) = (f64::from(*logit) + bias, output.iter().filter(|t| **t == token).count());
        if count > 0 || prompt.contains(&token) {
            let repetition = f64::from(penalties.repetition);
            x = if x > 0.0 { x / repetition } else { x * repetition };
        }
        x -= f64::from(penalties.frequency) * count as f64;
        if count > 0 { x - f64::from(penalties.presence) } else { x }
    };
    (0..).zip(logits).map(one).collect()
}
