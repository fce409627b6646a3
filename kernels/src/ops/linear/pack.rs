//! Inputs of a linear, rounded and laid out once for all weights that read them.
//!
//! For f32 and f16 weights a row is its values; for bf16 weights it is rounded to bf16 and kept as bf16 where the level
//! has a bf16 dot product, else widened again with evens and odds apart, as the weights' own widening leaves them. For
//! quantised weights every 32 values, for q4_K 256, are rounded to int8 with a scale of their own. Rows are padded with
//! zeros to whole steps, so no kernel has a tail on the input's side.
//!
//! A chunk of rows lies side by side where each loaded vector of weights meets all of them: for bf16 weights in columns
//! pair by pair of k, even and odd apart but where the level multiplies pairs; for quantised weights block by block, its
//! words and then its notes. For matrix instructions up to 16 rows of bf16 lie side by side,
//! step by step, and quantised rows one by one, all blocks' words and then all blocks' notes.

mod int8;

pub(super) use int8::notes_of;

use super::cpu::take_tiles;
use crate::exec::Exec;
use crate::profile::Op;
use crate::quant::{BlockFormat, SUPER};
use crate::shared::SharedMut;
use crate::simd::int8::{BLOCK, InputLayout, QUADS};
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch, padded};
use crate::weight::{Arrangement, Weight, WeightDtype};
use int8::{Scales, block_notes, pack_int8, round_blocks, scaled_alike};
use std::ops::Range;

/// Most input rows that lie side by side for weights in columns, at any level.
pub(super) const MOST_COLUMN_ROWS: usize = 6;
/// The same for quantised weights; no fewer.
const MOST_PANEL_ROWS: usize = 8;

/// Words that belong to a block of a quantised row: the inputs' scale, then where its sums start; for q4_K also the
/// sums of a pair of blocks as two i16, times 8 and as they are, in either, and of the second block not the scale, which all
/// of a super-block have, but where sums of one that folds start (for tiles with the first block's scale, and of q8_0 alone). Side
/// by side only as many as the format has.
pub(super) const NOTES: usize = 4;

/// Packed inputs `[rows, cols]`; a buffer that grows once and is reused.
#[derive(Debug)]
pub struct PackedRows {
    lines: Vec<Line>,
    rows: usize,
    cols: usize,
    row_lines: usize,
    /// Of rows side by side; none where each lies by itself.
    chunks: Chunks,
    arrangement: Arrangement,
    dtype: WeightDtype,
    folds: bool,
    simd: SimdLevel,
}

impl Default for PackedRows {
    fn default() -> Self {
        let (dtype, simd) = (WeightDtype::F32, SimdLevel::Portable);
        let (arrangement, chunks) = (Arrangement::Rows, Chunks::default());
        Self { lines: Vec::new(), rows: 0, cols: 0, row_lines: 0, chunks, arrangement, dtype, folds: false, simd }
    }
}

impl PackedRows {
    /// An empty buffer.
    pub fn new() -> Self {
        Self::default()
    }

