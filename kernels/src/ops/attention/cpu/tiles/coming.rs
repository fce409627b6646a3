//! Copies of keys and values, made while other work goes on.
//!
//! What is read as an operand must be in memory: it cannot be taken from stores on their way. So a tile is copied while the
//! one before it is worked on, and bit by bit, since a core holds only 16 requests for memory: copied in one loop before
//! the work, 4,096 tokens of 12 heads took 0.55 ms instead of 0.48 on a Xeon.

use super::{Asking, Operands, STEP};
use crate::blocks::kv_store::HeadRows;
use crate::ops::attention::cpu::tile::{TILE, tile_ahead};
use crate::ops::attention::cpu::{AttendBlock, MOST_LINES, Scratch, Step};
use crate::simd::{Line, Simd};
use std::mem::MaybeUninit;

/// A tile's keys and values, as [`Operands::copy`] leaves them.
pub(super) type Copied = Scratch<{ TILE * MOST_LINES }>;

/// Most tokens of a word.
const MOST_TOKENS: usize = 4;

/// The next tile, copied bit by bit between other work while the tile two behind it is asked for.
pub(super) struct Coming<'a, D: Operands, const L: usize> {
    rows: HeadRows<'a, D::Element>,
    slots: [u32; TILE],
    /// What is to be asked for next of the tile two ahead, if its keys and values lie one behind the other: so there is nothing to
    /// look up. By token, 8 rows over 8,192 tokens of bf16 took 1.1 times as long. Where nothing comes, the head's first ones.
    ahead: *const u8,
    /// Or else its slots, as far as it goes, and the head that has them.
    apart: (&'a [u32], HeadRows<'a, D::Element>),
    to: &'a mut [MaybeUninit<Line>],
    head_dim: usize,
    /// Words that were copied.
    copied: usize,
}

impl<'a, D: Operands, const L: usize> Coming<'a, D, L> {
    /// The tile of a step, if there is one, to be copied to `to` from `rows`, which must be the block's head's.
    #[inline(always)]
    pub fn new(
        block: &AttendBlock<'a>,
        rows: HeadRows<'a, D::Element>,
        step: Option<&Step>,
        to: &'a mut Copied,
    ) -> Self {
        let (head_dim, to) = (block.shape.head_dim, to.lines());
        assert_eq!(head_dim, block.kv.shape().head_dim);
        assert!(head_dim <= L * STEP && to.len() == D::copied_lines(L));
        let (slots, first, copied) = match step {
            Some(step) => (block.slots(step.row, step.first), step.first, 0),
            None => ([0; TILE], 0, D::WORDS),
        };
        rows.check(&slots);
        let (after, heads) = tile_ahead(block, rows, first + 2 * TILE);
        let (ahead, apart) = match after.as_array::<TILE>().and_then(|slots| heads.lines(slots)) {
            Some(lines) => (lines.first(), [].as_slice()),
            None => (rows.first_key().cast(), after),
        };
        Self { rows, slots, ahead, apart: (apart, heads), to, head_dim, copied }
    }

    /// Copies words, padded with zeros, until so many are copied, and asks for as many. That a loop is left a loop, and in place,
    /// matters: unrolled, or called, 8 rows over 8,192 tokens of q8_0 took 1.05 and 1.1 times as long.
    #[inline(always)]
    pub fn copy_until(&mut self, words: usize) {
        while self.copied < words.min(D::WORDS) {
            // SAFETY: called only inside `attend_in_groups`.
            unsafe {
                if self.head_dim == L * STEP {
                    self.copy::<true>(self.copied);
                } else {
                    self.copy_some(self.copied);
                }
            }
            self.copied += 1;
        }
    }

    /// The same for a word of a head that does not fill its steps.
    ///
    /// # Safety
    /// As of [`Self::copy`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c")]
    unsafe fn copy_some(&mut self, word: usize) {
        // SAFETY: by this function's contract.
        unsafe { self.copy::<false>(word) };
    }

    /// Copies a word and asks for one.
    ///
    /// # Safety
    /// Called only inside `attend_in_groups`.
    #[inline(always)]
    unsafe fn copy<const FULL: bool>(&mut self, word: usize) {
        let (rows, value) = (self.rows, self.rows.key_to_value());
        let dims = if FULL { L * STEP } else { self.head_dim };
        let mut keys = [rows.first_key(); MOST_TOKENS];
        for i in 0..D::TOKENS {
            keys[i] = rows.key(self.slots[word + i * D::WORDS]);
        }
        let (keys, to) = (&keys[..D::TOKENS], self.to.as_mut_ptr().cast());
        let (slots, heads) = self.apart;
        // SAFETY (both): by this function's contract; there are such slots, and room for a tile.
        if slots.is_empty() {
            // Each key or value L times, so that a word's are as much as is copied of one.
            let apart = size_of::<D::Element>() * rows.row_len().div_ceil(L);
            let mut ahead = self.ahead;
            let ask = |_: usize, _: usize, _: bool| {
                Asking::prefetch_far(ahead);
                ahead = ahead.wrapping_add(apart);
            };
            unsafe { D::copy::<FULL, L>(keys, (dims, value), word, to, ask) };
            self.ahead = ahead;
        } else {
            let mut asked = [rows.first_key(); MOST_TOKENS];
            for i in 0..D::TOKENS {
                asked[i] = slots.get(word + i * D::WORDS).map_or(keys[i], |slot| heads.key(*slot));
            }
            // The last may lie in a cache line of its own.
            let apart = (rows.row_len() - 1) / (L - 1);
            let ask = |i: usize, step: usize, is_value: bool| {
                let first = if is_value { value } else { 0 };
                Asking::prefetch_far(asked[i].wrapping_add(first + step * apart).cast());
            };
            unsafe { D::copy::<FULL, L>(keys, (dims, value), word, to, ask) };
        }
    }
}
