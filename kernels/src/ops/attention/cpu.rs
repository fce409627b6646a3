//! A block of rows of one sequence under one KV head, tile by tile with an online softmax.
//!
//! A `tile` of keys and values is gathered once for all rows that share it, then every query (a row's head) takes it in
//! (`queries`); what vectors multiply is `words`. Matrix instructions have copies and sums of their own (`tiles`). The order
//! within a query is fixed: a score is one sum over ascending dimensions, a tile's weights are summed in lanes (by matrix
//! instructions in one sum, or a tree), values are added by ascending index. None of it looks at the other rows of the block.

mod queries;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod words;

use super::{AttentionSeq, AttentionShape, MAX_BLOCK_ROWS, MAX_GROUP, MAX_HEAD_DIM};
use crate::blocks::kv_format::{Bf16, F32};
use crate::blocks::{KvDtype, KvLayer};
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch};
use queries::{Queries, Weights};
use std::mem::MaybeUninit;
use std::ops::Range;
use tile::{TILE, Tile};
use words::{Pairs, Quads, Singles, Words};

/// Lines of the longest head.
const MOST_LINES: usize = MAX_HEAD_DIM / LANES;
/// Most blocks of 32 dimensions.
const MOST_BLOCKS: usize = MOST_LINES / 2;
/// Lines from one query's words to the next's, and from its sums: odd, so that those of many do not share sets of the cache, and
/// constant, so that few instructions are about where they lie.
const QUERY_LINES: usize = MOST_LINES + 1;

pub(super) struct AttendBlock<'a> {
    pub shape: &'a AttentionShape,
    pub q: &'a SharedMut<'a, f32>,
    pub kv: KvLayer<'a>,
    pub seq: &'a AttentionSeq<'a>,
    pub rows: Range<usize>,
    pub kv_head: usize,
}

/// The parts of a tile that a block's rows attend to.
type Parts = [Range<usize>; MAX_BLOCK_ROWS];

/// A tile, and the rows of a block that share it.
struct Step {
    /// The row whose list it is of.
    row: usize,
    /// Where it starts in that list.
    first: usize,
    /// The rows, of the block.
    rows: Range<usize>,
}

/// Lines on the stack, of which only those in use are ever touched.
struct Scratch<const N: usize> {
    lines: [MaybeUninit<Line>; N],
    used: usize,
}

impl<const N: usize> Scratch<N> {
    #[inline(always)]
    fn new(used: usize) -> Self {
        assert!(used <= N);
        Self { lines: [MaybeUninit::uninit(); N], used }
    }

    /// The lines in use, to be written.
    #[inline(always)]
    fn lines(&mut self) -> &mut [MaybeUninit<Line>] {
        &mut self.lines[..self.used]
    }

    /// The lines in use, all 0.
    #[inline(always)]
    fn zeroed(&mut self) -> &mut [Line] {
        zeroed(self.lines())
    }

    /// The lines in use.
    ///
    /// # Safety
    /// All of them must have been written.
    #[inline(always)]
    unsafe fn written(&mut self) -> &mut [Line] {
        // SAFETY: by this function's contract.
        unsafe { self.lines().assume_init_mut() }
    }
}

/// Lines, all 0.
#[inline(always)]
fn zeroed(lines: &mut [MaybeUninit<Line>]) -> &mut [Line] {
    for line in &mut *lines {
        line.write(Line([0.0; LANES]));
    }
    // SAFETY: each of these lines was just written.
    unsafe { lines.assume_init_mut() }
}

impl Kernel for AttendBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.kv.shape().dtype {
            KvDtype::F32 => self.attend::<S, Singles<F32>>(),
            KvDtype::Bf16 if S::HALVES == 1 => self.attend::<S, Pairs>(),
            KvDtype::Bf16 => self.attend::<S, Singles<Bf16>>(),
            KvDtype::Q8_0 => self.attend::<S, Quads>(),
        }
    }
}

impl<'a> AttendBlock<'a> {
    /// Computes the block at `level`.
    pub fn run(self, level: SimdLevel) {
        #[cfg(target_arch = "x86_64")]
        if level == SimdLevel::Amx && matches!(self.kv.shape().dtype, KvDtype::Bf16 | KvDtype::Q8_0) {
            // SAFETY: an `Exec` never holds a level above `SimdLevel::detect`.
            return unsafe { tiles::attend(self) };
        }
        dispatch(level, self);
    }

    /// How many queries the block has.
    #[inline(always)]
    fn queries(&self) -> usize {
        self.rows.len() * self.shape.group()
    }

