//! Four integers, times a scale: what is rounded, and where sums start and are scaled.

use super::{Bytes, Factors, NOTES, PAIRS, Pairs, WeightWords, Words, rows_of, tokens_of};
use crate::blocks::KvDtype;
use crate::blocks::kv_format::Q8_0;
use crate::ops::attention::cpu::MOST_BLOCKS;
use crate::ops::attention::cpu::tile::{TILE, TokenRows};
use crate::simd::int8::{BLOCK, QUADS};
use crate::simd::{LANES, Line, Simd, Square};
use std::mem::MaybeUninit;

/// Numbers of a line.
const NUMBERS: usize = 4 * LANES;
/// Greatest weight, as a byte.
const MOST: f32 = 255.0;
/// Least of what the greatest weight stands for, so that its inverse is finite.
const LEAST: f32 = 1e-30;

/// `q8_0` multiplied as integers.
pub(in super::super) struct Quads;

impl<S: Simd> Words<S> for Quads {
    type Element = u8;
    type Keys = Bytes;
    type Values = Bytes;
    const FEW: usize = S::QUERIES;
    const SCALED: bool = true;
    const SQUARES: usize = 1;
    const ASKS_NEAR: bool = false;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        <Pairs as Words<S>>::lines(head_dim)
    }

    #[inline(always)]
    fn columns(keys: &TokenRows<'_, u8>, first: usize, square: usize, to: &mut [Square]) {
        let [to] = to else { unreachable!("one square at a time") };
        S::transpose(&rows_of::<_, NUMBERS>(keys, (first, square * NUMBERS), &mut MaybeUninit::uninit()), to);
    }

    #[inline(always)]
    fn values(values: &TokenRows<'_, u8>, word: usize, to: &mut [Line]) {
        for (block, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // What stands for 0.
            let mut padded = [[128; PAIRS]; 4];
            *to = S::interleave_quads(tokens_of(values, (word, block * BLOCK), &mut padded));
        }
    }

    #[inline(always)]
    unsafe fn stored(values: &TokenRows<'_, u8>, word: usize, lines: (usize, usize), part: usize) -> S::I {
        let (at, first) = (lines.0 * LANES + lines.1 / 2 * BLOCK, 4 * word);
        // SAFETY (all): by this function's contract.
        let [a, b] = unsafe { [values.chunk(first, at), values.chunk(first + 1, at)] };
        let [c, d] = unsafe { [values.chunk(first + 2, at), values.chunk(first + 3, at)] };
        <Bytes as Factors<S>>::load(&S::interleave_quads([a, b, c, d])[lines.1 % 2], part)
    }

    #[inline(always)]
    fn scales(rows: &TokenRows<'_, u8>, to: &mut [Line]) {
        let (blocks, bytes) = (to.len() / 2, KvDtype::Q8_0.row_bytes(rows.head_dim));
        for (half, to) in to.chunks_exact_mut(blocks).enumerate() {
            if bytes < LANES {
                for (block, Line(to)) in to.iter_mut().enumerate() {
                    for (token, to) in to.iter_mut().enumerate() {
                        *to = Q8_0::scale(rows.get(half * LANES + token), rows.head_dim, block);
                    }
                }
                continue;
            }
            S::transpose_f16(&rows.of(half * LANES, bytes - LANES), to);
        }
    }

    #[inline(always)]
    fn query(q: &[f32], scale: f32, to: &mut [f32]) {
        for (q, to) in q.chunks(BLOCK).zip(to.chunks_exact_mut(QUADS + NOTES)) {
            let mut scaled = [[0.0; LANES]; 2];
            scaled.as_flattened_mut().iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
            let (low, high) = (S::load(&scaled[0]), S::load(&scaled[1]));
            let most = S::greatest(S::max(S::max(low, high), S::sub(S::splat(0.0), S::min(low, high))));
            let quants = S::round_int8(low, high, if most > 0.0 { 127.0 / most } else { 0.0 });
            write_quads(&quants, to);
            let sum: i32 = quants.iter().map(|quant| i32::from(*quant)).sum();
            (to[QUADS], to[QUADS + 1]) = (f32::from_bits((-128 * sum) as u32), most / 127.0);
        }
    }

    #[inline(always)]
    fn weights<const N: usize>(weights: &[[S::F; 2]; N], scales: &[Line], to: &mut [WeightWords]) -> [S::F; N] {
        let (lows, highs) = scales.split_at(scales.len() / 2);
        let blocks = || lows.iter().zip(highs).map(|(low, high)| [S::load(&low.0), S::load(&high.0)]).enumerate();
        let (mut up, mut down) = ([[0.0; LANES]; MOST_BLOCKS], [[0.0; LANES]; MOST_BLOCKS]);
        for (block, [low, high]) in blocks() {
            let mut greatest = [low; N];
            for i in 0..N {
                greatest[i] = S::max(S::mul(weights[i][0], low), S::mul(weights[i][1], high));
            }
            let greatest = S::max(S::greatest_of_each(greatest), S::splat(LEAST));
            S::store(S::div(S::splat(MOST), greatest), &mut up[block]);
            S::store(S::mul(greatest, S::splat(1.0 / MOST)), &mut down[block]);
        }
        for (block, [low, high]) in blocks() {
            for (i, to) in to.iter_mut().enumerate().take(N) {
                let Line(to) = &mut to[block];
                let both = [S::mul(weights[i][0], low), S::mul(weights[i][1], high)];
                write_quads(&S::round_int8(both[0], both[1], up[block][i]), to);
                to[QUADS] = down[block][i];
            }
        }
        let mut sums = [S::splat(0.0); N];
        for i in 0..N {
            sums[i] = S::add(weights[i][0], weights[i][1]);
        }
        sums
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        <Pairs as Words<S>>::dims(sums, out);
    }
}

/// Integers, or bytes, as the bits of words.
#[inline(always)]
fn write_quads(quants: &[i8; BLOCK], to: &mut [f32]) {
    for (quad, to) in quants.as_chunks::<4>().0.iter().zip(to) {
        *to = f32::from_bits(u32::from_le_bytes(quad.map(|quant| quant as u8)));
    }
}

const _: () = assert!(TILE == 4 * QUADS, "a tile's tokens are as many as a block's dimensions");
