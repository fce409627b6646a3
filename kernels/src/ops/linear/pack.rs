//! Inputs of a linear, rounded and laid out once for all weights that read them.
//!
//! For f32 and f16 weights a row is its values; for bf16 weights it is rounded to bf16 and kept as bf16 where the level
//! has a bf16 dot product, else widened again with evens and odds apart, as the weights' own widening leaves them. For
//! quantised weights every 32 values are rounded to int8 with a scale of their own. Rows are padded with zeros to whole
//! steps, so no kernel has a tail on the input's side. Many rows for bf16 weights, at a level with few registers, are laid
//! side by side, six by six: lane by lane of the sums, step by step, the evens and the odds as f32 (`columns`).

use super::cpu::NOTES;
use crate::exec::Exec;
use crate::profile::Op;
use crate::quant::BlockFormat;
use crate::shared::SharedMut;
use crate::simd::int8::{BLOCK, InputLayout};
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch, padded};
use crate::weight::WeightDtype;

/// Input rows that lie side by side in columns.
pub(super) const COLUMN_ROWS: usize = 6;
/// Rows from which columns pay for laying out the weights.
const MANY_ROWS: usize = 48;

/// Packed inputs `[rows, cols]`; a buffer that grows once and is reused.
#[derive(Debug)]
pub struct PackedRows {
    lines: Vec<Line>,
    rows: usize,
    cols: usize,
    row_lines: usize,
    is_columns: bool,
    dtype: WeightDtype,
    simd: SimdLevel,
}

impl Default for PackedRows {
    fn default() -> Self {
        let (dtype, simd) = (WeightDtype::F32, SimdLevel::Portable);
        Self { lines: Vec::new(), rows: 0, cols: 0, row_lines: 0, is_columns: false, dtype, simd }
    }
}

impl PackedRows {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `x` (`[rows, cols]`) for weights of `dtype`, at the level of `exec`.
    pub fn pack(&mut self, exec: &Exec, dtype: WeightDtype, cols: usize, x: &[f32]) {
        let _timer = exec.time(Op::Pack);
        assert!(cols > 0 && x.len().is_multiple_of(cols), "x must be [rows, cols]: {} values, {cols} cols", x.len());
        (self.dtype, self.simd, self.cols, self.rows) = (dtype, exec.simd(), cols, x.len() / cols);
        self.is_columns = self.rows >= MANY_ROWS && dtype == WeightDtype::Bf16 && dispatch(self.simd, HasParts);
        self.row_lines = match self.is_columns {
            true => 2 * cols.div_ceil(2 * LANES),
            false => apart(dispatch(self.simd, RowLines { dtype, cols })),
        };
        self.lines.resize(self.rows * self.row_lines, Line([0.0; LANES]));
        let row_lines = self.row_lines;
        let shared = SharedMut::new(&mut self.lines);
        if self.is_columns {
            let rows = self.rows;
            exec.for_rows(rows.div_ceil(COLUMN_ROWS), COLUMN_ROWS * cols, &|blocks| {
                let rows = blocks.start * COLUMN_ROWS..rows.min(blocks.end * COLUMN_ROWS);
                // SAFETY: parts are disjoint ranges of blocks of rows, and so of lines.
                let lines = unsafe { shared.range(rows.start * row_lines..rows.end * row_lines) };
                let x = &x[rows.start * cols..rows.end * cols];
                dispatch(exec.simd(), PackColumns { x, cols, lines, row_lines });
            });
            return;
        }
        exec.for_rows(x.len() / cols, cols, &|rows| {
            // SAFETY: parts are disjoint ranges of rows, and so of lines.
            let lines = unsafe { shared.range(rows.start * row_lines..rows.end * row_lines) };
            let x = &x[rows.start * cols..rows.end * cols];
            dispatch(exec.simd(), Pack { x, cols, dtype, lines, row_lines });
        });
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Values per row.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The weights' dtype that the rows were packed for.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }

    pub(super) fn simd(&self) -> SimdLevel {
        self.simd
    }

    /// Whether rows lie side by side.
    pub(super) fn is_columns(&self) -> bool {
        self.is_columns
    }

    /// If so, the `count` rows from `first` on, where a block of rows starts: `[16 lanes, steps, even or odd, count]`.
    #[inline(always)]
    pub(super) fn columns(&self, first: usize, count: usize) -> &[f32] {
        assert!(self.is_columns && first.is_multiple_of(COLUMN_ROWS) && count == (self.rows - first).min(COLUMN_ROWS));
        let lines = &self.lines[first * self.row_lines..(first + count) * self.row_lines];
        // SAFETY: a `Line` is 16 f32 without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[Line] {
        &self.lines[row * self.row_lines..(row + 1) * self.row_lines]
    }
}

/// A stride of at least `lines` at which neighbouring rows do not compete for the same sets of the first-level cache.
fn apart(lines: usize) -> usize {
    if lines.is_multiple_of(8) { lines + 3 } else { lines }
}

/// Whether a level has fewer registers than its 16 lanes want.
struct HasParts;

impl Kernel for HasParts {
    type Output = bool;

