//! One VNNI instruction per quad and input.

#![cfg(target_arch = "x86_64")]

use super::super::LANES;
use super::super::avx512::Avx512;
use super::{InputLayout, Int8, QUAD, QUADS};
use std::arch::asm;
use std::arch::x86_64::*;

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
        unsafe { add_pairs(acc, a, b) }
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(quads: &[[u8; QUAD]], inputs: &[[i32; N]], first: &[i32; N]) -> [__m512i; N] {
        assert_eq!(inputs.len(), quads.len());
        let mut sums = splat_each(first);
        for (quad, inputs) in quads.iter().zip(inputs) {
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe { add_dots(&mut sums, _mm512_loadu_si512(quad.as_ptr().cast()), inputs) };
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
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let (weights, mask) = (_mm512_loadu_si512(quad.as_ptr().cast()), _mm512_set1_epi8(15));
                let low = _mm512_and_si512(weights, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                add_dots(&mut sums, low, &inputs[at]);
                add_dots(&mut sums, high, &inputs[4 + at]);
            }
        }
        sums
    }
}

/// In assembly, since the compiler makes two instructions of the intrinsic where sums wait for each other.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_pairs(mut acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
    // SAFETY: the instruction changes only the sums.
    unsafe {
        asm!("vpdpwssd {acc}, {a}, {b}", acc = inout(zmm_reg) acc, a = in(zmm_reg) a, b = in(zmm_reg) b,
            options(pure, nomem, nostack, preserves_flags));
    }
    acc
}

/// Adds the dot products of a quad with words of N inputs, each read where it lies.
///
/// In assembly, since the compiler would first load all inputs that a block needs, for which there are not registers enough:
/// 8 inputs took an eighth longer.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dots<const N: usize>(sums: &mut [__m512i; N], quad: __m512i, inputs: &[i32; N]) {
    macro_rules! dots {
        ($($sum:ident $at:literal),+) => {
            // SAFETY: the instructions read the N inputs and change only the sums.
            unsafe {
                asm!(
                    $(concat!("vpdpbusd {", stringify!($sum), "}, {quad}, dword ptr [{inputs} + 4 * ", $at, "]{{1to16}}"),)+
                    $($sum = inout(zmm_reg) *$sum,)+
                    quad = in(zmm_reg) quad,
                    inputs = in(reg) inputs.as_ptr(),
                    options(pure, readonly, nostack, preserves_flags),
                )
            }
        };
    }
    match sums.as_mut_slice() {
        [a] => dots!(a 0),
        [a, b] => dots!(a 0, b 1),
        [a, b, c] => dots!(a 0, b 1, c 2),
        [a, b, c, d] => dots!(a 0, b 1, c 2, d 3),
        [a, b, c, d, e] => dots!(a 0, b 1, c 2, d 3, e 4),
        [a, b, c, d, e, f] => dots!(a 0, b 1, c 2, d 3, e 4, f 5),
        [a, b, c, d, e, f, g] => dots!(a 0, b 1, c 2, d 3, e 4, f 5, g 6),
        [a, b, c, d, e, f, g, h] => dots!(a 0, b 1, c 2, d 3, e 4, f 5, g 6, h 7),
        _ => unreachable!("a level's PANEL_ROWS"),
    }
}
