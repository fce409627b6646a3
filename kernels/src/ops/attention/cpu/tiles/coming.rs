//! Copies of keys and values as bf16, made while other work goes on.
//!
//! What is read as an operand must be in memory: it cannot be taken from stores on their way. So a tile is copied while the
//! one before it is worked on, and bit by bit, since a core holds only 16 requests for memory: copied in one loop before
//! the work, 4,096 tokens of 12 heads took 0.55 ms instead of 0.48 on a Xeon.

use super::{Asking, Lanes, NUMBERS, ROWS};
use crate::blocks::kv_format::{Bf16, KvFormat, Q8_0};
use crate::blocks::kv_store::HeadRows;
use crate::ops::attention::cpu::tile::{TILE, tile_ahead};
use crate::ops::attention::cpu::{AttendBlock, MOST_LINES, Scratch, Step};
use crate::simd::{Line, Simd};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Keys of a tile, `[32 tokens, lines]`, first those of even tokens, and values, `[16 pairs of tokens, 2 lines]`.
pub(super) type Copied = Scratch<{ TILE * MOST_LINES }>;

/// A dtype whose rows are copied as bf16.
pub(super) trait CopyAsBf16: KvFormat {
    /// Dimensions `32 * line ..` of a row of `dims`, and zeros behind the last; FULL if all 32 are there.
    ///
    /// # Safety
    /// There must be such a row, and one of its dimensions in the line; called only inside `attend_in_groups`.
    unsafe fn line<const FULL: bool>(row: *const Self::Element, dims: usize, line: usize) -> __m512i;
}

/// The dimensions that a line has.
#[inline(always)]
fn mask<const FULL: bool>(dims: usize, line: usize) -> u32 {
    if FULL { u32::MAX } else { u32::MAX >> (NUMBERS - (dims - line * NUMBERS).min(NUMBERS)) }
}

impl CopyAsBf16 for Bf16 {
    #[inline(always)]
    unsafe fn line<const FULL: bool>(row: *const u16, dims: usize, line: usize) -> __m512i {
        // SAFETY: by this function's contract; the mask leaves what is there.
        unsafe { _mm512_maskz_loadu_epi16(mask::<FULL>(dims, line), row.add(line * NUMBERS).cast()) }
    }
}

impl CopyAsBf16 for Q8_0 {
    #[inline(always)]
    unsafe fn line<const FULL: bool>(row: *const u8, dims: usize, line: usize) -> __m512i {
        // SAFETY: by this function's contract: behind the quants lies a scale for each line; the mask leaves what is there.
        unsafe {
            let bias = _mm256_set1_epi8(i8::MIN);
            let quants = _mm256_mask_loadu_epi8(bias, mask::<FULL>(dims, line), row.add(line * NUMBERS).cast());
            let quants = _mm256_xor_si256(quants, bias);
            let low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(quants));
            let high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256::<1>(quants));
            let scale = row.add(dims.next_multiple_of(2)).cast::<i16>().add(line).read_unaligned();
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(scale));
            let [low, high] = [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high)];
            _mm512_loadu_si512(Lanes::round_bf16(Lanes::mul(low, scale), Lanes::mul(high, scale)).as_ptr().cast())
        }
    }
}

/// The next tile, copied bit by bit between other work while the tile two behind it is asked for.
pub(super) struct Coming<'a, D: CopyAsBf16, const L: usize> {
    rows: HeadRows<'a, D::Element>,
    slots: [u32; TILE],
    /// The tile two ahead: as far as it goes its slots, and the head that has them. It is asked for by token, since each copy
    /// knows its own: what counted them itself took a tenth longer where caches hold them.
    ahead: (&'a [u32], HeadRows<'a, D::Element>),
    to: &'a mut [MaybeUninit<Line>],
    head_dim: usize,
    /// Elements from one that is asked for to the next, of L in a row: the last may lie in a cache line of its own.
    apart: usize,
    /// Pairs of tokens that were copied.
    copied: usize,
}