    #[inline(always)]
    fn run<S: Simd>(self) -> bool {
        S::PARTS > 1
    }
}

/// Whole blocks of rows, and the last one.
struct PackColumns<'a> {
    x: &'a [f32],
    cols: usize,
    lines: &'a mut [Line],
    row_lines: usize,
}

impl Kernel for PackColumns<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let steps = self.cols.div_ceil(2 * LANES);
        let blocks = self.lines.chunks_mut(COLUMN_ROWS * self.row_lines);
        for (x, lines) in self.x.chunks(COLUMN_ROWS * self.cols).zip(blocks) {
            let rows = x.len() / self.cols;
            // SAFETY: a `Line` is 16 f32 without padding.
            let out: &mut [f32] =
                unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) };
            for (row, x) in x.chunks_exact(self.cols).enumerate() {
                for (step, x) in x.chunks(2 * LANES).enumerate() {
                    for (i, bits) in round_pairs::<S>(x).as_flattened().iter().enumerate() {
                        let (lane, odd) = (i / 2, i % 2);
                        out[((lane * steps + step) * 2 + odd) * rows + row] = f32::from_bits(u32::from(*bits) << 16);
                    }
                }
            }
        }
    }
}

/// Lines of a packed row.
struct RowLines {
    dtype: WeightDtype,
    cols: usize,
}

impl Kernel for RowLines {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        let blocks = self.cols.div_ceil(BLOCK);
        match input_layout::<S>(self.dtype) {
            Some(layout) => (blocks * (layout.words() + NOTES)).div_ceil(LANES),
            None if self.dtype != WeightDtype::Bf16 => self.cols.div_ceil(LANES),
            None => S::INPUT_LINES * self.cols.div_ceil(2 * LANES),
        }
    }
}

/// How int8 inputs for a dtype are laid out; `None` if its inputs are not int8.
#[inline(always)]
fn input_layout<S: Simd>(dtype: WeightDtype) -> Option<InputLayout> {
    match BlockFormat::of(dtype)? {
        BlockFormat::Q8_0 | BlockFormat::Q6K => Some(S::WIDE_INPUT),
        BlockFormat::Q4_0 | BlockFormat::Q4K => Some(S::NARROW_INPUT),
    }
}

struct Pack<'a> {
    x: &'a [f32],
    cols: usize,
    dtype: WeightDtype,
    lines: &'a mut [Line],
    row_lines: usize,
}

impl Kernel for Pack<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (x, lines) in self.x.chunks_exact(self.cols).zip(self.lines.chunks_exact_mut(self.row_lines)) {
            match self.dtype {
                WeightDtype::F32 | WeightDtype::F16 => {
                    for (x, line) in x.chunks(LANES).zip(lines) {
                        line.0 = padded(x, 0.0);
                    }
                }
                WeightDtype::Bf16 => {
                    for (x, lines) in x.chunks(2 * LANES).zip(lines.chunks_exact_mut(S::INPUT_LINES)) {
                        pack_pairs::<S>(x, lines);
                    }
                }
                dtype => pack_int8::<S>(dtype, x, words_mut(lines)),
            }
        }
    }
}