    /// Packs `x` (`[rows, cols]`) for weights of the dtype, columns and layout of `weight`, at the level of `exec`.
    pub fn pack(&mut self, exec: &Exec, weight: &Weight, x: &[f32]) {
        let _timer = exec.time(Op::Pack);
        let (dtype, cols) = (weight.dtype(), weight.cols());
        assert!(cols > 0 && x.len().is_multiple_of(cols), "x must be [rows, cols]: {} values, {cols} cols", x.len());
        (self.dtype, self.simd, self.cols, self.rows) = (dtype, exec.simd(), cols, x.len() / cols);
        (self.folds, self.arrangement) = (weight.folds(), arrangement_for(weight, self.simd));
        let arrangement = self.arrangement;
        let lines = dispatch(self.simd, RowLines { dtype, cols, arrangement });
        self.row_lines = if arrangement == Arrangement::Rows { apart(lines) } else { lines };
        self.lines.resize(self.rows * self.row_lines, Line([0.0; LANES]));
        let row_lines = self.row_lines;
        self.chunks = Chunks::default();
        if let Some(most) = dispatch(self.simd, MostRows { dtype, arrangement, by_tiles: take_tiles(self) }) {
            self.chunks = Chunks::of(self.rows, most);
            let blocks = if dtype.is_quantised() { paired_blocks(cols) } else { cols.div_ceil(BLOCK) };
            let chunks = self.chunks;
            let shared = SharedMut::new(words_mut(&mut self.lines));
            let folds = self.folds;
            let alike = rounded_as(dtype, folds).map_or(1, scaled_alike);
            let groups = blocks.div_ceil(alike);
            let chunk_elements = self.rows.div_ceil(chunks.count.max(1)) * alike * BLOCK;
            // A single chunk too is shared among the threads, block by block.
            exec.for_rows(chunks.count * groups, chunk_elements, &|mut part| {
                while !part.is_empty() {
                    let (chunk, first) = (part.start / groups, part.start % groups);
                    let groups = first..groups.min(first + part.len());
                    part.start += groups.len();
                    let blocks = groups.start * alike..blocks.min(groups.end * alike);
                    let rows = chunks.get(chunk);
                    let (x, start) = (&x[rows.start * cols..rows.end * cols], rows.start * row_lines * LANES);
                    dispatch(exec.simd(), PackChunk { x, cols, dtype, folds, blocks, words: &shared, start });
                }
            });
            return;
        }
        let (rows, folds, shared) = (self.rows, self.folds, SharedMut::new(&mut self.lines));
        if arrangement == Arrangement::Tiles {
            exec.for_rows(rows.div_ceil(LANES), rows.min(LANES) * cols, &|part| {
                for first in part.map(|tile| tile * LANES) {
                    let rows = first..rows.min(first + LANES);
                    // SAFETY: tiles are disjoint ranges of rows, and so of lines.
                    let lines = unsafe { shared.range(rows.start * row_lines..rows.end * row_lines) };
                    dispatch(exec.simd(), PackTile { x: &x[rows.start * cols..rows.end * cols], cols, lines });
                }
            });
            return;
        }
        exec.for_rows(rows, cols, &|rows| {
            // SAFETY: parts are disjoint ranges of rows, and so of lines.
            let lines = unsafe { shared.range(rows.start * row_lines..rows.end * row_lines) };
            let x = &x[rows.start * cols..rows.end * cols];
            dispatch(exec.simd(), Pack { x, cols, dtype, folds, lines, row_lines });
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

    /// Whether the weights that the rows were packed for fold ([`Weight::folds`]).
    pub(super) fn folds(&self) -> bool {
        self.folds
    }

    pub(super) fn simd(&self) -> SimdLevel {
        self.simd
    }

    /// The arrangement of weights that the rows are laid out for.
    pub(super) fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// For matrix instructions, the up to 16 rows from `first` on, a multiple of 16: `[steps, rows]` lines.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(super) fn tile(&self, first: usize) -> &[Line] {
        assert!(self.arrangement == Arrangement::Tiles && first.is_multiple_of(LANES));
        &self.lines[first * self.row_lines..self.rows.min(first + LANES) * self.row_lines]
    }

    /// `count` rows, where rows do not lie side by side.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn rows_from(&self, first: usize, count: usize) -> &[Line] {
        &self.lines[first * self.row_lines..(first + count) * self.row_lines]
    }

    /// Bytes from one row to the next, where rows do not lie side by side.
    #[cfg(target_arch = "x86_64")]
    pub(super) fn row_bytes(&self) -> usize {
        self.row_lines * size_of::<Line>()
    }

    /// How many chunks of rows lie side by side.
    pub(super) fn chunks(&self) -> usize {
        self.chunks.count
    }

    /// The rows of a chunk.
    pub(super) fn chunk(&self, index: usize) -> Range<usize> {
        self.chunks.get(index)
    }

    /// The lines of a chunk.
    #[inline(always)]
    pub(super) fn chunk_lines(&self, chunk: usize) -> &[Line] {
        let rows = self.chunk(chunk);
        &self.lines[rows.start * self.row_lines..rows.end * self.row_lines]
    }

    /// The words of a chunk's N rows: for each block `words` and then `notes`, of each row.
    #[inline(always)]
    pub(super) fn words<const N: usize>(&self, chunk: usize) -> &[[i32; N]] {
        let lines = self.chunk_lines(chunk);
        // SAFETY: a `Line` is 64 plain bytes, aligned beyond an i32, and any 4 bytes are an i32.
        let words = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast::<i32>(), lines.len() * LANES) };
        words.as_chunks().0
    }

    /// The chunk of `count` rows from `first` on: `[pairs of k, even or odd, count]`.
    #[inline(always)]
    pub(super) fn columns(&self, first: usize, count: usize) -> &[f32] {
        let lines = &self.lines[first * self.row_lines..(first + count) * self.row_lines];
        // SAFETY: a `Line` is 16 f32 without padding.
        unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
    }

    #[inline(always)]
    pub(super) fn row(&self, row: usize) -> &[Line] {
        &self.lines[row * self.row_lines..(row + 1) * self.row_lines]
    }
}

