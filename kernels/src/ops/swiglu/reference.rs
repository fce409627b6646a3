//! The formula in f64.
//!
//! Uses the standard library's exponential, which knows nothing of the range reduction of `simd::math`.
//! For very negative gates exp(-gate) overflows to infinity and the quotient is 0, as it should be.

/// `gate / (1 + exp(-gate)) * up`.
pub fn swiglu(gate: &[f32], up: &[f32]) -> Vec<f64> {
    let silu = |x: f64| x / (1.0 + (-x).exp());
    gate.iter().zip(up).map(|(gate, up)| silu(f64::from(*gate)) * f64::from(*up)).collect()
}
