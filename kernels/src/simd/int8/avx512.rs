//! One VNNI instruction per quad and input.

#![cfg(target_arch = "x86_64")]

use super::super::avx512::Avx512;
use super::super::{Asks, LANES};
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
    fn load_bits(from: &[f32; LANES]) -> __m512i {
        // SAFETY: AVX-512 by the level's contract; the load takes exactly the 64 bytes.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn add_quad(acc: __m512i, quad: __m512i, input: __m512i) -> __m512i {
        // SAFETY: AVX-512 VNNI by the level's contract.
        unsafe { _mm512_dpbusd_epi32(acc, quad, input) }
    }
    #[inline(always)]
    fn load_bytes(from: &[u8; QUAD]) -> __m512i {
        // SAFETY: AVX-512 by the level's contract; the load takes exactly the 64 bytes.
        unsafe { _mm512_loadu_si512(from.as_ptr().cast()) }
    }
    #[inline(always)]
    fn spread(words: __m512i, word: usize) -> __m512i {
        // SAFETY: AVX-512 by the level's contract.
        unsafe {
            match word {
                0 => _mm512_shuffle_epi32::<0x00>(words),
                1 => _mm512_shuffle_epi32::<0x55>(words),
                2 => _mm512_shuffle_epi32::<0xaa>(words),
                _ => _mm512_shuffle_epi32::<0xff>(words),
            }
        }
    }
    #[inline(always)]
    fn add_spread<const N: usize>(
        sums: &mut [[__m512i; 4]; N],
        quads: &[__m512i; 4],
        word: usize,
        inputs: [&[f32; LANES]; N],
    ) {
        let mut spread = *quads;
        for spread in &mut spread {
            *spread = Self::spread(*spread, word);
        }
        for n in 0..N {
            // SAFETY: AVX-512 VNNI by the level's contract.
            unsafe { add_quads(&mut sums[n], &spread, Self::load_bits(inputs[n])) };
        }
    }
    #[inline(always)]
    fn even_fours(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 by the level's contract.
        unsafe { _mm512_shuffle_i32x4::<0x88>(a, b) }
    }
    #[inline(always)]
    fn odd_fours(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 by the level's contract.
        unsafe { _mm512_shuffle_i32x4::<0xdd>(a, b) }
    }
    #[inline(always)]
    fn add_i32(a: __m512i, b: __m512i) -> __m512i {
        // SAFETY: AVX-512 by the level's contract.
        unsafe { _mm512_add_epi32(a, b) }
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
    // Zen 4 and 5 multiply i32 as fast as pairs; Intel takes two steps.
    const MULTIPLIES: bool = BF16;
    #[inline(always)]
    fn add_product(acc: __m512i, a: __m512i, b: __m512i) -> __m512i {
        if !BF16 {
            return Self::add_pairs(acc, a, b);
        }
        // SAFETY: AVX-512 by the level's contract.
        unsafe { _mm512_add_epi32(acc, _mm512_mullo_epi32(a, b)) }
    }
    #[inline(always)]
    fn fold_sixes(packed: &[[u8; QUAD]; 6], scales: &[[u8; LANES]; 2]) -> [[u8; QUAD]; QUADS] {
        let mut bytes = [[0; QUAD]; QUADS];
        // SAFETY: AVX-512 by the level's contract; each store takes exactly a quad.
        unsafe {
            for (bytes, quad) in bytes.iter_mut().zip(folded_sixes::<true>(packed, scales)) {
                _mm512_storeu_si512(bytes.as_mut_ptr().cast(), quad);
            }
        }
        bytes
    }
    const FOLDS: bool = true;
    #[inline(always)]
    fn add_folded<const N: usize>(
        sums: &mut [__m512i; N],
        quads: &[[u8; QUAD]; 4],
        [scales, minima]: &[[u8; LANES]; 2],
        inputs: &[[i32; N]; QUADS],
        asks: Asks,
    ) {
        // SAFETY: AVX-512 VNNI by the level's contract; loads take exactly the quad and the scales.
        unsafe {
            let (scales, bias) = (in_lanes::<true>(load_lanes(scales)), in_lanes::<false>(load_lanes(minima)));
            let bias = _mm512_sub_epi8(_mm512_set1_epi8(-128), _mm512_add_epi8(bias, bias));
            let mask = _mm512_set1_epi8(15);
            for (at, quad) in quads.iter().enumerate() {
                let weights = _mm512_loadu_si512(quad.as_ptr().cast());
                let low = _mm512_and_si512(weights, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                // Two bytes at once: neither product reaches the other.
                let low = _mm512_add_epi8(_mm512_mullo_epi16(low, scales), bias);
                let high = _mm512_add_epi8(_mm512_mullo_epi16(high, scales), bias);
                add_dots(&mut sums[..N / 2], low, &inputs[at][..N / 2]);
                asks.amid::<Self>(at);
                add_dots(&mut sums[N / 2..], low, &inputs[at][N / 2..]);
                add_dots(&mut sums[..N / 2], high, &inputs[4 + at][..N / 2]);
                asks.after::<Self>(at);
                add_dots(&mut sums[N / 2..], high, &inputs[4 + at][N / 2..]);
            }
        }
    }
    #[inline(always)]
    fn dot_bytes<const N: usize>(
        quads: &[[u8; QUAD]],
        inputs: &[[i32; N]],
        first: &[i32; N],
        asks: Asks,
    ) -> [__m512i; N] {
        assert_eq!(inputs.len(), quads.len());
        let mut sums = splat_each(first);
        for (at, (quad, inputs)) in quads.iter().zip(inputs).enumerate() {
            let (begun, rest) = inputs.split_at(N / 2);
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let quad = _mm512_loadu_si512(quad.as_ptr().cast());
                add_dots_of_few_loads::<BF16>(&mut sums[..N / 2], quad, begun);
                asks.amid::<Self>(at);
                add_dots_of_few_loads::<BF16>(&mut sums[N / 2..], quad, rest);
                asks.after::<Self>(at);
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
    ) -> [__m512i; N] {
        let mut sums = splat_each(first);
        for (at, quad) in quads.iter().enumerate() {
            // SAFETY: AVX-512 VNNI by the level's contract; the load takes exactly the quad.
            unsafe {
                let (weights, mask) = (_mm512_loadu_si512(quad.as_ptr().cast()), _mm512_set1_epi8(15));
                let low = _mm512_and_si512(weights, mask);
                let high = _mm512_and_si512(_mm512_srli_epi16::<4>(weights), mask);
                add_dots(&mut sums[..N / 2], low, &inputs[at][..N / 2]);
                asks.amid::<Self>(at);
                add_dots(&mut sums[N / 2..], low, &inputs[at][N / 2..]);
                add_dots(&mut sums[..N / 2], high, &inputs[4 + at][..N / 2]);
                asks.after::<Self>(at);
                add_dots(&mut sums[N / 2..], high, &inputs[4 + at][N / 2..]);
            }
        }
        sums
    }
}

/// Byte i in each byte of lane i; with `ZEROS` in each second one, besides zeros.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn in_lanes<const ZEROS: bool>(bytes: __m128i) -> __m512i {
    // A place beyond 127 is a zero.
    const fn places(others: u8) -> [[u8; 4]; LANES] {
        let mut places = [[0; 4]; LANES];
        let mut lane = 0;
        while lane < LANES {
            let place = lane as u8;
            places[lane] = [place, place | others, place, place | others];
            lane += 1;
        }
        places
    }
    let places = const { if ZEROS { &places(128) } else { &places(0) } };
    // SAFETY: the load takes exactly the places.
    let places = unsafe { _mm512_loadu_si512(places.as_ptr().cast()) };
    _mm512_shuffle_epi8(_mm512_broadcast_i32x4(bytes), places)
}

/// A byte of each lane.
#[inline]
#[target_feature(enable = "avx512f")]
pub(crate) fn load_lanes(bytes: &[u8; LANES]) -> __m128i {
    // SAFETY: the load takes exactly the bytes.
    unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) }
}

