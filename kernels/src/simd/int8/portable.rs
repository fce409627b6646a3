//! The definition: plain loops over lanes. On aarch64, where NEON is part of the baseline, the compiler makes vectors
//! of them.

use super::super::portable::Portable;
use super::{InputLayout, Int8, QUAD, QUADS};
use crate::simd::{Asks, LANES};

impl Int8 for Portable {
    type I = [i32; LANES];
    const WIDE_INPUT: InputLayout = InputLayout::Bytes;
    const NARROW_INPUT: InputLayout = InputLayout::Bytes;
    const PANEL_ROWS: usize = 4;

    #[inline(always)]
    fn splat_i32(value: i32) -> [i32; LANES] {
        [value; LANES]
    }
    #[inline(always)]
    fn load_bits(from: &[f32; LANES]) -> [i32; LANES] {
        from.map(|bits| bits.to_bits() as i32)
    }
    #[inline(always)]
    fn add_quad(acc: [i32; LANES], quad: [i32; LANES], input: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| {
            let products = quad[i].to_le_bytes().into_iter().zip(input[i].to_le_bytes());
            acc[i] + products.map(|(byte, input)| i32::from(byte) * i32::from(input as i8)).sum::<i32>()
        })
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; QUAD]) -> [i32; LANES] {
        std::array::from_fn(|i| i32::from_ne_bytes(from.as_chunks().0[i]))
    }
    #[inline(always)]
    fn spread(words: [i32; LANES], word: usize) -> [i32; LANES] {
        std::array::from_fn(|i| words[i / 4 * 4 + word])
    }
    #[inline(always)]
    fn even_fours(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| [a, b][i / 8][i / 4 % 2 * 8 + i % 4])
    }
    #[inline(always)]
    fn odd_fours(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| [a, b][i / 8][i / 4 % 2 * 8 + 4 + i % 4])
    }
    #[inline(always)]
    fn add_i32(a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| a[i] + b[i])
    }
    #[inline(always)]
    fn load_pairs(low: &[u8; LANES], high: &[u8; LANES]) -> [i32; LANES] {
        std::array::from_fn(|i| i32::from(low[i]) | i32::from(high[i]) << 16)
    }
    #[inline(always)]
    fn add_pairs(acc: [i32; LANES], a: [i32; LANES], b: [i32; LANES]) -> [i32; LANES] {
        let product = |a: i32, b: i32| i32::from(a as i16) * i32::from(b as i16) + (a >> 16) * (b >> 16);
        std::array::from_fn(|i| acc[i] + product(a[i], b[i]))
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(
        quads: &[[u8; QUAD]],
        inputs: &[[i32; N]],
        first: &[i32; N],
        _: Asks,
    ) -> [[i32; LANES]; N] {
        let mut sums = first.map(|first| [first; LANES]);
        for (at, quad) in quads.iter().enumerate() {
            for (sums, input) in sums.iter_mut().zip(inputs[at]) {
                add_quad(sums, quad, input);
            }
        }
        sums
    }
    #[inline(always)]
    fn dot_nibbles<const N: usize>(
        quads: &[[u8; QUAD]; 4],
        inputs: &[[i32; N]; QUADS],
        first: &[i32; N],
        _: Asks,
    ) -> [[i32; LANES]; N] {
        let mut sums = first.map(|first| [first; LANES]);
        for (at, quad) in quads.iter().enumerate() {
            let (low, high) = (quad.map(|byte| byte & 15), quad.map(|byte| byte >> 4));
            for (sums, (first, second)) in sums.iter_mut().zip(inputs[at].into_iter().zip(inputs[4 + at])) {
                add_quad(sums, &low, first);
                add_quad(sums, &high, second);
            }
        }
        sums
    }
}

#[inline(always)]
fn add_quad(sums: &mut [i32; LANES], quad: &[u8; QUAD], input: i32) {
    let input = input.to_le_bytes().map(|byte| i32::from(byte as i8));
    for (sum, weights) in sums.iter_mut().zip(quad.as_chunks::<4>().0) {
        for (weight, input) in weights.iter().zip(input) {
            *sum += i32::from(*weight) * input;
        }
    }
}
