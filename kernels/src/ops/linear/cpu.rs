//! A task of the linear: a block of weight rows times all packed input rows.
//!
//! Weights that lie row by row are walked by `rows`, bf16 in columns by `columns`, quantised ones by `panels`.

mod columns;
mod format;
mod panels;
mod rows;

pub(super) use panels::NOTES;

use super::PackedRows;
use crate::blocks::Linear;
use crate::shared::SharedMut;
use crate::simd::{Kernel, Simd};
use std::ops::Range;

/// Bytes ahead of their use at which weights are asked for: the processor's own prefetcher stops at every page.
const AHEAD: usize = 4096;

/// A block of weight rows times all packed input rows.
pub(super) struct WeightBlock<'a> {
    pub linear: &'a Linear,
    pub rows: Range<usize>,
    pub x: &'a PackedRows,
    pub out: &'a SharedMut<'a, f32>,
}

impl Kernel for WeightBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let weight = self.linear.weight();
        match (weight.dtype().is_quantised(), weight.is_in_columns()) {
            (true, _) => self.walk_panels::<S>(),
            (_, true) => self.walk_columns::<S>(),
            _ => self.walk_rows::<S>(),
        }
    }
}
