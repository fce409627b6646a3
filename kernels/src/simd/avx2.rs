//! The lanes as two AVX2 registers, with FMA and F16C.
//!
//! The low register holds lanes 0 to 7, so the horizontal sum starts by adding the registers and then halves, in the
//! order that the portable level defines.

#![cfg(target_arch = "x86_64")]

use super::{Kernel, LANES, Line, Rows, Simd, Square};
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx2;

type Lanes = [__m256; 2];

/// Runs `kernel` with AVX2, FMA and F16C.
///
/// # Safety
/// The processor must have all three.
#[target_feature(enable = "avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx2>()
}

/// A function of both registers by an intrinsic.
macro_rules! lanewise {
    ($name:ident, $intrinsic:ident, $($arg:ident),+) => {
        #[inline(always)]
        fn $name($($arg: Lanes),+) -> Lanes {
            // SAFETY: called only inside `run`, whose contract is that the processor has AVX2 and FMA.
            unsafe { [$intrinsic($($arg[0]),+), $intrinsic($($arg[1]),+)] }
        }
    };
}

/// Low half onto high half, three times.
macro_rules! fold {
    ($name:ident, $wide:ident, $quad:ident, $one:ident) => {
        #[inline(always)]
        fn $name(a: Lanes) -> f32 {
            // SAFETY: called only inside `run`, whose contract is that the processor has AVX2 and FMA.
            unsafe {
                let eight = $wide(a[0], a[1]);
                let four = $quad(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = $quad(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32($one(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    };
}

/// The even or odd ones of 16 bf16. The mask keeps the upper half of each double word, the odd element.
#[inline(always)]
fn widen(words: &[u16; 16], half: usize) -> __m256 {
    // SAFETY: called only inside `run`, so the processor has AVX2; the load takes exactly the 16 elements.
    unsafe {
        let words = _mm256_loadu_si256(words.as_ptr().cast());
        _mm256_castsi256_ps(match half {
            0 => _mm256_slli_epi32::<16>(words),
            _ => _mm256_and_si256(words, _mm256_set1_epi32(-65536)),
        })
    }
}

/// 8 f32 as bf16 in the lower halves of double words: nearest even, NaN kept quiet.
#[inline(always)]
fn to_bf16(value: __m256) -> __m256i {
    // SAFETY: called only inside `run`, so the processor has AVX2.
    unsafe {
        let bits = _mm256_castps_si256(value);
        let upper = _mm256_srli_epi32::<16>(bits);
        let to_even = _mm256_add_epi32(_mm256_and_si256(upper, _mm256_set1_epi32(1)), _mm256_set1_epi32(0x7fff));
        let rounded = _mm256_srli_epi32::<16>(_mm256_add_epi32(bits, to_even));
        let quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
        let is_nan = _mm256_castps_si256(_mm256_cmp_ps::<_CMP_UNORD_Q>(value, value));
        _mm256_blendv_epi8(rounded, quiet, is_nan)
    }
}

impl Simd for Avx2 {
    type F = Lanes;
    type Part = __m256;
    type Half = __m256;
    const HALVES: usize = 2;
    const INPUT_LINES: usize = 1;
    const PARTS: usize = 2;
    const ASKS_TWICE: bool = true;
    const QUERIES: usize = 6;
    const TILE_ROWS: usize = 4;
    const COLUMN_ROWS: usize = 5;

    lanewise!(add, _mm256_add_ps, a, b);
    lanewise!(sub, _mm256_sub_ps, a, b);
    lanewise!(mul, _mm256_mul_ps, a, b);
    lanewise!(div, _mm256_div_ps, a, b);
    lanewise!(fma, _mm256_fmadd_ps, a, b, c);
    lanewise!(max, _mm256_max_ps, a, b);
    lanewise!(min, _mm256_min_ps, a, b);
    fold!(sum, _mm256_add_ps, _mm_add_ps, _mm_add_ss);
    fold!(greatest, _mm256_max_ps, _mm_max_ps, _mm_max_ss);

    #[inline(always)]
    fn splat(value: f32) -> Lanes {
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { [_mm256_set1_ps(value); 2] }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> Lanes {
        // SAFETY: AVX2 as above; both loads lie within the 16 elements.
        unsafe { [_mm256_loadu_ps(from.as_ptr()), _mm256_loadu_ps(from.as_ptr().add(8))] }
    }
    #[inline(always)]
    fn store(value: Lanes, to: &mut [f32; LANES]) {
        // SAFETY: AVX2 as above; both stores lie within the 16 elements.
        unsafe {
            _mm256_storeu_ps(to.as_mut_ptr(), value[0]);
            _mm256_storeu_ps(to.as_mut_ptr().add(8), value[1]);
        }
    }
    #[inline(always)]
    fn round(a: Lanes) -> Lanes {
        const NEAREST: i32 = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { [_mm256_round_ps::<NEAREST>(a[0]), _mm256_round_ps::<NEAREST>(a[1])] }
    }
    #[inline(always)]
    fn scale_by_exponent(a: Lanes, n: Lanes) -> Lanes {
        let mut scaled = a;
        for i in 0..2 {
            // SAFETY: called only inside `run`, so the processor has AVX2.
            unsafe {
                let biased = _mm256_add_epi32(_mm256_cvtps_epi32(n[i]), _mm256_set1_epi32(127));
                scaled[i] = _mm256_mul_ps(a[i], _mm256_castsi256_ps(_mm256_slli_epi32::<23>(biased)));
            }
        }
        scaled
    }
    #[inline(always)]
    fn select_less(a: Lanes, b: Lanes, x: Lanes, y: Lanes) -> Lanes {
        let mut selected = y;
        for i in 0..2 {
            // SAFETY: called only inside `run`, so the processor has AVX2.
            unsafe { selected[i] = _mm256_blendv_ps(y[i], x[i], _mm256_cmp_ps::<_CMP_LT_OQ>(a[i], b[i])) }
        }
        selected
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Lanes {
        let mut widened = Self::splat(0.0);
        for i in 0..2 {
            // SAFETY: AVX2 as above; each load takes 8 of the 16 elements.
            unsafe {
                let bits = _mm256_cvtepu16_epi32(_mm_loadu_si128(from.as_ptr().add(8 * i).cast()));
                widened[i] = _mm256_castsi256_ps(_mm256_slli_epi32::<16>(bits));
            }
        }
        widened
    }
    #[inline(always)]
    fn store_bf16(value: Lanes, to: &mut [u16; LANES]) {
        // SAFETY: AVX2 as above; the store fills exactly the 16 elements.
        unsafe {
            // Within 128-bit lanes, so the quarters come out as 0 2 1 3.
            let packed = _mm256_packus_epi32(to_bf16(value[0]), to_bf16(value[1]));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm256_permute4x64_epi64::<0b11_01_10_00>(packed));
        }
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Lanes {
        [Self::load_part_f16(from, 0), Self::load_part_f16(from, 1)]
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> Lanes {
        let mut widened = Self::splat(0.0);
        for i in 0..2 {
            // SAFETY: AVX2 as above; each load takes 8 of the 16 bytes.
            unsafe {
                let bytes = _mm_loadl_epi64(from.as_ptr().add(8 * i).cast());
                widened[i] = _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(bytes));
            }
        }
        widened
    }
    #[inline(always)]
    fn from_i32(value: [__m256i; 2]) -> Lanes {
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { [_mm256_cvtepi32_ps(value[0]), _mm256_cvtepi32_ps(value[1])] }
    }
    #[inline(always)]
    fn from_bits(bits: [__m256i; 2]) -> Lanes {
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { [_mm256_castsi256_ps(bits[0]), _mm256_castsi256_ps(bits[1])] }
    }
    #[inline(always)]
    fn splat_part(value: f32) -> __m256 {
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { _mm256_set1_ps(value) }
    }
    #[inline(always)]
    fn part(value: Lanes, part: usize) -> __m256 {
        value[part]
    }
    #[inline(always)]
    fn load_part(from: &[f32; LANES], part: usize) -> __m256 {
        let half = &from.as_chunks::<8>().0[part];
        // SAFETY: AVX2 as above; the load takes exactly the 8 elements of `half`.
        unsafe { _mm256_loadu_ps(half.as_ptr()) }
    }
    #[inline(always)]
    fn store_part(value: __m256, to: &mut [f32; LANES], part: usize) {
        let half = &mut to.as_chunks_mut::<8>().0[part];
        // SAFETY: AVX2 as above; the store fills exactly the 8 elements of `half`.
        unsafe { _mm256_storeu_ps(half.as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn load_part_f16(from: &[u16; LANES], part: usize) -> __m256 {
        let half = &from.as_chunks::<8>().0[part];
        // SAFETY: F16C is part of the level; the load takes exactly the 8 elements of `half`.
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(half.as_ptr().cast())) }
    }
    #[inline(always)]
    fn fma_part(a: __m256, b: __m256, c: __m256) -> __m256 {
        // SAFETY: called only inside `run`, so the processor has FMA.
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    fn load_part_bf16(from: &[u16; 2 * LANES], part: usize, half: usize) -> __m256 {
        widen(&from.as_chunks::<16>().0[part], half)
    }
    #[inline(always)]
    fn load_half(from: &[u16; 2 * LANES], part: usize, half: usize) -> __m256 {
        Self::load_part_bf16(from, part, half)
    }
    #[inline(always)]
    fn load_input(lines: &[Line], part: usize, half: usize) -> __m256 {
        widen(&lines[0].u16s().as_chunks::<16>().0[part], half)
    }
    #[inline(always)]
    fn splat_half(value: f32) -> __m256 {
        Self::splat_part(value)
    }
    #[inline(always)]
    fn transpose(from: &Rows<'_>, to: &mut Square) {
        // SAFETY: called only inside `run`, so the processor has AVX2.
        unsafe { super::transpose::avx2(from, to) }
    }
    #[inline(always)]
    fn halves_in_fours(pairs: [u32; 4], skips: bool) -> [Lanes; 2] {
        // SAFETY: AVX2 and F16C as above.
        unsafe {
            let pairs = _mm_setr_epi32(pairs[0] as i32, pairs[1] as i32, pairs[2] as i32, pairs[3] as i32);
            let halves = _mm256_cvtph_ps(_mm_srl_epi32(pairs, _mm_cvtsi32_si128(if skips { 16 } else { 0 })));
            // Those of the first two pairs in both halves, and of the last two.
            let (low, high) =
                (_mm256_permute2f128_ps::<0x00>(halves, halves), _mm256_permute2f128_ps::<0x11>(halves, halves));
            let (first, second) =
                (_mm256_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2), _mm256_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3));
            [
                [_mm256_permutevar_ps(low, first), _mm256_permutevar_ps(high, first)],
                [_mm256_permutevar_ps(low, second), _mm256_permutevar_ps(high, second)],
            ]
        }
    }
    #[inline(always)]
    fn greatest_of_fours(a: Lanes) -> Lanes {
        // SAFETY: AVX2 as above.
        unsafe {
            let two = _mm256_max_ps(a[0], a[1]);
            [_mm256_max_ps(two, _mm256_permute2f128_ps::<1>(two, two)); 2]
        }
    }
    #[inline(always)]
    fn bytes_of_fours(vectors: [Lanes; 4]) -> Line {
        // SAFETY: AVX2 as above; a line has as many bytes.
        unsafe {
            let mut halves = [_mm256_setzero_si256(); 2];
            for (half, bytes) in halves.iter_mut().enumerate() {
                let mut ints = [_mm256_setzero_si256(); 4];
                for i in 0..4 {
                    ints[i] = _mm256_cvtps_epi32(vectors[i][half]);
                }
                let (low, high) = (_mm256_packus_epi32(ints[0], ints[1]), _mm256_packus_epi32(ints[2], ints[3]));
                *bytes = _mm256_packus_epi16(low, high);
            }
            // Four bytes of each vector, by four.
            let [a, c] = [_mm256_castsi256_si128(halves[0]), _mm256_castsi256_si128(halves[1])];
            let [b, d] = [_mm256_extracti128_si256::<1>(halves[0]), _mm256_extracti128_si256::<1>(halves[1])];
            let (ab, cd) = (_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d));
            let (low, high) = (_mm_unpacklo_epi16(ab, cd), _mm_unpackhi_epi16(ab, cd));
            let (ab, cd) = (_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d));
            std::mem::transmute([low, high, _mm_unpacklo_epi16(ab, cd), _mm_unpackhi_epi16(ab, cd)])
        }
    }
    #[inline(always)]
    fn any_less(a: Lanes, b: Lanes) -> bool {
        // SAFETY: AVX2 as above.
        unsafe {
            let (low, high) = (_mm256_cmp_ps::<_CMP_LT_OQ>(a[0], b[0]), _mm256_cmp_ps::<_CMP_LT_OQ>(a[1], b[1]));
            _mm256_movemask_ps(_mm256_or_ps(low, high)) != 0
        }
    }
    #[inline(always)]
    fn interleave_quads(rows: [&[u8; 2 * LANES]; 4]) -> [Line; 2] {
        let mut quads = [Line([0.0; LANES]); 2];
        for half in 0..2 {
            // SAFETY: AVX2 as above; rows have 32 bytes and lines 64, and 16 are read or written within them.
            unsafe {
                let row = |i: usize| _mm_loadu_si128(rows[i].as_ptr().add(half * LANES).cast());
                let (a, b, c, d) = (row(0), row(1), row(2), row(3));
                let pairs = [
                    [_mm_unpacklo_epi8(a, b), _mm_unpacklo_epi8(c, d)],
                    [_mm_unpackhi_epi8(a, b), _mm_unpackhi_epi8(c, d)],
                ];
                for (eight, [a, b]) in pairs.into_iter().enumerate() {
                    for (quads, bytes) in quads.iter_mut().zip([_mm_unpacklo_epi16(a, b), _mm_unpackhi_epi16(a, b)]) {
                        let to = quads.0.as_mut_ptr().add(half * 8 + eight * 4).cast();
                        _mm_storeu_si128(to, _mm_xor_si128(bytes, _mm_set1_epi8(i8::MIN)));
                    }
                }
            }
        }
        quads
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch reads nothing and faults nowhere, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(address: *const u8) {
        // SAFETY: a prefetch reads nothing and faults nowhere, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T1>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_write(address: *const u8) {
        super::prefetch_write(address);
    }
    #[inline(always)]
    fn dot_half(acc: __m256, a: __m256, b: __m256) -> __m256 {
        Self::fma_part(a, b, acc)
    }
}
