//! A block of weight rows, stored row by row, times all packed input rows.
//!
//! A tile of M weight rows by N input rows lives in registers. Tiles of every size compute an element the same way,
//! so their choice is a matter of speed only. The loop over chunks of inputs is outside of the loop over the block's
//! weight rows: the block is read from memory for the first chunk and from the cache for the others.
//!
//! Where a level needs several registers for 16 lanes, a tile is summed part by part, a stretch of k at a time: lanes
//! do not mix before the horizontal sum, so the parts may go one after the other, and each can have all registers.

use super::WeightBlock;
use super::format::{Bf16, F16, F32, Format};
use crate::simd::{LANES, Line, MOST_PARTS, Simd};
use crate::weight::WeightDtype;
use std::ops::Range;

/// Bytes ahead of their use at which weights are asked for: the processor's own prefetcher stops at every page.
const AHEAD: usize = 4096;

/// Steps of k after which a tile of several parts goes on to the next part, so that weights are still in the
/// first-level cache when their other part is read.
const STRETCH: usize = 16;

impl WeightBlock<'_> {
    /// The block, if its weights lie row by row.
    #[inline(always)]
    pub(super) fn walk_rows<S: Simd>(&self) {
        let weight = self.linear.weight();
        match weight.dtype() {
            WeightDtype::F32 => self.walk::<S, F32>(weight.f32s()),
            WeightDtype::F16 => self.walk::<S, F16>(weight.u16s()),
            _ => self.walk::<S, Bf16>(weight.u16s()),
        }
    }

    #[inline(always)]
    fn walk<S: Simd, T: Format<S>>(&self, weights: &[T::Element]) {
        let mut first = 0;
        while first < self.x.rows() {
            let left = self.x.rows() - first;
            // Even chunks, or as many as can be of the size that has a tile of its own.
            let count = if S::PARTS == 1 { left.div_ceil(left.div_ceil(S::TILE_ROWS)) } else { left.min(S::TILE_ROWS) };
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
        // Few input rows have few sums to hide the latency of the additions behind, so their tiles are taller; but one row
        // is bound by reading, where two weight rows are enough and more would be streams to follow.
        row = match (N, S::TILE_ROWS) {
            (1, _) => self.tiles::<S, T, 2, N>(weights, &inputs, first, row),
            (2..=5, 8) => self.tiles::<S, T, 4, N>(weights, &inputs, first, row),
            (_, 8) | (4, _) => self.tiles::<S, T, 3, N>(weights, &inputs, first, row),
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
            for (m, sums) in sums.iter().enumerate() {
                let bias = self.linear.bias().map(|bias| bias[row + m]);
                for (n, sum) in sums.iter().enumerate() {
                    let sum = S::sum(S::load(&sum.0));
                    let sum = bias.map_or(sum, |bias| sum + bias);
                    let at = (first + n) * outs + row + m;
                    // SAFETY: `row + m` belongs to this task's block of weight rows, so this column is its own.
                    let out = unsafe { &mut self.out.range(at..at + 1)[0] };
                    *out = if self.adds { *out + sum } else { sum };
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
) -> [[Line; N]; M] {
    let split = weights.map(T::split);
    let steps = split[0].0.len();
    assert!(split.iter().all(|(chunks, _)| chunks.len() == steps));
    assert!(inputs.iter().all(|lines| lines.len() >= steps * T::LINES));
    let mut sums = [[Line([0.0; LANES]); N]; M];
    let chunks = split.map(|(chunks, _)| chunks);
    match (S::PARTS, N) {
        (1, _) => walk::<S, T, M, N, 0, 1>(chunks, inputs, 0..steps, &mut sums),
        // The few sums of few input rows fit the registers in both parts at once.
        (_, ..3) => walk::<S, T, M, N, 0, 2>(chunks, inputs, 0..steps, &mut sums),
        _ => {
            for first in (0..steps).step_by(STRETCH) {
                let stretch = first..steps.min(first + STRETCH);
                walk::<S, T, M, N, 0, 1>(chunks, inputs, stretch.clone(), &mut sums);
                walk::<S, T, M, N, 1, 2>(chunks, inputs, stretch, &mut sums);
            }
        }
    }
    if !split[0].1.is_empty() {
        let rest = split.map(|(_, rest)| [T::pad(rest)]);
        let inputs: [&[Line]; N] = std::array::from_fn(|n| &inputs[n][steps * T::LINES..]);
        let rest: [&[T::Chunk]; M] = std::array::from_fn(|m| &rest[m][..]);
        match S::PARTS {
            1 => walk::<S, T, M, N, 0, 1>(rest, &inputs, 0..1, &mut sums),
            _ => walk::<S, T, M, N, 0, 2>(rest, &inputs, 0..1, &mut sums),
        }
    }
    sums
}

/// Adds steps `steps` to parts FROM to TO of the sums.
#[inline(always)]
fn walk<S: Simd, T: Format<S>, const M: usize, const N: usize, const FROM: usize, const TO: usize>(
    chunks: [&[T::Chunk]; M],
    inputs: &[&[Line]; N],
    steps: Range<usize>,
    sums: &mut [[Line; N]; M],
) {
    // The processor's own prefetcher is slow to follow M short rows; the next tile's lie right behind this one's.
    let ahead = if N == 1 { AHEAD } else { M * size_of_val(chunks[0]) };
    // Loops, because a closure that is not inlined would lose the level's instructions.
    let mut registers = [[[S::load_part(&[0.0; LANES], 0); N]; M]; MOST_PARTS];
    for part in FROM..TO {
        for m in 0..M {
            for n in 0..N {
                registers[part][m][n] = S::load_part(&sums[m][n].0, part);
            }
        }
    }
    for k in steps {
        for part in FROM..TO {
            for half in 0..T::HALVES {
                let mut loaded = [None; M];
                for m in 0..M {
                    // SAFETY: `tile` asserts that every list of chunks is as long as its steps, which k is below.
                    let chunk = unsafe { chunks[m].get_unchecked(k) };
                    if (part, half) == (0, 0) {
                        S::prefetch(std::ptr::from_ref(chunk).cast::<u8>().wrapping_add(ahead));
                    }
                    loaded[m] = Some(T::load(chunk, part, half));
                }
                for n in 0..N {
                    // SAFETY: `tile` asserts that every input has LINES lines for each step.
                    let lines = unsafe { inputs[n].get_unchecked(k * T::LINES..(k + 1) * T::LINES) };
                    let input = T::input(lines, part, half);
                    for m in 0..M {
                        if let Some(weights) = loaded[m] {
                            registers[part][m][n] = T::dot(registers[part][m][n], weights, input);
                        }
                    }
                }
            }
        }
    }
    for part in FROM..TO {
        for m in 0..M {
            for n in 0..N {
                S::store_part(registers[part][m][n], &mut sums[m][n].0, part);
            }
        }
    }
}
