//! One VNNI instruction per quad and input.

#![cfg(target_arch = "x86_64")]

use super::super::avx512::Avx512;
use super::{InputLayout, Int8, QUAD};
use std::arch::x86_64::*;

impl<const BF16: bool> Int8 for Avx512<BF16> {
    type I = __m512i;
    const WIDE_INPUT: InputLayout = InputLayout::Bytes;
    const NARROW_INPUT: InputLayout = InputLayout::Bytes;
    const PANEL_ROWS: usize = 8;

    #[inline(always)]
    fn splat_i32(value: i32) -> __m512i {
        // SAFETY: called only inside the level's `run`, whose contract is that the processor has AVX-512.
        unsafe { _mm512_set1_epi32(value) }
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(quads: &[[u8; QUAD]], inputs: [&[i32]; N], first: [i32; N]) -> [__m512i; N] {
        let inputs = inputs.map(|input| &input[..quads.len()]);
        let mut sums = first.map(Self::splat_i32);
        for (at, quad) in quads.iter().enumerate() {
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let weights = _mm512_loadu_si512(quad.as_ptr().cast());
                for (sum, input) in sums.iter_mut().zip(inputs) {
                    *sum = _mm512_dpbusd_epi32(*sum, weights, _mm512_set1_epi32(input[at]));
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn dot_nibbles<const N: usize>(quads: &[[u8; QUAD]; 4], inputs: [&[i32]; N], first: [i32; N]) -> [__m512i; N] {
        let inputs = inputs.map(|input| &input[..8]);
        let mut sums = first.map(Self::splat_i32);
        for (at, quad) in quads.iter().enumerate() {
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let (weights, mask) = (_mm512_loadu_si512(quad.as_ptr().cast()), _mm512_set1_epi8(15));
                let low = _mm512_and_si512(weights, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                for (sum, input) in sums.iter_mut().zip(inputs) {
                    *sum = _mm512_dpbusd_epi32(*sum, low, _mm512_set1_epi32(input[at]));
                    *sum = _mm512_dpbusd_epi32(*sum, high, _mm512_set1_epi32(input[4 + at]));
                }
            }
        }
        sums
    }
}
