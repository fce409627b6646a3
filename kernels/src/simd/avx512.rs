//! The lanes as one AVX-512 register, without and with the BF16 dot product.
//!
//! One type serves both levels; `BF16` decides how 32 bf16 are multiplied. Without it, evens and odds are widened by a
//! shift and a mask and go through two FMAs; with it, one `vdpbf16ps` takes both, rounding in its own way, which is
//! why the two are different levels.

#![cfg(target_arch = "x86_64")]

use super::{Kernel, LANES, Line, Rows, Simd, Square};
use std::arch::asm;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(crate) struct Avx512<const BF16: bool>;

/// Runs `kernel` with AVX-512.
///
/// # Safety
/// The processor must have AVX-512 F, BW, DQ, VL and VNNI, AVX2, FMA and F16C.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn run<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<false>>()
}

/// Runs `kernel` with AVX-512 BF16.
///
/// # Safety
/// As [`run`], and AVX-512 BF16 and VBMI.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn run_bf16<K: Kernel>(kernel: K) -> K::Output {
    kernel.run::<Avx512<true>>()
}

/// A function of the register by an intrinsic.
macro_rules! lanewise {
    ($name:ident, $intrinsic:ident, $($arg:ident),+) => {
        #[inline(always)]
        fn $name($($arg: __m512),+) -> __m512 {
            // SAFETY: called only inside `run` and `run_bf16`, whose contract is that the processor has AVX-512.
            unsafe { $intrinsic($($arg),+) }
        }
    };
}

/// Low half onto high half, four times.
macro_rules! fold {
    ($name:ident, $wide:ident, $quad:ident, $one:ident) => {
        #[inline(always)]
        fn $name(a: __m512) -> f32 {
            // SAFETY: called only inside `run` and `run_bf16`, so the processor has AVX-512 F and DQ.
            unsafe {
                let eight = $wide(_mm512_castps512_ps256(a), _mm512_extractf32x8_ps::<1>(a));
                let four = $quad(_mm256_castps256_ps128(eight), _mm256_extractf128_ps::<1>(eight));
                let two = $quad(four, _mm_movehl_ps(four, four));
                _mm_cvtss_f32($one(two, _mm_shuffle_ps::<1>(two, two)))
            }
        }
    };
}

/// The even or odd ones of 32 bf16. The mask keeps the upper half of each double word, the odd element.
#[inline(always)]
fn widen(words: __m512, half: usize) -> __m512 {
    // SAFETY: called only inside `run` and `run_bf16`, so the processor has AVX-512.
    unsafe {
        let words = _mm512_castps_si512(words);
        _mm512_castsi512_ps(match half {
            0 => _mm512_slli_epi32::<16>(words),
            _ => _mm512_and_si512(words, _mm512_set1_epi32(-65536)),
        })
    }
}

impl<const BF16: bool> Simd for Avx512<BF16> {
    type F = __m512;
    type Part = __m512;
    type Half = __m512;
    const HALVES: usize = if BF16 { 1 } else { 2 };
    const INPUT_LINES: usize = Self::HALVES;
    const PARTS: usize = 1;
    // Processors that prefer this level are AMD's: see `SimdLevel::preferred`.
    const ASKS_TWICE: bool = !BF16;
    const QUERIES: usize = 8;
    const TILE_ROWS: usize = 8;
    const COLUMN_ROWS: usize = 6;

    lanewise!(add, _mm512_add_ps, a, b);
    lanewise!(sub, _mm512_sub_ps, a, b);
    lanewise!(mul, _mm512_mul_ps, a, b);
    lanewise!(div, _mm512_div_ps, a, b);
    lanewise!(fma, _mm512_fmadd_ps, a, b, c);
    lanewise!(max, _mm512_max_ps, a, b);
    lanewise!(min, _mm512_min_ps, a, b);
    fold!(sum, _mm256_add_ps, _mm_add_ps, _mm_add_ss);
    fold!(greatest, _mm256_max_ps, _mm_max_ps, _mm_max_ss);