/// How inputs of `weight` are laid out: for matrix instructions alike, however the weight is arranged.
pub(super) fn arrangement_for(weight: &Weight, simd: SimdLevel) -> Arrangement {
    match (weight.dtype(), simd) {
        (WeightDtype::Bf16, SimdLevel::Amx) => Arrangement::Tiles,
        _ => weight.arrangement(),
    }
}

/// A stride of at least `lines` at which neighbouring rows do not compete for the same sets of the first-level cache.
fn apart(lines: usize) -> usize {
    if lines.is_multiple_of(8) { lines + 3 } else { lines }
}

/// As few chunks of at most so many rows as hold them all, as even as they can be.
#[derive(Clone, Copy, Debug, Default)]
struct Chunks {
    count: usize,
    /// Rows of a chunk, but for the first `longer`, which have one more.
    len: usize,
    longer: usize,
}

impl Chunks {
    fn of(rows: usize, most: usize) -> Self {
        let count = rows.div_ceil(most);
        Self { count, len: rows / count.max(1), longer: rows % count.max(1) }
    }

    #[inline(always)]
    fn get(self, index: usize) -> Range<usize> {
        let start = |index: usize| index * self.len + index.min(self.longer);
        start(index)..start(index + 1)
    }
}

/// Most rows of a chunk; `None` where each row lies by itself, or in tiles.
struct MostRows {
    dtype: WeightDtype,
    arrangement: Arrangement,
    by_tiles: bool,
}

impl Kernel for MostRows {
    type Output = Option<usize>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Option<usize> {
        match self.arrangement {
            Arrangement::Columns => Some(S::COLUMN_ROWS),
            Arrangement::Rows if self.dtype.is_quantised() && !self.by_tiles => Some(S::PANEL_ROWS),
            Arrangement::Rows | Arrangement::Tiles => None,
        }
    }
}

/// Some blocks of 32 columns of a chunk of rows, side by side.
struct PackChunk<'a> {
    x: &'a [f32],
    cols: usize,
    dtype: WeightDtype,
    folds: bool,
    blocks: Range<usize>,
    words: &'a SharedMut<'a, i32>,
    /// The chunk's first word.
    start: usize,
}

impl Kernel for PackChunk<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.x.len() / self.cols {
            1 => self.rows::<S, 1>(),
            2 => self.rows::<S, 2>(),
            3 => self.rows::<S, 3>(),
            4 => self.rows::<S, 4>(),
            5 => self.rows::<S, 5>(),
            6 => self.rows::<S, 6>(),
            7 => self.rows::<S, 7>(),
            _ => self.rows::<S, MOST_PANEL_ROWS>(),
        }
    }
}

