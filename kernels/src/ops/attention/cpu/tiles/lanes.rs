//! Scores and weights of a group's queries, `[tokens, queries]` in lanes.

use super::Lanes;
use crate::simd::{Line, SHIFT, Simd};
use std::arch::x86_64::*;

/// Whether any lanes differ.
#[inline(always)]
pub(super) fn differ(a: __m512, b: __m512) -> bool {
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    unsafe { _mm512_cmpneq_epi32_mask(_mm512_castps_si512(a), _mm512_castps_si512(b)) != 0 }
}

/// The greatest of the lanes of each of C queries, in all of its lanes.
#[inline(always)]
pub(super) fn greatest_by_query<const C: usize>(mut v: __m512) -> __m512 {
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    unsafe {
        if C <= 8 {
            v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0x4e>(v, v));
        }
        if C <= 4 {
            v = _mm512_max_ps(v, _mm512_shuffle_f32x4::<0xb1>(v, v));
        }
        if C <= 2 {
            v = _mm512_max_ps(v, _mm512_permute_ps::<0x4e>(v));
        }
        if C == 1 {
            v = _mm512_max_ps(v, _mm512_permute_ps::<0xb1>(v));
        }
    }
    v
}

/// `[tokens, C]` to `[C, tokens]` with the queries [`in_order`]: the vectors' even lanes, then the odd ones, of all,
/// then of either half, and so on.
#[inline(always)]
pub(super) fn by_query<const C: usize>(mut v: [__m512; C]) -> [__m512; C] {
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    let [even, odd] = unsafe {
        let even = _mm512_set_epi32(30, 28, 26, 24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
        [even, _mm512_add_epi32(even, _mm512_set1_epi32(1))]
    };
    let mut queries = C;
    while queries > 1 {
        let from = v;
        for (to, from) in v.chunks_exact_mut(queries).zip(from.chunks_exact(queries)) {
            let (evens, odds) = to.split_at_mut(queries / 2);
            for (i, [a, b]) in from.as_chunks().0.iter().enumerate() {
                // SAFETY: as above.
                unsafe {
                    evens[i] = _mm512_permutex2var_ps(*a, even, *b);
                    odds[i] = _mm512_permutex2var_ps(*a, odd, *b);
                }
            }
        }
        queries /= 2;
    }
    v
}

/// The query of vector `i` of [`by_query`]: the bits of its number the other way round.
#[inline(always)]
pub(super) const fn in_order<const C: usize>(i: usize) -> usize {
    (2 * i).reverse_bits() >> (usize::BITS - 1 - C.ilog2()) & (C - 1)
}

/// 2^(x - integer) for an x that is not greater, with an error of 1e-4, a twentieth of what rounding to bf16 adds; exact
/// where x is an integer, and 0 below 2^-126. `shift` is `SHIFT - integer`, which must be exact.
#[inline(always)]
pub(super) fn exp2_for_bf16(x: __m512, shift: __m512) -> __m512 {
    let shifted = Lanes::add(x, shift);
    let r = Lanes::sub(x, Lanes::sub(shifted, shift));
    let mut p = Lanes::splat(0.055_008_95);
    for coefficient in [0.242_211_01, 0.693_282_9, 1.0] {
        p = Lanes::fma(p, r, Lanes::splat(coefficient));
    }
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    unsafe {
        // As integers, floats that are not negative have the order that they have as floats, and negative ones come before.
        let shifted = _mm512_castps_si512(shifted);
        let is_some = _mm512_cmpgt_epi32_mask(shifted, _mm512_set1_epi32(SHIFT.to_bits() as i32 - 127));
        let exponent = _mm512_slli_epi32::<23>(shifted);
        _mm512_castsi512_ps(_mm512_maskz_add_epi32(is_some, _mm512_castps_si512(p), exponent))
    }
}

/// The sum of what all tokens have of each of C queries, in all of its lanes: a tree whose order is the same for every C.
#[inline(always)]
pub(super) fn sum_by_query<const C: usize>([low, high]: &[[Line; C]; 2]) -> __m512 {
    let mut sums = [Lanes::splat(0.0); C];
    for i in 0..C {
        sums[i] = Lanes::add(Lanes::load(&low[i].0), Lanes::load(&high[i].0));
    }
    let mut count = C / 2;
    while count > 0 {
        for i in 0..count {
            sums[i] = Lanes::add(sums[i], sums[i + count]);
        }
        count /= 2;
    }
    let mut sum = sums[0];
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    unsafe {
        if C <= 8 {
            sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4::<0x4e>(sum, sum));
        }
        if C <= 4 {
            sum = _mm512_add_ps(sum, _mm512_shuffle_f32x4::<0xb1>(sum, sum));
        }
        if C <= 2 {
            sum = _mm512_add_ps(sum, _mm512_permute_ps::<0x4e>(sum));
        }
        if C == 1 {
            sum = _mm512_add_ps(sum, _mm512_permute_ps::<0xb1>(sum));
        }
    }
    sum
}