impl<'a, D: CopyAsBf16, const L: usize> Coming<'a, D, L> {
    /// The tile of a step, if there is one, to be copied to `to`.
    #[inline(always)]
    pub fn new(block: &AttendBlock<'a>, step: Option<&Step>, to: &'a mut Copied) -> Self {
        let (rows, head_dim) = (block.kv.rows::<D::Element>(block.kv_head), block.shape.head_dim);
        let to = to.lines();
        assert_eq!(head_dim, block.kv.shape().head_dim);
        assert!(head_dim <= L * NUMBERS && to.len() == TILE * 2 * L);
        let (slots, first, copied) = match step {
            Some(step) => (block.slots(step.row, step.first), step.first, 0),
            None => ([0; TILE], 0, ROWS),
        };
        rows.check(&slots);
        let apart = (rows.row_len() - 1) / (L - 1);
        Self { rows, slots, ahead: tile_ahead(block, rows, first + 2 * TILE), to, head_dim, apart, copied }
    }

    /// Copies the keys and values of `pairs` more, padded with zeros, and asks for as many.
    #[inline(always)]
    pub fn advance(&mut self, pairs: usize) {
        let pairs = self.copied..ROWS.min(self.copied + pairs);
        self.copied = pairs.end;
        for pair in pairs {
            // SAFETY: called only inside `attend_in_groups`.
            unsafe {
                if self.head_dim == L * NUMBERS {
                    self.copy::<true>(pair);
                } else {
                    self.copy_some(pair);
                }
            }
        }
    }

    /// The same for a pair of a head that does not fill its lines.
    ///
    /// # Safety
    /// As of [`Self::copy`].
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
    unsafe fn copy_some(&mut self, pair: usize) {
        // SAFETY: by this function's contract.
        unsafe { self.copy::<false>(pair) };
    }

    /// Copies a pair and asks for one.
    ///
    /// # Safety
    /// Called only inside `attend_in_groups`.
    #[inline(always)]
    unsafe fn copy<const FULL: bool>(&mut self, pair: usize) {
        let (rows, value) = (self.rows, self.rows.key_to_value());
        let dims = if FULL { L * NUMBERS } else { self.head_dim };
        let [even, odd] = [2 * pair, 2 * pair + 1];
        let keys = [rows.key(self.slots[even]), rows.key(self.slots[odd])];
        let (slots, heads) = self.ahead;
        let asked = [0, 1].map(|half| slots.get(2 * pair + half).map_or(keys[half], |slot| heads.key(*slot)));
        let to_keys = self.to.as_mut_ptr().cast::<Line>();
        let to_values = to_keys.wrapping_add(TILE * L + pair * 2 * L).cast::<__m512i>();
        let to_keys = [to_keys.wrapping_add(pair * L), to_keys.wrapping_add((ROWS + pair) * L)];
        // SAFETY: the processor has AVX-512 by this function's contract. There are such slots, and there is room for as many
        // lines, each of 64 bytes; a line without a dimension is not read.
        unsafe {
            for line in 0..L {
                let is_there = FULL || line * NUMBERS < dims;
                for half in 0..2 {
                    let numbers =
                        if is_there { D::line::<FULL>(keys[half], dims, line) } else { _mm512_setzero_si512() };
                    _mm512_store_si512(to_keys[half].add(line).cast(), numbers);
                    Asking::prefetch_far(asked[half].wrapping_add(line * self.apart).cast());
                }
            }
            for line in 0..L {
                let is_there = FULL || line * NUMBERS < dims;
                let mut numbers = [_mm512_setzero_si512(); 2];
                for half in 0..2 {
                    if is_there {
                        numbers[half] = D::line::<FULL>(keys[half].add(value), dims, line);
                    }
                    Asking::prefetch_far(asked[half].wrapping_add(value + line * self.apart).cast());
                }
                // As pairs of tokens.
                _mm512_store_si512(to_values.add(2 * line), _mm512_unpacklo_epi16(numbers[0], numbers[1]));
                _mm512_store_si512(to_values.add(2 * line + 1), _mm512_unpackhi_epi16(numbers[0], numbers[1]));
            }
        }
    }
}
