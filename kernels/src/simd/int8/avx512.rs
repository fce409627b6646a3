//! One VNNI instruction per quad and input.

#![cfg(target_arch = "x86_64")]

use super::super::LANES;
use super::super::avx512::Avx512;
use super::{InputLayout, Int8, QUAD, QUADS};
use std::arch::x86_64::*;
use std::sync::atomic::{Ordering, compiler_fence};

#[inline(always)]
fn splat_each<const N: usize>(values: &[i32; N]) -> [__m512i; N] {
    let mut splats = [Avx512::<false>::splat_i32(0); N];
    for n in 0..N {
        splats[n] = Avx512::<false>::splat_i32(values[n]);
    }
    splats
}

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
    fn load_pairs(low: &[u8; LANES], high: &[u8; LANES]) -> __m512i {
        // SAFETY: AVX-512 by the level's contract; each load takes exactly the 16 bytes.
        unsafe {
            let low = _mm512_cvtepu8_epi32(_mm_loadu_si128(low.as_ptr().cast()));
            let high = _mm512_cvtepu8_epi32(_mm_loadu_si128(high.as_ptr().cast()));
            _mm512_or_si512(low, _mm512_slli_epi32::<16>(high))
        }
    }
    #[inline(always)]
    fn add_pairs(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 VNNI by the level's contract.
        unsafe { _mm512_dpwssd_epi32(acc, a, b) }
    }
    #[inline(always)]
    fn dot_bytes<const N: usize, const SIGNED: bool>(
        quads: &[[u8; QUAD]],
        inputs: &[[i32; N]],
        first: &[i32; N],
    ) -> [__m512i; N] {
        assert_eq!(inputs.len(), quads.len());
        let mut sums = splat_each(first);
        for (at, quad) in quads.iter().enumerate() {
            in_order::<N>();
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let mut weights = _mm512_loadu_si512(quad.as_ptr().cast());
                if SIGNED {
                    weights = _mm512_xor_si512(weights, _mm512_set1_epi8(i8::MIN));
                }
                for n in 0..N {
                    sums[n] = _mm512_dpbusd_epi32(sums[n], weights, _mm512_set1_epi32(inputs[at][n]));
                }
            }
        }
        sums
    }
    #[inline(always)]
    fn dot_nibbles<const N: usize>(
        quads: &[[u8; QUAD]; 4],
        inputs: &[[i32; N]; QUADS],
        first: &[i32; N],
    ) -> [__m512i; N] {
        let mut sums = splat_each(first);
        for (at, quad) in quads.iter().enumerate() {
            in_order::<N>();
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let (weights, mask) = (_mm512_loadu_si512(quad.as_ptr().cast()), _mm512_set1_epi8(15));
                let low = _mm512_and_si512(weights, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                for n in 0..N {
                    sums[n] = _mm512_dpbusd_epi32(sums[n], low, _mm512_set1_epi32(inputs[at][n]));
                    sums[n] = _mm512_dpbusd_epi32(sums[n], high, _mm512_set1_epi32(inputs[4 + at][n]));
                }
            }
        }
        sums
    }
}

/// Keeps the compiler from loading the inputs of later quads, where they are many: it would run out of registers.
#[inline(always)]
fn in_order<const N: usize>() {
    if N > 1 {
        compiler_fence(Ordering::SeqCst);
    }
}
