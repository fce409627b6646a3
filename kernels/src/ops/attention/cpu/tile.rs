//! The keys and values of 32 attended tokens, widened once for all queries that share them.
//!
//! Keys are laid with their tokens in the lanes, so that scores need no horizontal sum and one loaded vector serves
//! several queries; values stay token by token. Where only one or two queries read them, bf16 values are not widened
//! ahead: their use widens them for the price of a shift. (f32 would pay no less, since the tile asked for ahead drives
//! them out of the first-level cache before they are read; q8_0 costs as much to widen as it saves.)

use super::{AttendBlock, MOST_LINES, Scratch};
use crate::blocks::KvDtype;
use crate::blocks::kv_format::{Bf16, F32, KvFormat, Q8_0};
use crate::bytes::typed;
use crate::simd::{LANES, Line, Simd, Square};
use std::ops::Range;

/// Attended tokens of a tile.
pub(super) const TILE: usize = 2 * LANES;

/// Queries of a block up to which bf16 values are widened where they are used.
pub(super) const FEW: usize = 2;

/// Room for a tile.
pub(super) struct Tile {
    keys: Scratch<{ TILE * MOST_LINES }>,
    values: Scratch<{ TILE * MOST_LINES }>,
    /// Lines of a head.
    lines: usize,
    /// Whether values are widened, or else left as they are stored.
    widens: bool,
}

/// A part of a list.
pub(super) struct Gathered<'a> {
    /// Dimension by dimension: the first 16 tokens, and the last 16; zeros where there are fewer.
    pub keys: [&'a [Line]; 2],
    pub values: Values<'a>,
}

/// The values of a tile's tokens.
#[expect(clippy::large_enum_variant, reason = "there is one at a time, on the stack")]
pub(super) enum Values<'a> {
    /// `[32, lines]`, zeros where there are fewer.
    Widened(Widened<'a>),
    Bf16(StoredBf16<'a>),
}

/// Values as one of the forms that they are read from.
pub(super) trait Source {
    /// Panics unless line `line` of the values of all tokens below `tokens` is there.
    fn check(&self, tokens: usize, line: usize);
    /// Part `part` of a line of a token's value.
    ///
    /// # Safety
    /// `check` must have passed for the token and the line.
    unsafe fn part<S: Simd>(&self, token: usize, line: usize, part: usize) -> S::Part;
}

pub(super) struct Widened<'a> {
    values: &'a [Line],
    lines: usize,
}

impl Source for Widened<'_> {
    #[inline(always)]
    fn check(&self, tokens: usize, line: usize) {
        assert!(self.values.len() >= tokens * self.lines && line < self.lines);
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(&self, token: usize, line: usize, part: usize) -> S::Part {
        // SAFETY: by this function's contract.
        S::load_part(unsafe { &self.values.get_unchecked(token * self.lines + line).0 }, part)
    }
}

pub(super) struct StoredBf16<'a> {
    rows: [&'a [u16]; TILE],
    head_dim: usize,
}

impl Source for StoredBf16<'_> {
    #[inline(always)]
    fn check(&self, tokens: usize, _line: usize) {
        assert!(tokens <= TILE);
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(&self, token: usize, line: usize, part: usize) -> S::Part {
        S::part(line_of::<S, Bf16>(self.rows[token], self.head_dim, line), part)
    }
}

impl Tile {
    /// For a block of `queries` queries.
    #[inline(always)]
    pub fn new(lines: usize, queries: usize, dtype: KvDtype) -> Self {
        let widens = queries > FEW || dtype != KvDtype::Bf16;
        Self { keys: Scratch::new(TILE * lines), values: Scratch::new(TILE * lines), lines, widens }
    }

    /// Takes in a part of `row`'s list.
    #[inline(always)]
    pub fn gather<'a, S: Simd>(&'a mut self, block: &AttendBlock<'a>, row: usize, part: Range<usize>) -> Gathered<'a> {
        if part.len() < TILE {
            self.keys.zeroed();
            if self.widens {
                self.values.zeroed();
            }
        }
        let stored = match block.kv.shape().dtype {
            KvDtype::F32 => {
                self.read::<S, F32>(block, row, part);
                None
            }
            KvDtype::Bf16 => Some(self.read::<S, Bf16>(block, row, part)),
            KvDtype::Q8_0 => {
                self.read::<S, Q8_0>(block, row, part);
                None
            }
        };
        // SAFETY: `read` writes every line of 32 tokens; with fewer, `zeroed` wrote what it left out.
        let (low, high) = unsafe { self.keys.written() }.split_at(self.lines * LANES);
        let values = match stored {
            Some(rows) if !self.widens => Values::Bf16(StoredBf16 { rows, head_dim: block.shape.head_dim }),
            // SAFETY: as for the keys.
            _ => Values::Widened(Widened { values: unsafe { self.values.written() }, lines: self.lines }),
        };
        Gathered { keys: [low, high], values }
    }

    /// Widens the keys, and the values if they are to be. Returns the values as they are stored.
    #[inline(always)]
    fn read<'a, S: Simd, D: KvFormat>(
        &mut self,
        block: &AttendBlock<'a>,
        row: usize,
        part: Range<usize>,
    ) -> [&'a [D::Element]; TILE] {
        let mut keys: [&[D::Element]; TILE] = [&[]; TILE];
        let mut values = keys;
        let (head, head_dim, lines) = (block.kv_head, block.shape.head_dim, self.lines);
        let last = block.seq.attended_len(row) - 1;
        // The next tile is asked for bit by bit, between other work: the processor takes only so many requests at a time.
        let next = |i: usize| block.seq.attended_slot(row, last.min(part.start + i + TILE));
        for (i, index) in part.clone().enumerate() {
            let slot = block.seq.attended_slot(row, index);
            keys[i] = typed(block.kv.row(false, slot, head));
            values[i] = typed(block.kv.row(true, slot, head));
            if self.widens {
                for (line, to) in self.values.lines()[i * lines..(i + 1) * lines].iter_mut().enumerate() {
                    // SAFETY: `store` writes the whole line.
                    S::store(line_of::<S, D>(values[i], head_dim, line), unsafe { &mut (*to.as_mut_ptr()).0 });
                }
                prefetch::<S>(block, next(i));
            }
        }
        for (half, keys) in keys[..part.len()].chunks(LANES).enumerate() {
            let mut rows: Square = [[0.0; LANES]; LANES];
            let to = &mut self.keys.lines()[half * lines * LANES..][..lines * LANES];
            for (line, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                for (key, row) in keys.iter().zip(&mut rows) {
                    S::store(line_of::<S, D>(key, head_dim, line), row);
                }
                // SAFETY: a `Line` is 16 f32 without padding, so 16 are a square; `transpose` writes all of it.
                S::transpose(&rows, unsafe { &mut *to.as_mut_ptr().cast::<Square>() });
                if !self.widens {
                    for i in (line..keys.len()).step_by(lines) {
                        prefetch::<S>(block, next(half * LANES + i));
                    }
                }
            }
        }
        values
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