impl PackChunk<'_> {
    /// N rows.
    #[inline(always)]
    fn rows<S: Simd, const N: usize>(self) {
        match (rounded_as(self.dtype, self.folds), input_layout::<S>(self.dtype)) {
            // More rows than a level takes would only be dead code.
            (Some(_), _) if N > S::PANEL_ROWS => {}
            (Some(format), Some(layout)) => self.bytes::<S, N>(format, layout),
            _ => self.pairs::<S, N>(),
        }
    }

    /// The words of each `count` blocks, so many of each row side by side, and the columns of the rows that they are made of.
    #[inline(always)]
    fn each<const N: usize>(
        &self,
        count: usize,
        per_block: usize,
    ) -> impl Iterator<Item = (Range<usize>, &mut [[i32; N]])> {
        let words = self.start + self.blocks.start * per_block * N..self.start + self.blocks.end * per_block * N;
        // SAFETY: tasks have different blocks, or blocks of different chunks, and so different words.
        let words = unsafe { self.words.range(words) };
        let firsts = self.blocks.clone().step_by(count);
        let end = self.cols.min(self.blocks.end * BLOCK);
        let columns = firsts.map(move |block| end.min(block * BLOCK)..end.min((block + count) * BLOCK));
        columns.zip(words.as_chunks_mut().0.chunks_mut(count * per_block))
    }

    /// As int8, and their notes.
    #[inline(always)]
    fn bytes<S: Simd, const N: usize>(self, format: BlockFormat, layout: InputLayout) {
        let words = layout.words();
        let per_block = words + BlockFormat::of(self.dtype).map_or(0, notes_of);
        for (columns, out) in self.each::<N>(SUPER, per_block) {
            // Other cores have read what was there.
            for line in out.as_flattened().chunks(LANES) {
                S::prefetch_write(line.as_ptr().cast());
            }
            // Of all rows first: each row is one chain of instructions that wait for each other. 8 rows of q4_K take a quarter
            // less.
            let mut scales = [Scales::NONE; N];
            for n in 0..N {
                scales[n] = Scales::of::<S>(format, &self.x[n * self.cols..][columns.clone()]);
            }
            for n in 0..N {
                let quants = round_blocks::<S>(&self.x[n * self.cols..][columns.clone()], &scales[n]);
                let notes = block_notes::<S>(format, &quants, &scales[n]);
                for (at, (quants, out)) in quants.iter().zip(out.chunks_exact_mut(per_block)).enumerate() {
                    let (out, out_notes) = out.split_at_mut(words);
                    let mut block = [0; 2 * QUADS];
                    layout.write(quants, &mut block);
                    for (word, out) in block.iter().zip(out) {
                        out[n] = *word;
                    }
                    for (notes, out) in notes.iter().zip(out_notes) {
                        out[n] = notes[at];
                    }
                }
            }
        }
    }

    /// As bf16, pair by pair.
    #[inline(always)]
    fn pairs<S: Simd, const N: usize>(self) {
        for (columns, out) in self.each::<N>(1, LANES * S::HALVES) {
            for n in 0..N {
                let bits = round_pairs::<S>(&self.x[n * self.cols..][columns.clone()]);
                let pairs = bits.as_flattened().as_chunks().0.iter();
                for (pair, out) in pairs.zip(out.chunks_exact_mut(S::HALVES)) {
                    let [even, odd] = pair.map(u32::from);
                    match out {
                        [both] => both[n] = (even | odd << 16) as i32,
                        [first, second] => (first[n], second[n]) = ((even << 16) as i32, (odd << 16) as i32),
                        _ => {}
                    }
                }
            }
        }
    }
}

/// Up to 16 rows, side by side as bf16.
struct PackTile<'a> {
    x: &'a [f32],
    cols: usize,
    lines: &'a mut [Line],
}

impl Kernel for PackTile<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let rows = self.x.len() / self.cols;
        for (row, x) in self.x.chunks_exact(self.cols).enumerate() {
            for (step, x) in x.chunks(2 * LANES).enumerate() {
                self.lines[step * rows + row].0 = pairs_of(&round_pairs::<S>(x));
            }
        }
    }
}

/// Lines of a packed row.
struct RowLines {
    dtype: WeightDtype,
    cols: usize,
    arrangement: Arrangement,
}

impl Kernel for RowLines {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        let blocks = paired_blocks(self.cols);
        match input_layout::<S>(self.dtype) {
            // Notes of whole super-blocks.
            Some(layout) => (blocks * layout.words() + blocks.next_multiple_of(SUPER) * NOTES).div_ceil(LANES),
            None if self.dtype != WeightDtype::Bf16 => self.cols.div_ceil(LANES),
            None if self.arrangement == Arrangement::Tiles => self.cols.div_ceil(2 * LANES),
            None if self.arrangement != Arrangement::Rows => S::HALVES * self.cols.div_ceil(2 * LANES),
            None => S::INPUT_LINES * self.cols.div_ceil(2 * LANES),
        }
    }
}

/// Blocks of a row, whole pairs of them: quantised weights are multiplied two blocks at a time.
const fn paired_blocks(cols: usize) -> usize {
    cols.div_ceil(2 * BLOCK) * 2
}

/// The format for whose weights inputs are rounded and noted, if they are made int8: super-blocks that fold take those of q4_K.
fn rounded_as(dtype: WeightDtype, folds: bool) -> Option<BlockFormat> {
    if folds { Some(BlockFormat::Q4K) } else { BlockFormat::of(dtype) }
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
    folds: bool,
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
                dtype => pack_int8::<S>(dtype, self.folds, x, words_mut(lines)),
            }
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
    if S::INPUT_LINES == 1 {
        lines[0].0 = pairs_of(&bits);
    } else {
        let bits = bits.as_flattened();
        for (odd, line) in lines.iter_mut().enumerate() {
            line.0 = std::array::from_fn(|i| f32::from_bits(u32::from(bits[2 * i + odd]) << 16));
        }
    }
}

/// The bits of 32 bf16, as a line has them.
#[inline(always)]
fn pairs_of(bits: &[[u16; LANES]; 2]) -> [f32; LANES] {
    let bits = bits.as_flattened();
    std::array::from_fn(|i| f32::from_bits(u32::from(bits[2 * i]) | u32::from(bits[2 * i + 1]) << 16))
}
