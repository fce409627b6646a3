//! A block of rows of one sequence under one KV head, tile by tile with an online softmax.
//!
//! A `tile` of keys and values is gathered once for all rows that share it, then every query (a row's head) takes it in
//! (`queries`); what is multiplied is `words`, by vectors or by matrix instructions (`tiles`). The order within a query is
//! fixed: a score is one sum over ascending dimensions, a tile's weights are summed in lanes, values are added by ascending
//! index. None of it looks at the other rows of the block.

mod queries;
mod tile;
#[cfg(target_arch = "x86_64")]
mod tiles;
mod words;

use super::{AttentionSeq, AttentionShape, MAX_BLOCK_ROWS, MAX_GROUP, MAX_HEAD_DIM};
use crate::blocks::kv_format::{Bf16, F32, Q8_0};
use crate::blocks::{KvDtype, KvLayer};
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Line, Simd, SimdLevel, dispatch};
use queries::{Multiply, Parts, Queries, Vectors};
use std::mem::MaybeUninit;
use std::ops::Range;
use tile::{TILE, Tile};
use words::{Pairs, Singles, Words};

/// Queries behind a block's last that are read at most.
const MOST_PADDING: usize = 15;

/// Lines of the longest head.
const MOST_LINES: usize = MAX_HEAD_DIM / LANES;

pub(super) struct AttendBlock<'a> {
    pub shape: &'a AttentionShape,
    pub q: &'a [f32],
    pub kv: KvLayer<'a>,
    pub seq: &'a AttentionSeq<'a>,
    pub rows: Range<usize>,
    pub kv_head: usize,
    pub out: &'a SharedMut<'a, f32>,
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
        for line in self.lines() {
            line.write(Line([0.0; LANES]));
        }
        // SAFETY: each of these lines was just written.
        unsafe { self.written() }
    }

    /// The lines in use.
    ///
    /// # Safety
    /// All of them must have been written.
    #[inline(always)]
    unsafe fn written(&mut self) -> &mut [Line] {
        // SAFETY: by this function's contract, and the types have one layout.
        unsafe { &mut *(std::ptr::from_mut(self.lines()) as *mut [Line]) }
    }
}

impl Kernel for AttendBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.kv.shape().dtype {
            KvDtype::F32 => self.attend::<S, Singles<F32>, _>(Vectors),
            KvDtype::Bf16 if S::HALVES == 1 => self.attend::<S, Pairs, _>(Vectors),
            KvDtype::Bf16 => self.attend::<S, Singles<Bf16>, _>(Vectors),
            KvDtype::Q8_0 => self.attend::<S, Singles<Q8_0>, _>(Vectors),
        }
    }
}

impl AttendBlock<'_> {
    /// Computes the block at `level`.
    pub fn run(self, level: SimdLevel) {
        #[cfg(target_arch = "x86_64")]
        if level == SimdLevel::Amx && self.kv.shape().dtype == KvDtype::Bf16 {
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
    fn attend<S: Simd, W: Words<S>, M: Multiply<S, W>>(self, mut by: M) {
        let lines = W::lines(self.shape.head_dim);
        let count = self.queries();
        let mut tile = Tile::new::<S, W, M>(self.shape.head_dim, count);
        let mut q = Scratch::<{ (MAX_GROUP + MOST_PADDING) * MOST_LINES }>::new((count + M::PADDING) * lines);
        let mut sums = Scratch::<{ MAX_GROUP * MOST_LINES }>::new(count * lines);
        let mut totals = Scratch::<MAX_GROUP>::new(count);
        let q = q.zeroed();
        // Scores are exponents of 2.
        let scale = self.shape.scale * std::f32::consts::LOG2_E;
        for (query, q) in q.chunks_exact_mut(lines).enumerate().take(count) {
            W::query(&self.q[self.head(query)], scale, q);
        }
        let mut seen = Queries::new::<S, W>(self.shape, q, sums.zeroed(), totals.zeroed());
        let longest = self.rows.clone().map(|row| self.attended(row).end).max().unwrap_or(0);
        for first in (self.first_tile()..longest).step_by(TILE) {
            self.attend_tile::<S, W>(first, longest, &mut by, &mut tile, &mut seen);
        }
        for query in 0..count {
            // SAFETY: this task alone has these rows and this KV head, and each of its queries its own range.
            seen.finish::<S, W>(query, unsafe { self.out.range(self.head(query)) });
        }
    }

    /// Where query `query` of the block lies in q and out.
    #[inline(always)]
    fn head(&self, query: usize) -> Range<usize> {
        let group = self.shape.group();
        let row = self.seq.rows.start + self.rows.start + query / group;
        let head = self.kv_head * group + query % group;
        let start = row * self.shape.q_dim() + head * self.shape.head_dim;
        start..start + self.shape.head_dim
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

    /// The part of the tile at `first` that a row attends to.
    #[inline(always)]
    fn part(&self, row: usize, first: usize) -> Range<usize> {
        let attended = self.attended(row);
        attended.start.saturating_sub(first).min(TILE)..attended.end.saturating_sub(first).min(TILE)
    }

    /// All rows with the tile at `first`; `longest` is where the block's last list ends.
    #[inline(always)]
    fn attend_tile<S: Simd, W: Words<S>>(
        &self,
        first: usize,
        longest: usize,
        by: &mut impl Multiply<S, W>,
        tile: &mut Tile,
        seen: &mut Queries<'_>,
    ) {
        let start = self.rows.start;
        let is_full = self.shape.window.is_none() && first + TILE <= self.seq.context.len();
        let parts: Parts = match is_full {
            true => [const { 0..TILE }; MAX_BLOCK_ROWS],
            false => std::array::from_fn(|row| match start + row {
                row if row < self.rows.end => self.part(row, first),
                _ => 0..0,
            }),
        };
        // Where lists differ, every row has a tile of its own.
        let Some(sharer) = self.sharer(first) else {
            for row in self.rows.clone() {
                let tokens = &parts[row - start];
                if !tokens.is_empty() {
                    let mut tile = tile.gather::<S, W>(self, row, first..first + tokens.end);
                    seen.attend::<S, W>(by, row - start..row - start + 1, &parts, &mut tile);
                }
            }
            return;
        };
        let mut tile = tile.gather::<S, W>(self, sharer, first..longest.min(first + TILE));
        // Rows that attend to some of it go together.
        let mut row = 0;
        while row < self.rows.len() {
            let end = (row..self.rows.len()).find(|row| parts[*row].is_empty()).unwrap_or(self.rows.len());
            seen.attend::<S, W>(by, row..end, &parts, &mut tile);
            row = end + 1;
        }
    }

    /// A row whose list all rows of the block agree with in the tile at `first`, as far as theirs goes.
    #[inline(always)]
    fn sharer(&self, first: usize) -> Option<usize> {
        let in_context = first + TILE <= self.seq.context.len();
        (self.seq.tree.is_none() || in_context).then_some(self.rows.end - 1)
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
