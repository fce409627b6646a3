//! `exp(x - max) / sum`, in place.
//!
//! The sum is made of 16-lane sums in a fixed order, so a row's probabilities do not depend on the level or on what
//! is computed beside it. Divides by the sum, rather than multiplying by a rounded reciprocal.

mod cpu;
pub mod reference;

pub(crate) use cpu::{divide, shifted_exp, sum};

use crate::simd::{SimdLevel, dispatch};

/// Turns `row` (`[vocab]` logits) into probabilities. `-inf` becomes exactly 0; a NaN, or a row without any finite
/// value, gives NaNs (`ops::warp` reports them as errors instead).
pub fn softmax(row: &mut [f32]) {
    dispatch(SimdLevel::detect(), cpu::Softmax { row });
}
