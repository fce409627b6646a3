//! Bytes as pairs of 16 bits through `madd`; nibbles through `maddubs`, which has room for a whole block.
//!
//! A weight of 8 bits times an input of 8 would overflow the 16-bit sums of `maddubs`, so it is split into even and
//! odd k, zero-extended, and multiplied by inputs that were widened when they were packed. A weight of 4 bits cannot
//! overflow: a block's sum in one 16-bit lane is at most 16 * 15 * 127 = 30,480.

#![cfg(target_arch = "x86_64")]

use super::super::avx2::Avx2;
use super::super::{Asks, LANES};
use super::{InputLayout, Int8, QUAD, QUADS, sixes};
use std::arch::x86_64::*;

type Sums = [__m256i; 2];

/// Weight rows 0 to 7 and 8 to 15 of a quad.
#[inline(always)]
fn halves(quad: &[u8; QUAD]) -> Sums {
    // SAFETY: called only inside the level's `run`, so the processor has AVX2; both loads lie within the 64 bytes.
    unsafe { [_mm256_loadu_si256(quad.as_ptr().cast()), _mm256_loadu_si256(quad.as_ptr().add(32).cast())] }
}

/// `len`, which the compiler does not know to be that: it leaves a loop of so many turns a loop. Unrolled, a block's quads
/// are all loaded at once, where 16 registers spill and the loads no longer follow the order of memory.
#[inline(always)]
fn left_rolled(len: usize) -> usize {
    std::hint::black_box(len)
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
    fn load_bits(from: &[f32; LANES]) -> Sums {
        // SAFETY: AVX2 by the level's contract; both loads lie within the 64 bytes.
        unsafe { [_mm256_loadu_si256(from.as_ptr().cast()), _mm256_loadu_si256(from.as_ptr().add(8).cast())] }
    }
    #[inline(always)]
    fn add_quad(acc: Sums, quad: Sums, input: Sums) -> Sums {
        let mut sums = acc;
        for (sum, (quad, input)) in sums.iter_mut().zip(quad.into_iter().zip(input)) {
            // SAFETY: AVX2 by the level's contract.
            unsafe {
                let even = _mm256_and_si256(quad, _mm256_set1_epi16(255));
                let even_input = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(input));
                let (odd, odd_input) = (_mm256_srli_epi16::<8>(quad), _mm256_srai_epi16::<8>(input));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(even, even_input));
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(odd, odd_input));
            }
        }
        sums
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; QUAD]) -> Sums {
        halves(from)
    }
    #[inline(always)]
    fn spread(words: Sums, word: usize) -> Sums {
        let mut spread = words;
        for half in &mut spread {
            // SAFETY: AVX2 by the level's contract.
            *half = unsafe {
                match word {
                    0 => _mm256_shuffle_epi32::<0x00>(*half),
                    1 => _mm256_shuffle_epi32::<0x55>(*half),
                    2 => _mm256_shuffle_epi32::<0xaa>(*half),
                    _ => _mm256_shuffle_epi32::<0xff>(*half),
                }
            };
        }
        spread
    }
    #[inline(always)]
    fn even_fours(a: Sums, b: Sums) -> Sums {
        // SAFETY: AVX2 by the level's contract.
        unsafe { [_mm256_permute2x128_si256::<0x20>(a[0], a[1]), _mm256_permute2x128_si256::<0x20>(b[0], b[1])] }
    }
    #[inline(always)]
    fn odd_fours(a: Sums, b: Sums) -> Sums {
        // SAFETY: AVX2 by the level's contract.
        unsafe { [_mm256_permute2x128_si256::<0x31>(a[0], a[1]), _mm256_permute2x128_si256::<0x31>(b[0], b[1])] }
    }
    #[inline(always)]
    fn add_i32(a: Sums, b: Sums) -> Sums {
        // SAFETY: AVX2 by the level's contract.
        unsafe { [_mm256_add_epi32(a[0], b[0]), _mm256_add_epi32(a[1], b[1])] }
    }
    #[inline(always)]
    fn load_pairs(low: &[u8; LANES], high: &[u8; LANES]) -> Sums {
        // SAFETY: AVX2 by the level's contract; each load takes exactly the 16 bytes.
        unsafe {
            let (low, high) = (_mm_loadu_si128(low.as_ptr().cast()), _mm_loadu_si128(high.as_ptr().cast()));
            let first = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(low, high));
            [first, _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(low, high))]
        }
    }
    #[inline(always)]
    fn add_pairs(acc: Sums, a: Sums, b: Sums) -> Sums {
        // SAFETY: AVX2 by the level's contract.
        unsafe {
            let first = _mm256_add_epi32(acc[0], _mm256_madd_epi16(a[0], b[0]));
            [first, _mm256_add_epi32(acc[1], _mm256_madd_epi16(a[1], b[1]))]
        }
    }
    #[inline(always)]
    fn fold_sixes(packed: &[[u8; QUAD]; 6], scales: &[[u8; LANES]; 2]) -> [[u8; QUAD]; QUADS] {
        let mut quads = sixes(packed);
        for (quads, scales) in quads.as_chunks_mut::<{ QUADS / 2 }>().0.iter_mut().zip(scales) {
            // SAFETY: AVX2 by the level's contract; loads take exactly the scales, and loads and stores half of a quad.
            unsafe {
                // Of a block that is not there they are 0.
                let scales = _mm_subs_epu8(_mm_loadu_si128(scales.as_ptr().cast()), _mm_set1_epi8(-128));
                // 32 times them, at most 128, in bytes that do not reach each other, less the bias.
                let less = _mm_xor_si128(_mm_slli_epi16::<5>(scales), _mm_set1_epi8(-128));
                let [scales, less] = [scales, less].map(|bytes| _mm256_broadcastsi128_si256(bytes));
                for (half, first) in [0, 8].into_iter().enumerate() {
                    // Of lane i byte i, in its shorts and in its bytes; a place beyond 127 is a zero.
                    let lanes = _mm256_add_epi32(_mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), _mm256_set1_epi32(first));
                    let shorts = _mm256_or_si256(lanes, _mm256_slli_epi32::<16>(lanes));
                    let scales = _mm256_shuffle_epi8(scales, _mm256_or_si256(shorts, _mm256_set1_epi16(i16::MIN)));
                    let less = _mm256_shuffle_epi8(less, _mm256_or_si256(shorts, _mm256_slli_epi16::<8>(shorts)));
                    for quad in &mut *quads {
                        let quad = quad.as_mut_ptr().cast::<__m256i>().add(half);
                        // Two bytes at once: neither product reaches the other.
                        let products = _mm256_mullo_epi16(_mm256_loadu_si256(quad), scales);
                        _mm256_storeu_si256(quad, _mm256_sub_epi8(products, less));
                    }
                }
            }
        }
        quads
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(quads: &[[u8; QUAD]], inputs: &[[i32; N]], first: &[i32; N], asks: Asks) -> [Sums; N] {
        assert_eq!(inputs.len(), 2 * quads.len());
        let mut sums = [Self::splat_i32(0); N];
        for n in 0..N {
            sums[n] = Self::splat_i32(first[n]);
        }
        for at in 0..left_rolled(quads.len()) {
            asks.amid::<Self>(at);
            asks.after::<Self>(at);
            // SAFETY: AVX2 by the level's contract; there are as many quads, and twice as many words.
            unsafe {
                let [top, bottom] = halves(quads.get_unchecked(at));
                let mask = _mm256_set1_epi16(255);
                let (top_even, bottom_even) = (_mm256_and_si256(top, mask), _mm256_and_si256(bottom, mask));
                let (top_odd, bottom_odd) = (_mm256_srli_epi16::<8>(top), _mm256_srli_epi16::<8>(bottom));
                for n in 0..N {
                    let x = _mm256_set1_epi32(inputs.get_unchecked(2 * at)[n]);
                    let y = _mm256_set1_epi32(inputs.get_unchecked(2 * at + 1)[n]);
                    let [mut top, mut bottom] = sums[n];
                    top = _mm256_add_epi32(top, _mm256_madd_epi16(top_even, x));
                    bottom = _mm256_add_epi32(bottom, _mm256_madd_epi16(bottom_even, x));
                    top = _mm256_add_epi32(top, _mm256_madd_epi16(top_odd, y));
                    bottom = _mm256_add_epi32(bottom, _mm256_madd_epi16(bottom_odd, y));
                    sums[n] = [top, bottom];
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
        asks: Asks,
    ) -> [Sums; N] {
        // SAFETY: AVX2 by the level's contract; there are 4 quads, and 8 words.
        unsafe {
            let mask = _mm256_set1_epi8(15);
            let mut sums = [[_mm256_setzero_si256(); 2]; N];
            for at in 0..left_rolled(4) {
                asks.amid::<Self>(at);
                asks.after::<Self>(at);
                let [top, bottom] = halves(quads.get_unchecked(at));
                let (top_low, bottom_low) = (_mm256_and_si256(top, mask), _mm256_and_si256(bottom, mask));
                let top_high = _mm256_and_si256(_mm256_srli_epi16::<4>(top), mask);
                let bottom_high = _mm256_and_si256(_mm256_srli_epi16::<4>(bottom), mask);
                for n in 0..N {
                    let x = _mm256_set1_epi32(inputs.get_unchecked(at)[n]);
                    let y = _mm256_set1_epi32(inputs.get_unchecked(4 + at)[n]);
                    let [mut top, mut bottom] = sums[n];
                    top = _mm256_add_epi16(top, _mm256_maddubs_epi16(top_low, x));
                    bottom = _mm256_add_epi16(bottom, _mm256_maddubs_epi16(bottom_low, x));
                    top = _mm256_add_epi16(top, _mm256_maddubs_epi16(top_high, y));
                    bottom = _mm256_add_epi16(bottom, _mm256_maddubs_epi16(bottom_high, y));
                    sums[n] = [top, bottom];
                }
            }
            let ones = _mm256_set1_epi16(1);
            for n in 0..N {
                let first = _mm256_set1_epi32(first[n]);
                let [top, bottom] = sums[n];
                let top = _mm256_add_epi32(_mm256_madd_epi16(top, ones), first);
                sums[n] = [top, _mm256_add_epi32(_mm256_madd_epi16(bottom, ones), first)];
            }
            sums
        }
    }
}
