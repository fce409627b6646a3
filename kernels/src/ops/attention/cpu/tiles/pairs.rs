//! bf16: pairs of numbers.
//!
//! A word has a token of each operand's keys, so that their two weights make one where they are. Queries' sums are operands too, that
//! products are added to.

use super::coming::Coming;
use super::lanes::{by_query, exp2_for_bf16, in_order, rounded_pair};
use super::{LINE, Lanes, Operands, Queries, ROWS, STEP};
use crate::blocks::kv_format::{Bf16, KvFormat, Q8_0};
use crate::ops::attention::cpu::AttendBlock;
use crate::ops::attention::cpu::tile::TILE;
use crate::simd::{LANES, Line, Simd, Square, as_rows, padded};
use std::arch::x86_64::*;
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Two ones.
static ONES: [u16; 2] = [0x3f80; 2];

/// bf16 as it is, and what is rounded to it, in pairs.
pub(super) struct InPairs<D>(PhantomData<D>);

/// A dtype whose rows are copied as bf16.
pub(super) trait AsBf16: KvFormat {
    /// Dimensions `32 * step ..` of a row of `dims`, and zeros behind the last; FULL if all 32 are there.
    ///
    /// # Safety
    /// There must be such a row, and one of its dimensions in the step; called only inside `attend_in_groups`.
    unsafe fn step<const FULL: bool>(row: *const Self::Element, dims: usize, step: usize) -> __m512i;
}

/// The dimensions that a step has.
#[inline(always)]
fn mask<const FULL: bool>(dims: usize, step: usize) -> u32 {
    if FULL { u32::MAX } else { u32::MAX >> (STEP - (dims - step * STEP).min(STEP)) }
}

impl AsBf16 for Bf16 {
    #[inline(always)]
    unsafe fn step<const FULL: bool>(row: *const u16, dims: usize, step: usize) -> __m512i {
        // SAFETY: by this function's contract; the mask leaves what is there.
        unsafe { _mm512_maskz_loadu_epi16(mask::<FULL>(dims, step), row.add(step * STEP).cast()) }
    }
}

impl AsBf16 for Q8_0 {
    #[inline(always)]
    unsafe fn step<const FULL: bool>(row: *const u8, dims: usize, step: usize) -> __m512i {
        // SAFETY: by this function's contract: behind the quants lies a scale for each step; the mask leaves what is there.
        unsafe {
            let bias = _mm256_set1_epi8(i8::MIN);
            let quants = _mm256_mask_loadu_epi8(bias, mask::<FULL>(dims, step), row.add(step * STEP).cast());
            let quants = _mm256_xor_si256(quants, bias);
            let low = _mm512_cvtepi8_epi32(_mm256_castsi256_si128(quants));
            let high = _mm512_cvtepi8_epi32(_mm256_extracti128_si256::<1>(quants));
            let scale = row.add(dims.next_multiple_of(2)).cast::<i16>().add(step).read_unaligned();
            let scale = _mm512_cvtph_ps(_mm256_set1_epi16(scale));
            let [low, high] = [_mm512_cvtepi32_ps(low), _mm512_cvtepi32_ps(high)];
            _mm512_loadu_si512(Lanes::round_bf16(Lanes::mul(low, scale), Lanes::mul(high, scale)).as_ptr().cast())
        }
    }
}

impl<D: AsBf16> Operands for InPairs<D> {
    type Element = D::Element;
    const TOKENS: usize = 2;
    /// Words of pairs of tokens, query by query.
    type Weights<const C: usize, const L: usize> = [Line; C];

    fn query_lines(steps: usize) -> usize {
        steps * ROWS
    }

    fn copied_lines(steps: usize) -> usize {
        TILE * 2 * steps
    }

    fn shapes<const C: usize>() -> [(usize, usize); 8] {
        let number = size_of::<f32>();
        // Scores of the first 16 tokens and of the last, queries; keys or values; weights; ones; sums of values and of weights.
        let by_token = (ROWS, C * number);
        [by_token, by_token, by_token, (ROWS, LINE), (C, LINE), (ROWS, number), (C, LINE), (C, number)]
    }

    fn weights<const C: usize, const L: usize>() -> [Line; C] {
        [Line([0.0; LANES]); C]
    }

