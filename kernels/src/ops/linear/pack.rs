//! Inputs of a linear, rounded and laid out once for all weights that read them.
//!
//! For f32 weights a row is its values; for bf16 weights it is rounded to bf16 and kept as bf16 where the level has a
//! bf16 dot product, else widened again with evens and odds apart, as the weights' own widening leaves them. Rows are
//! padded with zeros to whole steps, so no kernel has a tail on the input's side.

use crate::exec::Exec;
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch, padded};
use crate::weight::WeightDtype;

/// Packed inputs `[rows, cols]`; a buffer that grows once and is reused.
#[derive(Debug)]
pub struct PackedRows {
    lines: Vec<Line>,
    rows: usize,
    cols: usize,
    row_lines: usize,
    dtype: WeightDtype,
    simd: SimdLevel,
}

impl Default for PackedRows {
    fn default() -> Self {
        let (dtype, simd) = (WeightDtype::F32, SimdLevel::Portable);
        Self { lines: Vec::new(), rows: 0, cols: 0, row_lines: 0, dtype, simd }
    }
}

impl PackedRows {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `x` (`[rows, cols]`) for weights of `dtype`, at the level of `exec`.
    pub fn pack(&mut self, exec: &Exec, dtype: WeightDtype, cols: usize, x: &[f32]) {
        assert!(cols > 0 && x.len().is_multiple_of(cols), "x must be [rows, cols]: {} values, {cols} cols", x.len());
        (self.dtype, self.simd, self.cols, self.rows) = (dtype, exec.simd(), cols, x.len() / cols);
        self.row_lines = match dtype {
            WeightDtype::F32 => cols.div_ceil(LANES),
            WeightDtype::Bf16 if self.simd == SimdLevel::Avx512Bf16 => cols.div_ceil(2 * LANES),
            WeightDtype::Bf16 => 2 * cols.div_ceil(2 * LANES),
        };
        self.lines.resize(self.rows * self.row_lines, Line([0.0; LANES]));
        let row_lines = self.row_lines;
        let shared = SharedMut::new(&mut self.lines);
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

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[Line] {
        &self.lines[row * self.row_lines..(row + 1) * self.row_lines]
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
                WeightDtype::F32 => {
                    for (x, line) in x.chunks(LANES).zip(lines) {
                        line.0 = padded(x, 0.0);
                    }
                }
                WeightDtype::Bf16 => {
                    let step_lines = if S::PAIRED_INPUT { 1 } else { 2 };
                    for (x, lines) in x.chunks(2 * LANES).zip(lines.chunks_exact_mut(step_lines)) {
                        pack_pairs::<S>(x, lines);
                    }
                }
            }
        }
    }
}

/// Up to 32 values as bf16.
#[inline(always)]
fn pack_pairs<S: Simd>(x: &[f32], lines: &mut [Line]) {
    let split = x.len().min(LANES);
    let halves = [padded(&x[..split], 0.0), padded(&x[split..], 0.0)];
    let mut bits = [[0u16; LANES]; 2];
    for (bits, half) in bits.iter_mut().zip(&halves) {
        S::store_bf16(S::load(half), bits);
    }
    let bits = bits.as_flattened();
    if S::PAIRED_INPUT {
        let word = |i: usize| u32::from(bits[2 * i]) | u32::from(bits[2 * i + 1]) << 16;
        lines[0].0 = std::array::from_fn(|i| f32::from_bits(word(i)));
    } else {
        for (odd, line) in lines.iter_mut().enumerate() {
            line.0 = std::array::from_fn(|i| f32::from_bits(u32::from(bits[2 * i + odd]) << 16));
        }
    }
}