/// As [`Int8::fold_sixes`]; signed if not biased.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
pub(crate) fn folded_sixes<const BIASED: bool>(
    packed: &[[u8; QUAD]; 6],
    scales: &[[u8; LANES]; 2],
) -> [__m512i; QUADS] {
    let (six, zero) = (_mm512_set1_epi8(63), _mm512_setzero_si512());
    let mut stored = [zero; 6];
    let mut quads = [zero; QUADS];
    for (at, packed) in packed.iter().enumerate() {
        // SAFETY: the load takes exactly the quad.
        stored[at] = unsafe { _mm512_loadu_si512(packed.as_ptr().cast()) };
        quads[at] = _mm512_and_si512(stored[at], six);
    }
    for (at, [first, second, third]) in stored.as_chunks().0.iter().enumerate() {
        // Of each the bits where the mask says so: the second's and third's, and then the first's.
        const SELECT: i32 = 0xca;
        let (first, second) = (_mm512_srli_epi16::<6>(*first), _mm512_srli_epi16::<4>(*second));
        let upper = _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi8(12), second, _mm512_srli_epi16::<2>(*third));
        let all = _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi8(3), first, upper);
        quads[6 + at] = _mm512_and_si512(all, six);
    }
    for (half, scales) in scales.iter().enumerate() {
        // Of a block that is not there they are 0.
        let scales = _mm_subs_epu8(load_lanes(scales), _mm_set1_epi8(-128));
        // 32 times them, at most 128, in bytes that do not reach each other.
        let less = _mm_slli_epi16::<5>(scales);
        let less = if BIASED { _mm_xor_si128(less, _mm_set1_epi8(-128)) } else { less };
        let (scales, less) = (in_lanes::<true>(scales), in_lanes::<false>(less));
        for quad in &mut quads[half * QUADS / 2..][..QUADS / 2] {
            *quad = _mm512_sub_epi8(_mm512_mullo_epi16(*quad, scales), less);
        }
    }
    quads
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