    #[inline(always)]
    fn greatest_of_each<const N: usize>(vectors: [__m512; N]) -> __m512 {
        let nothing = Self::splat(f32::NEG_INFINITY);
        let (mut eight, mut four, mut two) = ([nothing; 8], [nothing; 4], [nothing; 2]);
        eight[..N].copy_from_slice(&vectors);
        // SAFETY: AVX-512 as above.
        unsafe {
            // What is left of two vectors in halves, of four in quarters, of eight in pairs.
            for (i, [a, b]) in eight.as_chunks().0.iter().enumerate() {
                four[i] = Self::max(_mm512_shuffle_f32x4::<0x44>(*a, *b), _mm512_shuffle_f32x4::<0xee>(*a, *b));
            }
            for (i, [a, b]) in four.as_chunks().0.iter().enumerate() {
                two[i] = Self::max(_mm512_shuffle_f32x4::<0x88>(*a, *b), _mm512_shuffle_f32x4::<0xdd>(*a, *b));
            }
            let (a, b) = (_mm512_castps_pd(two[0]), _mm512_castps_pd(two[1]));
            let (low, high) = (_mm512_unpacklo_pd(a, b), _mm512_unpackhi_pd(a, b));
            let pairs = Self::max(_mm512_castpd_ps(low), _mm512_castpd_ps(high));
            let all = Self::max(pairs, _mm512_permute_ps::<0xb1>(pairs));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 2, 6, 10, 14, 0, 0, 0, 0, 0, 0, 0, 0);
            _mm512_mask_permutexvar_ps(nothing, (1 << N) - 1, order, all)
        }
    }
    #[inline(always)]
    fn splat(value: f32) -> __m512 {
        // SAFETY: called only inside `run` and `run_bf16`, so the processor has AVX-512.
        unsafe { _mm512_set1_ps(value) }
    }
    #[inline(always)]
    fn load(from: &[f32; LANES]) -> __m512 {
        // SAFETY: AVX-512 as above; the load takes exactly the 16 elements.
        unsafe { _mm512_loadu_ps(from.as_ptr()) }
    }
    #[inline(always)]
    fn store(value: __m512, to: &mut [f32; LANES]) {
        // SAFETY: AVX-512 as above; the store fills exactly the 16 elements.
        unsafe { _mm512_storeu_ps(to.as_mut_ptr(), value) }
    }
    #[inline(always)]
    fn round(a: __m512) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC }>(a) }
    }
    #[inline(always)]
    fn scale_by_exponent(a: __m512, n: __m512) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    fn select_less(a: __m512, b: __m512, x: __m512, y: __m512) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b), y, x) }
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> __m512 {
        // SAFETY: AVX-512 as above; the load takes exactly the 16 elements.
        unsafe {
            let bits = _mm512_cvtepu16_epi32(_mm256_loadu_si256(from.as_ptr().cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(bits))
        }
    }
    #[inline(always)]
    fn store_bf16(value: __m512, to: &mut [u16; LANES]) {
        // The BF16 conversion would flush subnormals, so both levels round through integers.
        // SAFETY: AVX-512 as above; the store fills exactly the 16 elements.
        unsafe {
            let bits = _mm512_castps_si512(value);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(value, value);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x0040_0000));
            let kept = _mm512_srli_epi32::<16>(_mm512_mask_blend_epi32(nan, rounded, quiet));
            _mm256_storeu_si256(to.as_mut_ptr().cast(), _mm512_cvtepi32_epi16(kept));
        }
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> __m512 {
        // SAFETY: AVX-512 as above; the load takes exactly the 16 elements.
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.as_ptr().cast())) }
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> __m512 {
        // SAFETY: AVX-512 as above; the load takes exactly the 16 bytes.
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.as_ptr().cast()))) }
    }
    #[inline(always)]
    fn from_i32(value: __m512i) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_cvtepi32_ps(value) }
    }
    #[inline(always)]
    fn from_bits(bits: __m512i) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_castsi512_ps(bits) }
    }
    #[inline(always)]
    fn splat_part(value: f32) -> __m512 {
        Self::splat(value)
    }
    #[inline(always)]
    fn part(value: __m512, _part: usize) -> __m512 {
        value
    }
    #[inline(always)]
    fn load_part(from: &[f32; LANES], _part: usize) -> __m512 {
        Self::load(from)
    }
    #[inline(always)]
    fn store_part(value: __m512, to: &mut [f32; LANES], _part: usize) {
        Self::store(value, to);
    }
    #[inline(always)]
    fn load_part_f16(from: &[u16; LANES], _part: usize) -> __m512 {
        Self::load_f16(from)
    }
    #[inline(always)]
    fn fma_part(a: __m512, b: __m512, c: __m512) -> __m512 {
        Self::fma(a, b, c)
    }
    #[inline(always)]
    fn load_part_bf16(from: &[u16; 2 * LANES], _part: usize, half: usize) -> __m512 {
        // SAFETY: AVX-512 as above; the load takes exactly the 32 elements.
        widen(unsafe { _mm512_loadu_ps(from.as_ptr().cast()) }, half)
    }
    #[inline(always)]
    fn load_half(from: &[u16; 2 * LANES], part: usize, half: usize) -> __m512 {
        if BF16 {
            // SAFETY: AVX-512 as above; the load takes exactly the 32 elements.
            return unsafe { _mm512_loadu_ps(from.as_ptr().cast()) };
        }
        Self::load_part_bf16(from, part, half)
    }
    #[inline(always)]
    fn load_input(lines: &[Line], _part: usize, half: usize) -> __m512 {
        Self::load(&lines[half].0)
    }
    #[inline(always)]
    fn splat_half(value: f32) -> __m512 {
        Self::splat(value)
    }
    #[inline(always)]
    fn transpose(from: &Rows<'_>, to: &mut Square) {
        // SAFETY: AVX-512 as above.
        let columns = unsafe { super::transpose::avx512(from) };
        for (column, to) in columns.into_iter().zip(to) {
            Self::store(column, to);
        }
    }
    #[inline(always)]
    fn transpose_bf16(from: &Rows<'_>, to: &mut [Square; 2]) {
        // SAFETY: AVX-512 as above.
        let columns = unsafe { super::transpose::avx512(from) };
        for (pairs, to) in columns.into_iter().zip(to.as_flattened_mut().as_chunks_mut::<2>().0) {
            Self::store(widen(pairs, 0), &mut to[0]);
            Self::store(widen(pairs, 1), &mut to[1]);
        }
    }
    #[inline(always)]
    fn interleave(a: &[u16; 2 * LANES], b: &[u16; 2 * LANES], half: usize) -> [u16; 2 * LANES] {
        // SAFETY: AVX-512 as above; the loads take exactly the 32 elements, and the result has as many bytes.
        unsafe {
            let (a, b) = (_mm512_loadu_si512(a.as_ptr().cast()), _mm512_loadu_si512(b.as_ptr().cast()));
            std::mem::transmute(match half {
                0 => _mm512_unpacklo_epi16(a, b),
                _ => _mm512_unpackhi_epi16(a, b),
            })
        }
    }
    #[inline(always)]
    fn round_bf16(low: __m512, high: __m512) -> [u16; 2 * LANES] {
        if BF16 {
            // SAFETY: as for `dot_half`; the result has as many bytes.
            return unsafe { std::mem::transmute::<__m512bh, [u16; 2 * LANES]>(_mm512_cvtne2ps_pbh(high, low)) };
        }
        super::round_both::<Self>(low, high)
    }
    #[inline(always)]
    fn round_int8(low: __m512, high: __m512, inverse: f32) -> [i8; 2 * LANES] {
        /// The first byte of every number.
        static ORDER: [u8; 64] = {
            let mut order = [0; 64];
            let mut i = 0;
            while i < 32 {
                order[i] = 4 * i as u8;
                i += 1;
            }
            order
        };
        // SAFETY: AVX-512, and AVX2, as above, and VBMI as for `dot_half`; the load takes exactly the order, and the store
        // fills exactly the 32 bytes.
        unsafe {
            let inverse = _mm512_set1_ps(inverse);
            let low = _mm512_cvtps_epi32(_mm512_mul_ps(low, inverse));
            let high = _mm512_cvtps_epi32(_mm512_mul_ps(high, inverse));
            let both = if BF16 {
                let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
                _mm512_castsi512_si256(_mm512_permutex2var_epi8(low, order, high))
            } else {
                let (low, high) = (_mm512_cvtepi32_epi8(low), _mm512_cvtepi32_epi8(high));
                _mm256_inserti128_si256::<1>(_mm256_castsi128_si256(low), high)
            };
            let mut quants = [0; 2 * LANES];
            _mm256_storeu_si256(quants.as_mut_ptr().cast(), both);
            quants
        }
    }
    #[inline(always)]
    fn greatest_of_fours(a: __m512) -> __m512 {
        // SAFETY: AVX-512 as above.
        unsafe {
            let two = Self::max(a, _mm512_shuffle_f32x4::<0x4e>(a, a));
            Self::max(two, _mm512_shuffle_f32x4::<0xb1>(two, two))
        }
    }
    #[inline(always)]
    fn bytes_of_fours(vectors: [__m512; 4]) -> Line {
        /// The bytes of the same vector and lane, by four.
        static ORDER: [u8; 64] = {
            let mut order = [0; 64];
            let mut i = 0;
            while i < 64 {
                order[i] = (i % 4 * 16 + i / 16 * 4 + i / 4 % 4) as u8;
                i += 1;
            }
            order
        };
        // SAFETY: AVX-512 as above, and a line has as many bytes.
        unsafe {
            let mut ints = [_mm512_setzero_si512(); 4];
            for i in 0..4 {
                ints[i] = _mm512_cvtps_epi32(vectors[i]);
            }
            let (low, high) = (_mm512_packus_epi32(ints[0], ints[1]), _mm512_packus_epi32(ints[2], ints[3]));
            // Four bytes of each vector, by four.
            let bytes = _mm512_packus_epi16(low, high);
            if BF16 {
                let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
                return std::mem::transmute::<__m512i, Line>(permute_bytes(bytes, order));
            }
            let by_vector = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            let bytes = _mm512_permutexvar_epi32(by_vector, bytes);
            let by_lane = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            std::mem::transmute::<__m512i, Line>(_mm512_shuffle_epi8(bytes, _mm512_broadcast_i32x4(by_lane)))
        }
    }
    #[inline(always)]
    fn halves_in_fours(pairs: [u32; 4], skips: bool) -> [__m512; 2] {
        // SAFETY: AVX-512, and F16C which is part of it, as above.
        unsafe {
            let pairs = _mm_setr_epi32(pairs[0] as i32, pairs[1] as i32, pairs[2] as i32, pairs[3] as i32);
            let halves = _mm256_cvtph_ps(_mm_srl_epi32(pairs, _mm_cvtsi32_si128(if skips { 16 } else { 0 })));
            let halves = _mm512_castps256_ps512(halves);
            let first = _mm512_setr_epi32(0, 0, 0, 0, 2, 2, 2, 2, 4, 4, 4, 4, 6, 6, 6, 6);
            let second = _mm512_setr_epi32(1, 1, 1, 1, 3, 3, 3, 3, 5, 5, 5, 5, 7, 7, 7, 7);
            [_mm512_permutexvar_ps(first, halves), _mm512_permutexvar_ps(second, halves)]
        }
    }
    #[inline(always)]
    fn any_less(a: __m512, b: __m512) -> bool {
        // SAFETY: AVX-512 as above.
        unsafe { _mm512_cmp_ps_mask::<_CMP_LT_OQ>(a, b) != 0 }
    }
    #[inline(always)]
    fn interleave_quads(rows: [&[u8; 2 * LANES]; 4]) -> [Line; 2] {
        /// The first number of a, the first of b, the second of a, and so on.
        static ORDER: [u8; 64] = {
            let mut order = [0; 64];
            let mut i = 0;
            while i < 64 {
                order[i] = (i / 2 + i % 2 * 64) as u8;
                i += 1;
            }
            order
        };
        // SAFETY: AVX-512 as above, and VBMI as for `dot_half`; the loads take exactly the 32 bytes, and those of the order.
        unsafe {
            let mut pairs = [_mm512_setzero_si512(); 2];
            for (i, pairs) in pairs.iter_mut().enumerate() {
                let a = _mm256_loadu_si256(rows[2 * i].as_ptr().cast());
                let b = _mm256_loadu_si256(rows[2 * i + 1].as_ptr().cast());
                *pairs = if BF16 {
                    let order = _mm512_loadu_si512(ORDER.as_ptr().cast());
                    _mm512_permutex2var_epi8(_mm512_castsi256_si512(a), order, _mm512_castsi256_si512(b))
                } else {
                    let (a, b) = (_mm512_cvtepu8_epi16(a), _mm512_cvtepu8_epi16(b));
                    _mm512_or_si512(a, _mm512_slli_epi16::<8>(b))
                };
            }
            let less_128 = |quads| std::mem::transmute(_mm512_xor_si512(quads, _mm512_set1_epi8(i8::MIN)));
            [less_128(_mm512_unpacklo_epi16(pairs[0], pairs[1])), less_128(_mm512_unpackhi_epi16(pairs[0], pairs[1]))]
        }
    }
    #[inline(always)]
    fn sum_int8(quants: &[[i8; 2 * LANES]; 8]) -> [[i32; 2]; 8] {
        // SAFETY: AVX-512 with VNNI, as above; there are four vectors, and all types are plain bytes.
        unsafe {
            let quants = quants.as_ptr().cast::<__m512i>();
            let fours = |at| {
                let quants = _mm512_loadu_si512(quants.add(at));
                _mm512_dpbusd_epi32(_mm512_setzero_si512(), _mm512_set1_epi8(1), quants)
            };
            let both = |a, b| _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
            let (low, high) = (both(fours(0), fours(1)), both(fours(2), fours(3)));
            // Sum i of vector v at 4 * i + v.
            let sums = _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
            let order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
            std::mem::transmute(_mm512_permutexvar_epi32(order, sums))
        }
    }
    #[inline(always)]
    fn prefetch(address: *const u8) {
        // SAFETY: a prefetch reads nothing and faults nowhere, and every x86-64 has it.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) }
    }
    #[inline(always)]
    fn prefetch_far(address: *const u8) {
        // SAFETY: a prefetch reads nothing and faults nowhere, and every x86-64 has it.
        unsafe {
            match Self::ASKS_TWICE {
                true => _mm_prefetch::<_MM_HINT_T1>(address.cast()),
                false => _mm_prefetch::<_MM_HINT_T0>(address.cast()),
            }
        }
    }
    #[inline(always)]
    fn prefetch_write(address: *const u8) {
        super::prefetch_write(address);
    }
    #[inline(always)]
    fn dot_half(acc: __m512, a: __m512, b: __m512) -> __m512 {
        if BF16 {
            // SAFETY: `BF16` is true only inside `run_bf16`, whose contract names the feature; both types are 64
            // plain bytes.
            unsafe {
                let [a, b] = [a, b].map(|bits| std::mem::transmute::<__m512, __m512bh>(bits));
                return _mm512_dpbf16_ps(acc, a, b);
            }
        }
        Self::fma(a, b, acc)
    }
}

/// Bytes in another order.
///
/// In assembly, since the compiler takes it apart into a dozen of shuffles of quarters.
#[inline]
#[target_feature(enable = "avx512f,avx512vbmi")]
fn permute_bytes(bytes: __m512i, order: __m512i) -> __m512i {
    let permuted: __m512i;
    // SAFETY: the instruction only writes its result.
    unsafe {
        asm!("vpermb {permuted}, {order}, {bytes}", permuted = lateout(zmm_reg) permuted, order = in(zmm_reg) order,
            bytes = in(zmm_reg) bytes, options(pure, nomem, nostack, preserves_flags));
    }
    permuted
}
