//! Bytes as pairs of 16 bits through `madd`; nibbles through `maddubs`, which has room for a whole block.
//!
//! A weight of 8 bits times an input of 8 would overflow the 16-bit sums of `maddubs`, so it is split into even and
//! odd k, zero-extended, and multiplied by inputs that were widened when they were packed. A weight of 4 bits cannot
//! overflow: a block's sum in one 16-bit lane is at most 16 * 15 * 127 = 30,480.

#![cfg(target_arch = "x86_64")]

use super::super::avx2::Avx2;
use super::{InputLayout, Int8, QUAD};
use std::arch::x86_64::*;

type Sums = [__m256i; 2];

/// Weight rows 0 to 7 and 8 to 15 of a quad.
#[inline(always)]
fn halves(quad: &[u8; QUAD]) -> Sums {
    // SAFETY: called only inside the level's `run`, so the processor has AVX2; both loads lie within the 64 bytes.
    unsafe { [_mm256_loadu_si256(quad.as_ptr().cast()), _mm256_loadu_si256(quad.as_ptr().add(32).cast())] }
}

impl Int8 for Avx2 {
    type I = Sums;
    const WIDE_INPUT: InputLayout = InputLayout::Shorts;
    const NARROW_INPUT: InputLayout = InputLayout::Bytes;
    const PANEL_ROWS: usize = 4;

    #[inline(always)]
    fn splat_i32(value: i32) -> Sums {
        // SAFETY: called only inside the level's `run`, whose contract is that the processor has AVX2.
        unsafe { [_mm256_set1_epi32(value); 2] }
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(quads: &[[u8; QUAD]], inputs: [&[i32]; N], first: [i32; N]) -> [Sums; N] {
        let inputs = inputs.map(|input| &input[..2 * quads.len()]);
        let mut sums = first.map(Self::splat_i32);
        for (at, quad) in quads.iter().enumerate() {
            // SAFETY: AVX2 by the level's contract.
            unsafe {
                let weights = halves(quad);
                let even = weights.map(|half| _mm256_and_si256(half, _mm256_set1_epi16(255)));
                let odd = weights.map(|half| _mm256_srli_epi16::<8>(half));
                for (sums, input) in sums.iter_mut().zip(inputs) {
                    let (x, y) = (_mm256_set1_epi32(input[2 * at]), _mm256_set1_epi32(input[2 * at + 1]));
                    for half in 0..2 {
                        sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(even[half], x));
                        sums[half] = _mm256_add_epi32(sums[half], _mm256_madd_epi16(odd[half], y));
                    }
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn dot_nibbles<const N: usize>(quads: &[[u8; QUAD]; 4], inputs: [&[i32]; N], first: [i32; N]) -> [Sums; N] {
        let inputs = inputs.map(|input| &input[..8]);
        // SAFETY: AVX2 by the level's contract.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let mut shorts = [[_mm256_setzero_si256(); 2]; N];
            for (at, quad) in quads.iter().enumerate() {
                let weights = halves(quad);
                let low = weights.map(|half| _mm256_and_si256(half, mask));
                let high = weights.map(|half| _mm256_and_si256(_mm256_srli_epi16::<4>(half), mask));
                for (shorts, input) in shorts.iter_mut().zip(inputs) {
                    let (x, y) = (_mm256_set1_epi32(input[at]), _mm256_set1_epi32(input[4 + at]));
                    for half in 0..2 {
                        shorts[half] = _mm256_add_epi16(shorts[half], _mm256_maddubs_epi16(low[half], x));
                        shorts[half] = _mm256_add_epi16(shorts[half], _mm256_maddubs_epi16(high[half], y));
                    }
                }
            }
            std::array::from_fn(|n| {
                let first = _mm256_set1_epi32(first[n]);
                shorts[n].map(|sum| _mm256_add_epi32(_mm256_madd_epi16(sum, _mm256_set1_epi16(1)), first))
            })
        }
    }
}
