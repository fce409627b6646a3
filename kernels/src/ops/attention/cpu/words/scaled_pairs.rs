//! Two integers as bf16, times a scale.

use super::{PAIRS, Pairs, WeightWords, Words, rows_of, two_rows_of};
use crate::blocks::kv_format::Q8_0;
use crate::ops::attention::cpu::tile::{TILE, TokenRows};
use crate::simd::{LANES, Line, Simd, Square};
use std::mem::MaybeUninit;

/// Two integers of `q8_0`.
pub(in super::super) struct ScaledPairs;

impl<S: Simd> Words<S> for ScaledPairs {
    type Element = u8;
    type Word = S::Half;
    const NUMBERS: usize = 2;
    const FEW: usize = S::QUERIES;
    const SCALED: bool = true;
    const SQUARES: usize = 1;
    const ASKS_NEAR: bool = false;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        <Pairs as Words<S>>::lines(head_dim)
    }

    #[inline(always)]
    fn splat(word: f32) -> S::Half {
        S::splat_half(word)
    }

    #[inline(always)]
    fn load(line: &Line, part: usize) -> S::Half {
        <Pairs as Words<S>>::load(line, part)
    }

    #[inline(always)]
    fn add_product(a: S::Half, b: S::Half, sum: S::Part) -> S::Part {
        S::dot_half(sum, a, b)
    }

    #[inline(always)]
    fn columns(keys: &TokenRows<'_, u8>, first: usize, square: usize, to: &mut [Square]) {
        let [to] = to else { unreachable!("one square at a time") };
        S::transpose_int8(&rows_of(keys, (first, square * PAIRS), &mut MaybeUninit::uninit()), to);
    }

    #[inline(always)]
    fn values(values: &TokenRows<'_, u8>, word: usize, to: &mut [Line]) {
        for (block, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // What stands for 0.
            let mut padded = [[128; PAIRS]; 2];
            let [a, b] = two_rows_of(values, (word, block * PAIRS), &mut padded);
            for (pairs, to) in S::interleave_int8(a, b).into_iter().zip(to) {
                *to.u16s_mut() = pairs;
            }
        }
    }

    #[inline(always)]
    unsafe fn stored(values: &TokenRows<'_, u8>, word: usize, lines: (usize, usize), part: usize) -> S::Half {
        let at = lines.0 * LANES + lines.1 / 2 * PAIRS;
        // SAFETY: by this function's contract.
        let (a, b) = unsafe { (values.chunk(2 * word, at), values.chunk(2 * word + 1, at)) };
        S::load_half(&S::interleave_int8(a, b)[lines.1 % 2], part, 0)
    }

    #[inline(always)]
    fn scales(rows: &TokenRows<'_, u8>, to: &mut [Line]) {
        for (i, Line(to)) in to.iter_mut().enumerate() {
            let mut bits = [0; LANES];
            for (token, bits) in bits.iter_mut().enumerate() {
                *bits = Q8_0::scale_bits(rows.get(i % 2 * LANES + token), rows.head_dim, i / 2);
            }
            S::store(S::load_f16(&bits), to);
        }
    }

    #[inline(always)]
    fn query(q: &[f32], scale: f32, to: &mut [f32]) {
        <Pairs as Words<S>>::query(q, scale, to);
    }

    #[inline(always)]
    fn weights(low: S::F, high: S::F, scales: &[Line], to: &mut WeightWords) -> S::F {
        for (scales, to) in scales.as_chunks::<2>().0.iter().zip(to) {
            let (low, high) = (S::mul(low, S::load(&scales[0].0)), S::mul(high, S::load(&scales[1].0)));
            *to.u16s_mut() = S::round_bf16(low, high);
        }
        S::add(low, high)
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        <Pairs as Words<S>>::dims(sums, out);
    }
}

const _: () = assert!(TILE == PAIRS, "a line has the pairs of a tile's tokens");