/// Adds the dot products of four quads and the same inputs.
///
/// In assembly and not `pure`, so that it stays in line: the compiler would do all words of one four of inputs before the next
/// four, and there are not registers enough for all of the quads' words.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_quads(sums: &mut [__m512i; 4], quads: &[__m512i; 4], inputs: __m512i) {
    let [a, b, c, d] = sums;
    // SAFETY: the instructions change only the sums.
    unsafe {
        asm!(
            "vpdpbusd {a}, {first}, {inputs}",
            "vpdpbusd {b}, {second}, {inputs}",
            "vpdpbusd {c}, {third}, {inputs}",
            "vpdpbusd {d}, {fourth}, {inputs}",
            a = inout(zmm_reg) *a,
            b = inout(zmm_reg) *b,
            c = inout(zmm_reg) *c,
            d = inout(zmm_reg) *d,
            first = in(zmm_reg) quads[0],
            second = in(zmm_reg) quads[1],
            third = in(zmm_reg) quads[2],
            fourth = in(zmm_reg) quads[3],
            inputs = in(zmm_reg) inputs,
            options(nomem, nostack, preserves_flags),
        )
    }
}

/// Adds the dot products of a quad with words of some inputs, each read where it lies.
///
/// In assembly, since the compiler would first load all inputs that a block needs, for which there are not registers enough:
/// 8 inputs took an eighth longer. Not `pure`, so that it stays where it is between the asks.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dots(sums: &mut [__m512i], quad: __m512i, inputs: &[i32]) {
    assert_eq!(inputs.len(), sums.len());
    macro_rules! dots {
        ($($sum:ident $at:literal),+) => {
            // SAFETY: the instructions read the inputs, as many as sums, and change only the sums.
            unsafe {
                asm!(
                    $(concat!("vpdpbusd {", stringify!($sum), "}, {quad}, dword ptr [{inputs} + 4 * ", $at, "]{{1to16}}"),)+
                    $($sum = inout(zmm_reg) *$sum,)+
                    quad = in(zmm_reg) quad,
                    inputs = in(reg) inputs.as_ptr(),
                    options(readonly, nostack, preserves_flags),
                )
            }
        };
    }
    match sums {
        [] => {}
        [a] => dots!(a 0),
        [a, b] => dots!(a 0, b 1),
        [a, b, c] => dots!(a 0, b 1, c 2),
        [a, b, c, d] => dots!(a 0, b 1, c 2, d 3),
        _ => unreachable!("half of a level's PANEL_ROWS"),
    }
}

/// The same where loads are the limit: AMD's processors load no more words than they multiply, and scales come on top, so
/// that of four inputs two are made of one load. 16 rows of q8_0 take 0.96 of the time on Zen 5, of q6_K 0.92. Not where
/// nibbles are unpacked between the loads, nor on Intel's, which multiply where they shuffle.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
fn add_dots_of_few_loads<const AMD: bool>(sums: &mut [__m512i], quad: __m512i, inputs: &[i32]) {
    let ([a, b, c, d], true) = (&mut *sums, AMD) else { return add_dots(sums, quad, inputs) };
    assert_eq!(inputs.len(), 4);
    // Named, since of a register without a name the compiler may forget the kind.
    let (words, word): (__m512i, __m512i);
    // SAFETY: the instructions read the four inputs and change only the sums.
    unsafe {
        asm!(
            "vbroadcasti32x4 {words}, xmmword ptr [{inputs}]",
            "vpshufd {word}, {words}, 0x00",
            "vpdpbusd {a}, {quad}, {word}",
            "vpdpbusd {c}, {quad}, dword ptr [{inputs} + 8]{{1to16}}",
            "vpshufd {word}, {words}, 0x55",
            "vpdpbusd {b}, {quad}, {word}",
            "vpdpbusd {d}, {quad}, dword ptr [{inputs} + 12]{{1to16}}",
            a = inout(zmm_reg) *a,
            b = inout(zmm_reg) *b,
            c = inout(zmm_reg) *c,
            d = inout(zmm_reg) *d,
            quad = in(zmm_reg) quad,
            words = out(zmm_reg) words,
            word = out(zmm_reg) word,
            inputs = in(reg) inputs.as_ptr(),
            options(readonly, nostack, preserves_flags),
        )
    }
    _ = (words, word);
}
