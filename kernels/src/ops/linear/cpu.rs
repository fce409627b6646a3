//! A block of weight rows times all packed input rows.
//!
//! A tile of M weight rows by N input rows lives in registers. Tiles of every size compute an element the same way,
//! so their choice is a matter of speed only. The loop over chunks of inputs is outside of the loop over the block's
//! weight rows: the block is read from memory for the first chunk and from the cache for the others.

use super::PackedRows;
use super::format::{Bf16, F32, Format};
use crate::blocks::Linear;
use crate::shared::SharedMut;
use crate::simd::{Kernel, Line, Simd};
use crate::weight::WeightDtype;
use std::ops::Range;

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
        match self.linear.weight().dtype() {
            WeightDtype::F32 => self.walk::<S, F32>(self.linear.weight().f32s()),
            WeightDtype::Bf16 => self.walk::<S, Bf16>(self.linear.weight().bf16s()),
        }
    }
}

impl WeightBlock<'_> {
    #[inline(always)]
    fn walk<S: Simd, T: Format<S>>(&self, weights: &[T::Element]) {
        let mut first = 0;
        while first < self.x.rows() {
            let left = self.x.rows() - first;
            let count = left.div_ceil(left.div_ceil(S::TILE_ROWS));
            match count {
                1 => self.chunk::<S, T, 1>(weights, first),
                2 => self.chunk::<S, T, 2>(weights, first),
                3 => self.chunk::<S, T, 3>(weights, first),
                4 => self.chunk::<S, T, 4>(weights, first),
                5 => self.chunk::<S, T, 5>(weights, first),
                6 => self.chunk::<S, T, 6>(weights, first),
                7 => self.chunk::<S, T, 7>(weights, first),
                _ => self.chunk::<S, T, 8>(weights, first),
            }
            first += count;
        }
    }

    /// Input rows `first .. first + N` over the whole block.
    #[inline(always)]
    fn chunk<S: Simd, T: Format<S>, const N: usize>(&self, weights: &[T::Element], first: usize) {
        // Rarer tiles of a level with few registers would only be dead code.
        if N > S::TILE_ROWS {
            return;
        }
        let inputs: [&[Line]; N] = std::array::from_fn(|n| self.x.row(first + n));
        let mut row = self.rows.start;
        // A lone input row has few sums to hide the latency of the additions behind, so its tile is taller.
        row = match (N, S::REGISTERS) {
            (1, 32) => self.tiles::<S, T, 8, N>(weights, &inputs, first, row),
            (2..=5, 32) | (1, _) => self.tiles::<S, T, 4, N>(weights, &inputs, first, row),
            (_, 32) => self.tiles::<S, T, 3, N>(weights, &inputs, first, row),
            _ => self.tiles::<S, T, 2, N>(weights, &inputs, first, row),
        };
        self.tiles::<S, T, 1, N>(weights, &inputs, first, row);
    }

    /// Tiles of M weight rows from `row` on, as many as fit; returns the first row left over.
    #[inline(always)]
    fn tiles<S: Simd, T: Format<S>, const M: usize, const N: usize>(
        &self,
        weights: &[T::Element],
        inputs: &[&[Line]; N],
        first: usize,
        mut row: usize,
    ) -> usize {
        let (cols, outs) = (self.x.cols(), self.linear.weight().rows());
        while row + M <= self.rows.end {
            let sums = tile::<S, T, M, N>(std::array::from_fn(|m| &weights[(row + m) * cols..][..cols]), inputs);
            for (m, sums) in sums.into_iter().enumerate() {
                let bias = self.linear.bias().map_or(0.0, |bias| bias[row + m]);
                for (n, sum) in sums.into_iter().enumerate() {
                    // SAFETY: `row + m` belongs to this task's block of weight rows, so this column is its own.
                    unsafe { self.out.write((first + n) * outs + row + m, S::sum(sum) + bias) };
                }
            }
            row += M;
        }
        row
    }
}

/// The lanes of M x N dot products, each one sum over ascending k.
#[inline(always)]
fn tile<S: Simd, T: Format<S>, const M: usize, const N: usize>(
    weights: [&[T::Element]; M],
    inputs: &[&[Line]; N],
) -> [[S::F; N]; M] {
    let split = weights.map(T::split);
    let steps = split[0].0.len();
    assert!(split.iter().all(|(chunks, _)| chunks.len() == steps));
    assert!(inputs.iter().all(|lines| lines.len() >= steps * T::LINES));
    // The processor's own prefetcher is slow to follow M short rows; the next tile's lie right behind this one's.
    let ahead = M * size_of_val(weights[0]);
    let mut sums = [[S::splat(0.0); N]; M];
    for k in 0..steps {
        let loaded: [T::Loaded; M] = std::array::from_fn(|m| {
            // SAFETY: k < steps, the length of every list of chunks by the first assert.
            let chunk = unsafe { split[m].0.get_unchecked(k) };
            S::prefetch(std::ptr::from_ref(chunk).cast::<u8>().wrapping_add(ahead));
            T::load(chunk)
        });
        for n in 0..N {
            // SAFETY: (k + 1) * LINES <= steps * LINES, which every input has by the second assert.
            let lines = unsafe { inputs[n].get_unchecked(k * T::LINES..(k + 1) * T::LINES) };
            for m in 0..M {
                sums[m][n] = T::dot(sums[m][n], loaded[m], lines);
            }
        }
    }
    if !split[0].1.is_empty() {
        for m in 0..M {
            let loaded = T::load(&T::pad(split[m].1));
            for n in 0..N {
                sums[m][n] = T::dot(sums[m][n], loaded, &inputs[n][steps * T::LINES..]);
            }
        }
    }
    sums
}
