//! A task of the linear: a block of weight rows times all packed input rows.
//!
//! Weights that lie row by row are walked by `rows`, bf16 in columns by `columns`, quantised ones by `panels`;
//! where the processor has matrix instructions, bf16 and quantised ones by `tiles`.

mod columns;
mod format;
mod panels;
mod rows;
#[cfg(target_arch = "x86_64")]
mod tiles;

use super::PackedRows;
use crate::blocks::Linear;
use crate::quant::{BAND_ROWS, PANEL};
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch};
use crate::weight::Arrangement;
use std::ops::Range;

/// Lines of a chunk of inputs that are asked for before a walk: those of a span of quantised weights.
const FIRST_INPUT_LINES: usize = 132;

/// A block of weight rows times all packed input rows.
pub(super) struct WeightBlock<'a> {
    pub linear: &'a Linear,
    pub rows: Range<usize>,
    pub x: &'a PackedRows,
    pub out: &'a SharedMut<'a, f32>,
    /// Whether outputs are added to what is there.
    pub adds: bool,
    /// Whether the thread has not just walked over what lies before it in memory, and asked for its first lines.
    pub begins: bool,
}

impl Kernel for WeightBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let weight = self.linear.weight();
        match (weight.dtype().is_quantised(), weight.arrangement()) {
            (true, _) => self.walk_panels::<S>(),
            (_, Arrangement::Columns) => self.walk_columns::<S>(),
            _ => self.walk_rows::<S>(),
        }
    }
}

impl WeightBlock<'_> {
    /// Multiplies the block at `level`.
    pub fn run(self, level: SimdLevel) {
        #[cfg(target_arch = "x86_64")]
        if take_tiles(self.x) {
            // SAFETY: an `Exec` never holds a level above `SimdLevel::detect`.
            return unsafe { tiles::walk(&self) };
        }
        dispatch(level, self);
    }

    /// The block's weight rows of each band that it meets.
    #[inline(always)]
    fn bands(&self) -> impl Iterator<Item = Range<usize>> {
        let Range { start, end } = self.rows;
        let bands = start / BAND_ROWS..end.div_ceil(BAND_ROWS);
        bands.map(move |band| start.max(band * BAND_ROWS)..end.min((band + 1) * BAND_ROWS))
    }

    /// Asks for the first lines of some chunks of inputs: other cores have packed a part of them, and one by one each would be
    /// waited for.
    #[inline(always)]
    fn ask_for_inputs<S: Simd>(&self, chunks: Range<usize>) {
        for line in chunks.flat_map(|chunk| self.x.chunk_lines(chunk).iter().take(FIRST_INPUT_LINES)) {
            S::prefetch(std::ptr::from_ref(line).cast());
        }
    }

    /// Asks for the lines that these input rows will write of a panel: they lie in the cache of a core that read them last.
    #[inline(always)]
    fn ask_for_output<S: Simd>(&self, inputs: Range<usize>, panel: usize) {
        for n in inputs {
            S::prefetch_write(self.out.address(n * self.linear.weight().rows() + panel * PANEL).cast());
        }
    }

    /// Writes what the input rows from `first` on give for the 16 weight rows from `row` on, as many as the block has.
    #[inline(always)]
    fn put_lines<S: Simd>(&self, first: usize, row: usize, lines: &[Line]) {
        let outs = self.linear.weight().rows();
        if self.rows.end - row < PANEL {
            for (n, line) in lines.iter().enumerate() {
                self.put(first + n, row, &line.0);
            }
            return;
        }
        // SAFETY: these are rows of this task's block of weights, so these columns are its own.
        let mut out = unsafe { self.out.columns(first * outs + row, lines.len(), outs, PANEL) };
        let bias = self.linear.bias().and_then(|bias| bias[row..].first_chunk()).map(|bias| S::load(bias));
        for line in lines {
            // SAFETY: 16 of these columns of one of these rows.
            let to = unsafe { &mut *out.cast::<[f32; LANES]>() };
            out = out.wrapping_add(outs);
            let mut sum = S::load(&line.0);
            if let Some(bias) = bias {
                sum = S::add(sum, bias);
            }
            if self.adds {
                sum = S::add(sum, S::load(to));
            }
            S::store(sum, to);
        }
    }

    /// Writes what input row `n` gives for the 16 weight rows from `row` on, as many as the block has.
    #[inline(always)]
    fn put(&self, n: usize, row: usize, lanes: &[f32; LANES]) {
        let outs = self.linear.weight().rows();
        let rows = row..self.rows.end.min(row + PANEL);
        // SAFETY: these are rows of this task's block of weights, so these columns are its own.
        let out = unsafe { self.out.range(n * outs + rows.start..n * outs + rows.end) };
        let bias = self.linear.bias().map(|bias| &bias[rows]);
        let Ok(out) = <&mut [f32; LANES]>::try_from(&mut *out) else {
            return put_some(lanes, bias, self.adds, out);
        };
        let mut lanes = *lanes;
        if let Some(bias) = bias.and_then(|bias| bias.first_chunk::<LANES>()) {
            add(&mut lanes, bias);
        }
        if self.adds {
            add(&mut lanes, out);
        }
        *out = lanes;
    }
}

#[inline(always)]
fn add(lanes: &mut [f32; LANES], others: &[f32; LANES]) {
    for i in 0..LANES {
        lanes[i] += others[i];
    }
}

/// Fewer than 16 outputs.
#[cold]
#[inline(never)]
fn put_some(lanes: &[f32; LANES], bias: Option<&[f32]>, adds: bool, out: &mut [f32]) {
    for (i, out) in out.iter_mut().enumerate() {
        let sum = bias.map_or(lanes[i], |bias| lanes[i] + bias[i]);
        *out = if adds { *out + sum } else { sum };
    }
}

/// Whether matrix instructions multiply these inputs.
pub(super) fn take_tiles(x: &PackedRows) -> bool {
    #[cfg(target_arch = "x86_64")]
    if x.simd() == SimdLevel::Amx {
        return tiles::serve(x);
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = x;
    false
}

/// Whether long walks over the weights serve these inputs best: few inputs take one walk or little more, quantised weights
/// are walked over band by band, and matrix instructions outrun what the second-level cache is given to read, so they read
/// inputs as rarely as can be.
pub(super) fn walks_are_long(x: &PackedRows) -> bool {
    if take_tiles(x) {
        return true;
    }
    x.dtype().is_quantised() || x.rows() <= FEW_INPUTS
}

const FEW_INPUTS: usize = 4;