/// The next integer, or the same.
#[inline(always)]
pub(super) fn rounded_up(x: __m512) -> __m512 {
    // SAFETY: as above.
    unsafe { _mm512_roundscale_ps::<{ _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC }>(x) }
}

/// Two positive numbers as words of two bf16, rounded to nearest.
#[inline(always)]
pub(super) fn rounded_pair(low: __m512, high: __m512) -> __m512 {
    // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
    unsafe {
        let half = _mm512_set1_epi32(0x8000);
        let low = _mm512_add_epi32(_mm512_castps_si512(low), half);
        let high = _mm512_add_epi32(_mm512_castps_si512(high), half);
        let low = _mm512_srli_epi32::<16>(low);
        // What is set in the mask is `high`'s.
        let upper = _mm512_set1_epi32(-65536);
        _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xca>(upper, high, low))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::{LANES, SimdLevel};

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c")]
    unsafe fn powers(x: &[f32; LANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        Lanes::store(exp2_for_bf16(Lanes::load(x), Lanes::splat(SHIFT)), &mut out);
        out
    }

    /// C lines `[tokens, queries]`: what `by_query` makes of them, and the greatest by lane.
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c")]
    unsafe fn turned<const C: usize>(lines: &[[f32; LANES]; C]) -> ([[f32; LANES]; C], [f32; LANES]) {
        let (mut v, mut greatest) = ([Lanes::splat(0.0); C], Lanes::splat(f32::MIN));
        for (v, line) in v.iter_mut().zip(lines) {
            *v = Lanes::load(line);
            greatest = Lanes::max(greatest, *v);
        }
        let (mut out, mut most) = ([[0.0; LANES]; C], [0.0; LANES]);
        for (i, v) in by_query(v).into_iter().enumerate() {
            Lanes::store(v, &mut out[in_order::<C>(i)]);
        }
        Lanes::store(greatest_by_query::<C>(greatest), &mut most);
        (out, most)
    }

    fn has_bf16() -> bool {
        SimdLevel::detect() >= SimdLevel::Avx512Bf16
    }

    #[test]
    fn powers_of_two_err_as_stated_and_are_exact_at_the_ends() {
        if !has_bf16() {
            return;
        }
        for first in (0..126 * 1024).step_by(LANES) {
            let x: [f32; LANES] = std::array::from_fn(|i| -((first + i) as f32) / 1024.0);
            // SAFETY: the processor has what the function names.
            for (x, got) in x.iter().zip(unsafe { powers(&x) }) {
                let error = f64::from(got) / f64::from(*x).exp2() - 1.0;
                assert!(error.abs() < 1.1e-4, "2^{x}: {got}, wrong by {error}");
            }
        }
        let ends = [0.0, -127.0, -128.0, -1e9, f32::MIN, f32::NEG_INFINITY];
        let x = std::array::from_fn(|i| ends[i % ends.len()]);
        // SAFETY: as above.
        let got = unsafe { powers(&x) };
        assert_eq!(got[..ends.len()], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    fn queries_get_their_tokens_and_their_greatest<const C: usize>() {
        let score = |token: usize, query: usize| (token * 37 % 16 * 16 + query) as f32;
        let lines = std::array::from_fn(|i| std::array::from_fn(|lane| (i * LANES + lane) as f32))
            .map(|line: [f32; LANES]| line.map(|at| score(at as usize / C, at as usize % C)));
        // SAFETY: the caller has looked.
        let (turned, greatest) = unsafe { turned::<C>(&lines) };
        for (query, line) in turned.iter().enumerate() {
            assert_eq!(*line, std::array::from_fn(|token| score(token, query)), "query {query} of {C}");
        }
        assert_eq!(greatest, std::array::from_fn(|lane| (240 + lane % C) as f32), "of {C}");
    }

    #[test]
    fn scores_change_places_and_the_greatest_of_each_query_is_found() {
        if !has_bf16() {
            return;
        }
        queries_get_their_tokens_and_their_greatest::<1>();
        queries_get_their_tokens_and_their_greatest::<4>();
        queries_get_their_tokens_and_their_greatest::<8>();
        queries_get_their_tokens_and_their_greatest::<16>();
    }
}
