//! The keys and values of 32 attended tokens, widened once for all queries that share them.
//!
//! Keys are laid with their tokens in the lanes, so that scores need no horizontal sum and one loaded vector serves
//! several queries; values stay token by token.

use super::{AttendBlock, MOST_LINES, Scratch};
use crate::blocks::KvDtype;
use crate::blocks::kv_format::{Bf16, F32, KvFormat, Q8_0};
use crate::bytes::typed;
use crate::simd::{LANES, Line, Simd, Square};
use std::ops::Range;

/// Attended tokens of a tile.
pub(super) const TILE: usize = 2 * LANES;

/// Room for a tile.
pub(super) struct Tile {
    keys: Scratch<{ TILE * MOST_LINES }>,
    values: Scratch<{ TILE * MOST_LINES }>,
    /// Lines of a head.
    lines: usize,
}

/// A part of a list, zeros where it has fewer than 32 tokens.
pub(super) struct Gathered<'a> {
    /// Dimension by dimension: the first 16 tokens, and the last 16.
    pub keys: [&'a [Line]; 2],
    /// `[32, lines]`.
    pub values: &'a [Line],
}

impl Tile {
    #[inline(always)]
    pub fn new(lines: usize) -> Self {
        Self { keys: Scratch::new(TILE * lines), values: Scratch::new(TILE * lines), lines }
    }

    /// Takes in a part of `row`'s list.
    #[inline(always)]
    pub fn gather<S: Simd>(&mut self, block: &AttendBlock<'_>, row: usize, part: Range<usize>) -> Gathered<'_> {
        if part.len() < TILE {
            self.keys.zeroed();
            self.values.zeroed();
        }
        match block.kv.shape().dtype {
            KvDtype::F32 => self.widen::<S, F32>(block, row, part),
            KvDtype::Bf16 => self.widen::<S, Bf16>(block, row, part),
            KvDtype::Q8_0 => self.widen::<S, Q8_0>(block, row, part),
        }
        // SAFETY: `widen` writes every line of 32 tokens; with fewer, `zeroed` wrote what it left out.
        let (keys, values) = unsafe { (self.keys.written(), self.values.written()) };
        let (low, high) = keys.split_at(self.lines * LANES);
        Gathered { keys: [low, high], values }
    }

    #[inline(always)]
    fn widen<S: Simd, D: KvFormat>(&mut self, block: &AttendBlock<'_>, row: usize, part: Range<usize>) {
        let mut keys: [&[D::Element]; TILE] = [&[]; TILE];
        let (head, head_dim) = (block.kv_head, block.shape.head_dim);
        let last = block.seq.attended_len(row) - 1;
        for (i, index) in part.clone().enumerate() {
            let slot = block.seq.attended_slot(row, index);
            keys[i] = typed(block.kv.row(false, slot, head));
            let value = typed(block.kv.row(true, slot, head));
            for (line, to) in self.values.lines()[i * self.lines..(i + 1) * self.lines].iter_mut().enumerate() {
                // SAFETY: `store` writes the whole line.
                S::store(line_of::<S, D>(value, head_dim, line), unsafe { &mut (*to.as_mut_ptr()).0 });
            }
            // Asks for the next tile bit by bit, since the processor takes only so many requests at a time.
            prefetch::<S>(block, block.seq.attended_slot(row, last.min(index + TILE)));
        }
        for (half, keys) in keys[..part.len()].chunks(LANES).enumerate() {
            let mut rows: Square = [[0.0; LANES]; LANES];
            let to = &mut self.keys.lines()[half * self.lines * LANES..][..self.lines * LANES];
            for (line, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                for (key, row) in keys.iter().zip(&mut rows) {
                    S::store(line_of::<S, D>(key, head_dim, line), row);
                }
                // SAFETY: a `Line` is 16 f32 without padding, so 16 are a square; `transpose` writes all of it.
                S::transpose(&rows, unsafe { &mut *to.as_mut_ptr().cast::<Square>() });
            }
        }
    }
}

/// Asks for the key and the value of a slot.
#[inline(always)]
fn prefetch<S: Simd>(block: &AttendBlock<'_>, slot: u32) {
    for is_value in [false, true] {
        let row = block.kv.row(is_value, slot, block.kv_head);
        for at in (0..row.len()).step_by(64) {
            S::prefetch(row.as_ptr().wrapping_add(at));
        }
    }
}

/// Line `line` of a row of `dims`, then zeros.
#[inline(always)]
fn line_of<S: Simd, D: KvFormat>(row: &[D::Element], dims: usize, line: usize) -> S::F {
    let start = line * LANES;
    if start + LANES <= dims {
        return D::lanes::<S>(row, dims, start);
    }
    let mut lanes = [0.0; LANES];
    for (lane, dim) in lanes.iter_mut().zip(start..dims) {
        *lane = D::element(row, dims, dim);
    }
    S::load(&lanes)
}
