//! The formula in f64.
//!
//! It rounds once where the op rounds three times; that the op rounds exactly three times is a test of its own.
//! Returns a new row, where the op works in place.

/// `uncond + scale * (cond - uncond)`.
pub fn guide(cond: &[f32], uncond: &[f32], scale: f32) -> Vec<f64> {
    let guided = |(c, u): (&f32, &f32)| f64::from(*u) + f64::from(scale) * (f64::from(*c) - f64::from(*u));
    cond.iter().zip(uncond).map(guided).collect()
}
