//! The definition: plain loops over lanes. On aarch64, where NEON is part of the baseline, the compiler makes vectors
//! of them.

use super::super::portable::Portable;
use super::{InputLayout, Int8, QUAD, words};
use crate::simd::LANES;

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
    fn dot_bytes<const N: usize, const SIGNED: bool>(
        quads: &[[u8; QUAD]],
        _ahead: *const u8,
        inputs: &[&[i32]; N],
        at: usize,
        first: [i32; N],
    ) -> [[i32; LANES]; N] {
        let inputs = words(inputs, at, quads.len());
        let mut sums = first.map(|first| [first; LANES]);
        for (at, quad) in quads.iter().enumerate() {
            for (sums, input) in sums.iter_mut().zip(inputs) {
                add_quad::<SIGNED>(sums, quad, input[at]);
            }
        }
        sums
    }
    #[inline(always)]
    fn dot_nibbles<const N: usize>(
        quads: &[[u8; QUAD]; 4],
        _ahead: *const u8,
        inputs: &[&[i32]; N],
        at: usize,
        first: [i32; N],
    ) -> [[i32; LANES]; N] {
        let inputs = words(inputs, at, 8);
        let mut sums = first.map(|first| [first; LANES]);
        for (at, quad) in quads.iter().enumerate() {
            let (low, high) = (quad.map(|byte| byte & 15), quad.map(|byte| byte >> 4));
            for (sums, input) in sums.iter_mut().zip(inputs) {
                add_quad::<false>(sums, &low, input[at]);
                add_quad::<false>(sums, &high, input[4 + at]);
            }
        }
        sums
    }
}

#[inline(always)]
fn add_quad<const SIGNED: bool>(sums: &mut [i32; LANES], quad: &[u8; QUAD], input: i32) {
    let input = input.to_le_bytes().map(|byte| i32::from(byte as i8));
    for (sum, weights) in sums.iter_mut().zip(quad.as_chunks::<4>().0) {
        for (weight, input) in weights.iter().zip(input) {
            *sum += i32::from(if SIGNED { *weight ^ 0x80 } else { *weight }) * input;
        }
    }
}