    #[inline(always)]
    fn attend<S: Simd, W: Words<S>>(self) {
        let count = self.queries();
        let mut tile = Tile::new::<S, W>(&self, count);
        // Words of four queries may share lines.
        let mut q = Scratch::<{ MAX_GROUP * QUERY_LINES }>::new(count.next_multiple_of(4) * QUERY_LINES);
        let mut sums = Scratch::<{ MAX_GROUP * QUERY_LINES }>::new(count * QUERY_LINES);
        let mut totals = Scratch::<MAX_GROUP>::new(count);
        let mut weights = Weights::new();
        // Scores are exponents of 2.
        let scale = self.shape.scale * std::f32::consts::LOG2_E;
        for query in 0..count {
            // SAFETY: of one at a time.
            W::query(unsafe { self.query(query) }, scale, query, q.lines());
        }
        let mut seen = Queries::new::<S, W>(self.shape, q.lines(), sums.zeroed(), totals.zeroed());
        for step in self.steps() {
            let parts = self.parts(&step);
            let of_rows = parts.as_ref().map(|parts| &parts[step.rows.clone()]);
            let end = of_rows.map_or(TILE, |parts| parts.iter().map(|part| part.end).max().unwrap_or(0));
            let mut tile = tile.gather::<S, W>(&self, step.row, step.first..step.first + end);
            // Rows that attend to some of it go together.
            let mut row = step.rows.start;
            while row < step.rows.end {
                let stops = |parts: &Parts| (row..step.rows.end).find(|row| parts[*row].is_empty());
                let end = parts.as_ref().and_then(stops).unwrap_or(step.rows.end);
                seen.attend::<S, W>(row..end, parts.as_ref(), &mut tile, &mut weights);
                row = end + 1;
            }
        }
        for query in 0..count {
            // SAFETY: of one at a time.
            seen.finish::<S, W>(query, unsafe { self.query(query) });
        }
    }

    /// Query `query` of the block, and where its output goes.
    ///
    /// # Safety
    /// There must be one reference to a query at a time.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "that there is one is the caller's promise")]
    unsafe fn query(&self, query: usize) -> &mut [f32] {
        let group = self.shape.group();
        let row = self.seq.rows.start + self.rows.start + query / group;
        let head = self.kv_head * group + query % group;
        let start = row * self.shape.q_dim() + head * self.shape.head_dim;
        // SAFETY: this task alone has these rows and this KV head, and each of its queries its own range.
        unsafe { self.q.range(start..start + self.shape.head_dim) }
    }

    /// Slots of the tile at `first` of a row's list; behind its end, the last.
    #[inline(always)]
    fn slots(&self, row: usize, first: usize) -> [u32; TILE] {
        if let Some(slots) = self.seq.context.get(first..).and_then(<[u32]>::first_chunk) {
            return *slots;
        }
        let last = self.seq.attended_len(row) - 1;
        let mut slots = [0; TILE];
        for (i, slot) in slots.iter_mut().enumerate() {
            *slot = self.seq.attended_slot(row, last.min(first + i));
        }
        slots
    }

    /// The part of its list that a row attends to: all, or the last of it under a sliding window.
    #[inline(always)]
    fn attended(&self, row: usize) -> Range<usize> {
        let len = self.seq.attended_len(row);
        let window = self.shape.window.unwrap_or(len);
        len.saturating_sub(window)..len
    }

    /// Where the first tile starts that any of the rows attends to.
    #[inline(always)]
    fn first_tile(&self) -> usize {
        let first = self.rows.clone().map(|row| self.attended(row).start).min().unwrap_or(0);
        first / TILE * TILE
    }

    /// All that the rows attend to, tile by tile.
    #[inline(always)]
    fn steps(&self) -> Steps<'_, 'a> {
        let longest = self.rows.clone().map(|row| self.attended(row).end).max().unwrap_or(0);
        Steps { block: self, first: self.first_tile(), longest, row: 0 }
    }

    /// The parts of a step's tile that its rows attend to, and none for others; `None` if all rows do to all of it.
    #[inline(always)]
    fn parts(&self, step: &Step) -> Option<Parts> {
        if self.shape.window.is_none() && step.first + TILE <= self.seq.context.len() {
            return None;
        }
        let mut parts = [const { 0..0 }; MAX_BLOCK_ROWS];
        for (row, part) in parts.iter_mut().enumerate().take(step.rows.end).skip(step.rows.start) {
            let Range { start, end } = self.attended(self.rows.start + row);
            *part = start.saturating_sub(step.first).min(TILE)..end.saturating_sub(step.first).min(TILE);
        }
        Some(parts)
    }
}

/// The steps of a block.
struct Steps<'b, 'a> {
    block: &'b AttendBlock<'a>,
    /// Where the next tile starts, and the longest list ends.
    first: usize,
    longest: usize,
    /// Where every row has a tile of its own, the next of the block.
    row: usize,
}

impl Iterator for Steps<'_, '_> {
    type Item = Step;

    #[inline(always)]
    fn next(&mut self) -> Option<Step> {
        let rows = self.block.rows.len();
        while self.first < self.longest {
            let first = self.first;
            // Lists of a chain are one as far as they go, those of a tree are in the context.
            if self.block.seq.tree.is_none() || first + TILE <= self.block.seq.context.len() {
                self.first += TILE;
                return Some(Step { row: self.block.rows.end - 1, first, rows: 0..rows });
            }
            let row = self.row;
            self.row += 1;
            if self.row == rows {
                (self.first, self.row) = (first + TILE, 0);
            }
            if self.block.attended(self.block.rows.start + row).end > first {
                return Some(Step { row: self.block.rows.start + row, first, rows: row..row + 1 });
            }
        }
        None
    }
}

/// The lanes of lines in a row.
#[inline(always)]
fn floats(lines: &[Line]) -> &[f32] {
    // SAFETY: a `Line` is 16 f32 without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
}

/// The same, to write.
#[inline(always)]
fn floats_mut(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a `Line` is 16 f32 without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}