    /// `[groups, L, words]`.
    #[inline(always)]
    fn pack<const C: usize, const L: usize>(block: &AttendBlock<'_>, to: &mut [MaybeUninit<Line>]) {
        let scale = Lanes::splat(block.shape.scale * std::f32::consts::LOG2_E);
        for (i, square) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            let (group, step) = (i / L, i % L);
            let mut rows = [[0; STEP]; LANES];
            for (query, row) in (group * C..block.queries().min((group + 1) * C)).zip(&mut rows) {
                // SAFETY: of one at a time.
                let q = unsafe { block.query(query) }.chunks(STEP).nth(step).unwrap_or_default();
                let (low, high) = q.split_at(q.len().min(LANES));
                let [low, high] = [padded(low, 0.0), padded(high, 0.0)];
                *row = Lanes::round_bf16(Lanes::mul(Lanes::load(&low), scale), Lanes::mul(Lanes::load(&high), scale));
            }
            // SAFETY: a `Line` is 16 f32 without padding, so 16 are a square; `transpose` writes all of it.
            Lanes::transpose(&as_rows(&rows.each_ref()), unsafe { &mut *square.as_mut_ptr().cast::<Square>() });
        }
    }

    /// Keys, `[32 tokens, L]`, and values, `[16 pairs of tokens, 2 L]`.
    #[inline(always)]
    unsafe fn copy<const FULL: bool, const L: usize>(
        keys: &[*const D::Element],
        (dims, value): (usize, usize),
        pair: usize,
        to: *mut Line,
        mut ask: impl FnMut(usize, usize, bool),
    ) {
        let to_values = to.wrapping_add(TILE * L + pair * 2 * L).cast::<__m512i>();
        let to_keys = [to.wrapping_add(pair * L), to.wrapping_add((ROWS + pair) * L)];
        // SAFETY: by this function's contract; a step without a dimension is not read.
        unsafe {
            for step in 0..L {
                let is_there = FULL || step * STEP < dims;
                for half in 0..2 {
                    let numbers =
                        if is_there { D::step::<FULL>(keys[half], dims, step) } else { _mm512_setzero_si512() };
                    _mm512_store_si512(to_keys[half].add(step).cast(), numbers);
                    ask(half, step, false);
                }
            }
            for step in 0..L {
                let is_there = FULL || step * STEP < dims;
                let mut numbers = [_mm512_setzero_si512(); 2];
                for half in 0..2 {
                    if is_there {
                        numbers[half] = D::step::<FULL>(keys[half].add(value), dims, step);
                    }
                    ask(half, step, true);
                }
                // As pairs of tokens.
                _mm512_store_si512(to_values.add(2 * step), _mm512_unpacklo_epi16(numbers[0], numbers[1]));
                _mm512_store_si512(to_values.add(2 * step + 1), _mm512_unpackhi_epi16(numbers[0], numbers[1]));
            }
        }
    }

    #[inline(always)]
    fn score<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        let q = &queries.q.as_chunks::<ROWS>().0.as_chunks::<L>().0[group];
        assert_eq!(tile.len(), Self::copied_lines(L));
        let (tiles, key, [low, high]) = (&queries.tiles, tile.as_ptr().cast::<u8>(), &mut queries.scores);
        tiles.zero::<0>();
        tiles.zero::<1>();
        // SAFETY: there are keys of 32 tokens, and a line for each word of the queries; C lines are C numbers for each of 16
        // tokens.
        unsafe {
            for (step, q) in q.iter().enumerate() {
                let key = key.add(step * LINE);
                tiles.load::<2>(q.as_ptr().cast(), LINE);
                tiles.load::<3>(key, L * LINE);
                tiles.multiply_bf16::<0, 3, 2>();
                coming.copy_until(2 * step + 2);
                tiles.load::<3>(key.add(ROWS * L * LINE), L * LINE);
                tiles.multiply_bf16::<1, 3, 2>();
            }
            tiles.store::<0>(low.as_mut_ptr().cast(), C * size_of::<f32>());
            tiles.store::<1>(high.as_mut_ptr().cast(), C * size_of::<f32>());
        }
    }

    #[inline(always)]
    fn weigh<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        _group: usize,
        shift: __m512,
        _tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        let [low, high] = &queries.scores;
        let mut pairs = [Lanes::splat(0.0); C];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let low = exp2_for_bf16(Lanes::load(&low[i].0), shift);
            let high = exp2_for_bf16(Lanes::load(&high[i].0), shift);
            *pair = rounded_pair(low, high);
        }
        coming.copy_until(2 * L + 2);
        for (i, pair) in by_query(pairs).into_iter().enumerate() {
            Lanes::store(pair, &mut queries.weights[in_order::<C>(i)].0);
        }
        coming.copy_until(2 * L + 4);
    }

    /// Adds weights to totals as well.
    #[inline(always)]
    fn add_values<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        assert_eq!(tile.len(), Self::copied_lines(L));
        let (tiles, values, totals) =
            (&queries.tiles, tile[TILE * L..].as_ptr().cast::<u8>(), &mut queries.totals[group].0);
        let sums = queries.sums[group * C * 2 * L..].as_chunks_mut::<C>().0;
        // SAFETY: there is a line of weights and a total for each query, and one word that is read 16 times.
        unsafe {
            tiles.load::<4>(queries.weights.as_ptr().cast(), LINE);
            tiles.load::<5>((&raw const ONES).cast(), 0);
            tiles.load::<7>(totals.as_ptr().cast(), size_of::<f32>());
            tiles.multiply_bf16::<7, 4, 5>();
            tiles.store::<7>(totals.as_mut_ptr().cast(), size_of::<f32>());
        }
        for (i, sums) in sums.iter_mut().enumerate().take(2 * L) {
            // SAFETY: there are values of 16 pairs, and a line of sums for each query.
            unsafe {
                tiles.load::<6>(sums.as_ptr().cast(), LINE);
                tiles.load::<3>(values.add(i * LINE), 2 * L * LINE);
                tiles.multiply_bf16::<6, 4, 3>();
                coming.copy_until(2 * L + 2 * i + 6);
                tiles.store::<6>(sums.as_mut_ptr().cast(), LINE);
            }
        }
    }
}