/// Every 32 values as int8 with the scale greatest / 127, followed by the notes of all blocks.
#[inline(always)]
fn pack_int8<S: Simd>(dtype: WeightDtype, x: &[f32], words: &mut [i32]) {
    let (Some(format), Some(layout)) = (BlockFormat::of(dtype), input_layout::<S>(dtype)) else {
        return;
    };
    let (words, notes) = words.split_at_mut(x.len().div_ceil(BLOCK) * layout.words());
    let blocks = words.chunks_exact_mut(layout.words()).zip(notes.as_chunks_mut::<NOTES>().0);
    for (x, (words, notes)) in x.chunks(BLOCK).zip(blocks) {
        let split = x.len().min(LANES);
        let halves = [padded(&x[..split], 0.0), padded(&x[split..], 0.0)];
        let (low, high) = (S::load(&halves[0]), S::load(&halves[1]));
        let (least, most) = (S::min(low, high), S::max(low, high));
        let greatest = S::greatest(S::max(most, S::sub(S::splat(0.0), least)));
        let (scale, inverse) = (greatest / 127.0, if greatest > 0.0 { 127.0 / greatest } else { 0.0 });
        let mut quants = [0i8; BLOCK];
        for (half, quants) in [low, high].into_iter().zip(quants.as_chunks_mut::<LANES>().0) {
            // Adding 1.5 * 2^23 rounds to the nearest integer, ties to even, and leaves it in the lowest bits.
            let mut shifted = [0.0f32; LANES];
            S::store(S::add(S::mul(half, S::splat(inverse)), S::splat(12_582_912.0)), &mut shifted);
            for (quant, shifted) in quants.iter_mut().zip(shifted) {
                *quant = shifted.to_bits() as i8;
            }
        }
        layout.write(&quants, words);
        let sum_of = |quants: &[i8]| quants.iter().map(|quant| i32::from(*quant)).sum::<i32>();
        let (first, second) = (sum_of(&quants[..LANES]), sum_of(&quants[LANES..]));
        *notes = [scale.to_bits() as i32, 0, 0, 0];
        match format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => notes[1] = -format.bias() * (first + second),
            BlockFormat::Q4K => notes[1] = (-scale * (first + second) as f32).to_bits() as i32,
            BlockFormat::Q6K => (notes[1], notes[2]) = (-format.bias() * first, -format.bias() * second),
        }
    }
}

/// The bits of lines as words.
#[inline(always)]
fn words_mut(lines: &mut [Line]) -> &mut [i32] {
    // SAFETY: a `Line` is 64 plain bytes, aligned beyond an i32; any 4 bytes are an i32, and an f32 again.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

/// Up to 32 values, then zeros, rounded to bf16.
#[inline(always)]
fn round_pairs<S: Simd>(x: &[f32]) -> [[u16; LANES]; 2] {
    let split = x.len().min(LANES);
    let halves = [padded(&x[..split], 0.0), padded(&x[split..], 0.0)];
    let mut bits = [[0; LANES]; 2];
    for (bits, half) in bits.iter_mut().zip(&halves) {
        S::store_bf16(S::load(half), bits);
    }
    bits
}

/// Up to 32 values as bf16.
#[inline(always)]
fn pack_pairs<S: Simd>(x: &[f32], lines: &mut [Line]) {
    let bits = round_pairs::<S>(x);
    let bits = bits.as_flattened();
    if S::INPUT_LINES == 1 {
        let word = |i: usize| u32::from(bits[2 * i]) | u32::from(bits[2 * i + 1]) << 16;
        lines[0].0 = std::array::from_fn(|i| f32::from_bits(word(i)));
    } else {
        for (odd, line) in lines.iter_mut().enumerate() {
            line.0 = std::array::from_fn(|i| f32::from_bits(u32::from(bits[2 * i + odd]) << 16));
        }
    }
}
