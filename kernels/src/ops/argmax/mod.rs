//! The greedy token: the greatest logit, the lowest id where several share it.
//!
//! A NaN is reported instead of skipped: greedy text that silently ignores broken logits would look like a model.

mod cpu;
pub mod reference;

pub(crate) use cpu::greatest;

use crate::simd::{SimdLevel, dispatch};

/// The id of the greatest value of `row` (`[vocab]`); `None` if it is empty or has a NaN.
pub fn argmax(row: &[f32]) -> Option<u32> {
    dispatch(SimdLevel::detect(), cpu::ArgMax { row })
}
