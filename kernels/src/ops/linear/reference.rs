//! The dot products in f64, inputs rounded to bf16 for bf16 weights as the op defines.
//!
//! The rounding of the inputs is part of the op's definition and not an error of it, so it is done here as well;
//! what the tolerance has to cover is then only the order and the precision of the sum.

use crate::blocks::Linear;
use crate::weight::WeightDtype;
use half::bf16;

/// `[rows, out features]` of `x` (`[rows, in features]`).
pub fn linear(linear: &Linear, x: &[f32]) -> Vec<f64> {
    let weight = linear.weight();
    let mut weights = vec![0.0; weight.cols()];
    let mut out = vec![0.0; x.len() / weight.cols() * weight.rows()];
    for o in 0..weight.rows() {
        weight.row_f32(o, &mut weights);
        let bias = linear.bias().map_or(0.0, |bias| f64::from(bias[o]));
        for (r, x) in x.chunks_exact(weight.cols()).enumerate() {
            let dot: f64 = x.iter().zip(&weights).map(|(x, w)| input(weight.dtype(), *x) * f64::from(*w)).sum();
            out[r * weight.rows() + o] = dot + bias;
        }
    }
    out
}

fn input(dtype: WeightDtype, x: f32) -> f64 {
    match dtype {
        WeightDtype::F32 => f64::from(x),
        WeightDtype::Bf16 => bf16::from_f32(x).to_f64(),
    }
}
