//! The dot products in f64, inputs rounded as the op defines for the weights' dtype.
//!
//! The rounding of the inputs is part of the op's definition and not an error of it, so it is done here as well;
//! what the tolerance has to cover is then only the order and the precision of the sum.

use crate::blocks::Linear;
use crate::weight::{Weight, WeightDtype};
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
            let dot: f64 = inputs(weight, x).zip(&weights).map(|(x, w)| x * f64::from(*w)).sum();
            out[r * weight.rows() + o] = dot + bias;
        }
    }
    out
}

fn inputs(weight: &Weight, x: &[f32]) -> impl Iterator<Item = f64> {
    let dtype = weight.dtype();
    let rounded = move |x: &[f32]| -> Vec<f64> {
        let greatest = x.iter().fold(0f32, |greatest, x| greatest.max(x.abs()));
        let (scale, inverse) = (greatest / 127.0, if greatest > 0.0 { 127.0 / greatest } else { 0.0 });
        let value = |x: &f32| match dtype {
            WeightDtype::F32 | WeightDtype::F16 => f64::from(*x),
            WeightDtype::Bf16 => bf16::from_f32(*x).to_f64(),
            _ => f64::from((x * inverse).round_ties_even()) * f64::from(scale),
        };
        x.iter().map(value).collect()
    };
    x.chunks(if dtype == WeightDtype::Q4K || weight.folds() { 256 } else { 32 }).flat_map(rounded)
}
