//! Copies of keys and values, made while other work goes on.
//!
//! What is read as an operand must be in memory: it cannot be taken from stores on their way. So a tile is copied while the
//! one before it is worked on, and bit by bit, since a core holds only 16 requests for memory: copied in one loop before
//! the work, 4,096 tokens of 12 heads took 0.55 ms instead of 0.48 on a Xeon.

use super::{Lanes, NUMBERS, ROWS};
use crate::blocks::kv_store::HeadRows;
use crate::ops::attention::cpu::tile::{Next, TILE};
use crate::ops::attention::cpu::{AttendBlock, MOST_LINES, Scratch, Step};
use crate::simd::{LANES, Line, Simd};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Keys of a tile, `[32 tokens, lines]`, first those of even tokens, and values, `[16 pairs of tokens, 2 lines]`.
pub(super) type Copied = Scratch<{ TILE * MOST_LINES }>;

/// The next tile, copied bit by bit between other work while the tile two behind it is asked for.
pub(super) struct Coming<'a, const L: usize> {
    rows: HeadRows<'a, u16>,
    slots: [u32; TILE],
    next: Next<'a, u16>,
    to: &'a mut [MaybeUninit<Line>],
    head_dim: usize,
    /// Whether a row fills L lines.
    is_full: bool,
    /// Pairs of tokens that were copied.
    copied: usize,
}

impl<'a, const L: usize> Coming<'a, L> {
    /// The tile of a step, if there is one, to be copied to `to`.
    #[inline(always)]
    pub fn new(block: &AttendBlock<'a>, step: Option<&Step>, to: &'a mut Copied) -> Self {
        let (rows, head_dim) = (block.kv.rows::<u16>(block.kv_head), block.shape.head_dim);
        let to = to.lines();
        assert!(head_dim <= rows.row_len() && head_dim <= L * NUMBERS && to.len() == TILE * 2 * L);
        let is_full = head_dim == L * NUMBERS;
        let (slots, first, copied) = match step {
            Some(step) => (block.slots(step.row, step.first), step.first, 0),
            None => ([0; TILE], 0, ROWS),
        };
        rows.check(&slots);
        Self { rows, slots, next: Next::new(block, rows, first), to, head_dim, is_full, copied }
    }

    /// Copies the keys and values of `pairs` more, padded with zeros, and asks for as many.
    #[inline(always)]
    pub fn advance(&mut self, pairs: usize) {
        let (rows, next, value) = (self.rows, self.next.rows, self.rows.key_to_value());
        let pairs = self.copied..ROWS.min(self.copied + pairs);
        self.copied = pairs.end;
        let keys = self.to.as_mut_ptr().cast::<Line>();
        let values = keys.wrapping_add(TILE * L);
        for pair in pairs {
            let [even, odd] = [2 * pair, 2 * pair + 1];
            let from = [rows.key(self.slots[even]), rows.key(self.slots[odd])];
            // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512. There are such slots, and there is room
            // for as many lines, each of 64 bytes.
            unsafe {
                let keys = [keys.add(pair * L), keys.add((ROWS + pair) * L)];
                let values = values.add(pair * 2 * L);
                if !self.is_full {
                    let mut padded = [[Line([0.0; LANES]); L]; 2];
                    for half in 0..2 {
                        copy_row::<L>(from[half], self.head_dim, keys[half].cast());
                        copy_row(from[half].add(value), self.head_dim, &mut padded[half]);
                    }
                    let [a, b] = padded.each_ref().map(|lines| lines.as_ptr().cast());
                    for line in 0..L {
                        interleave(a, b, line, values);
                    }
                    continue;
                }
                let asked = |token, other| self.next.slots.get(token).map_or(other, |slot| next.key(*slot));
                let asked = [asked(even, from[0]), asked(odd, from[1])];
                let [a, b] = [from[0].add(value), from[1].add(value)];
                for line in 0..L {
                    for half in 0..2 {
                        let numbers = _mm512_loadu_si512(from[half].add(line * NUMBERS).cast());
                        _mm512_store_si512(keys[half].add(line).cast(), numbers);
                        Lanes::prefetch_far(asked[half].wrapping_add(line * NUMBERS).cast());
                    }
                }
                for line in 0..L {
                    interleave(a, b, line, values);
                    for asked in asked {
                        Lanes::prefetch_far(asked.wrapping_add(value + line * NUMBERS).cast());
                    }
                }
            }
        }
    }
}

/// Line `line` of two values, as two lines of pairs.
///
/// # Safety
/// There must be such lines; called only inside `attend_in_groups`.
#[inline(always)]
unsafe fn interleave(a: *const u16, b: *const u16, line: usize, to: *mut Line) {
    // SAFETY: by this function's contract.
    unsafe {
        let a = _mm512_loadu_si512(a.add(line * NUMBERS).cast());
        let b = _mm512_loadu_si512(b.add(line * NUMBERS).cast());
        _mm512_store_si512(to.add(2 * line).cast(), _mm512_unpacklo_epi16(a, b));
        _mm512_store_si512(to.add(2 * line + 1).cast(), _mm512_unpackhi_epi16(a, b));
    }
}

/// Copies `len` numbers, and zeros behind them, to L lines.
///
/// # Safety
/// There must be so many numbers and lines; called only inside `attend_in_groups`.
#[inline(never)]
#[target_feature(enable = "avx512f,avx512bw")]
unsafe fn copy_row<const L: usize>(row: *const u16, len: usize, to: *mut [Line; L]) {
    for line in 0..L {
        let left = len.saturating_sub(line * NUMBERS).min(NUMBERS) as u32;
        let mask = u32::MAX.checked_shr(NUMBERS as u32 - left).unwrap_or(0);
        // SAFETY: by this function's contract; the mask leaves what is there.
        unsafe {
            let numbers = _mm512_maskz_loadu_epi16(mask, row.wrapping_add(line * NUMBERS).cast());
            _mm512_store_si512(to.cast::<Line>().add(line).cast(), numbers);
        }
    }
}
