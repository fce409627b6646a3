//! What the formats' super-blocks are to tiles: planes of bytes, made pair by pair, or stored.

use super::Plane;
use crate::quant::{Pair, meta_bytes};
use crate::simd::int8::{QUAD, QUADS, folded_sixes, in_lanes, load_lanes};
use std::arch::x86_64::*;

/// Super-blocks whose blocks are stored in Q quads.
pub(in crate::ops::linear::cpu::tiles) trait SuperFormat<const Q: usize> {
    /// Whether one plane is all.
    const FOLDS: bool;
    /// Planes of a pair.
    const PLANES: usize = if Self::FOLDS { 1 } else { 2 };
    /// Whether stored quads are the first plane, biased by 128.
    const STORED: bool = false;
    /// f16 scales of each row.
    const SUPERS: usize;
    /// Bytes ahead of being unpacked at which weights are asked for in the first-level cache, and in the second.
    const NEAR: usize = 2560;
    const FAR: usize = 6144;
    /// Makes the planes of a pair; `ask` is called with the number of each line that is read.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
    unsafe fn unpack(pair: &Pair<Q>, ask: impl Fn(usize), planes: &mut [Plane]);
}

/// Quads times the upper and the lower bits of scales.
pub(in crate::ops::linear::cpu::tiles) struct Q4K;

impl SuperFormat<{ QUADS / 2 }> for Q4K {
    const FOLDS: bool = false;
    const SUPERS: usize = 2;
    // Two planes leave less room in the first-level cache for what comes early.
    const NEAR: usize = 1280;
    const FAR: usize = 4096;

    #[inline(always)]
    unsafe fn unpack(pair: &Pair<{ QUADS / 2 }>, ask: impl Fn(usize), planes: &mut [Plane]) {
        let planes = planes.as_mut_ptr().cast::<__m512i>();
        for (which, quads) in pair.quads.iter().enumerate() {
            // SAFETY: AVX-512 by the level; a plane has the quads of two blocks, each a line.
            unsafe {
                let scales = in_lanes::<true>(load_lanes(&meta_bytes(&pair.meta[which])[0]));
                let (high, low) = (_mm512_srli_epi16::<3>(scales), _mm512_and_si512(scales, _mm512_set1_epi16(7)));
                let (upper, lower) = (planes.add(which * QUADS), planes.add((2 + which) * QUADS));
                for (at, quad) in quads.iter().enumerate() {
                    ask(which * QUADS / 2 + at);
                    let [first, second] = nibbles(quad);
                    // Two bytes at once: neither product reaches the other.
                    _mm512_store_si512(upper.add(at), _mm512_mullo_epi16(first, high));
                    _mm512_store_si512(upper.add(QUADS / 2 + at), _mm512_mullo_epi16(second, high));
                    _mm512_store_si512(lower.add(at), _mm512_mullo_epi16(first, low));
                    _mm512_store_si512(lower.add(QUADS / 2 + at), _mm512_mullo_epi16(second, low));
                }
            }
        }
    }
}

/// Quads as they are, all blocks with the first one's scales.
pub(in crate::ops::linear::cpu::tiles) struct FoldedQ8_0;

impl SuperFormat<QUADS> for FoldedQ8_0 {
    const FOLDS: bool = true;
    const STORED: bool = true;
    const SUPERS: usize = 0;

    #[inline(always)]
    unsafe fn unpack(_pair: &Pair<QUADS>, _ask: impl Fn(usize), _planes: &mut [Plane]) {}
}

/// Quads times scales, less twice the minima.
pub(in crate::ops::linear::cpu::tiles) struct FoldedQ4K;

impl SuperFormat<{ QUADS / 2 }> for FoldedQ4K {
    const FOLDS: bool = true;
    const SUPERS: usize = 2;
    // 16 rows by 0.975 of the time of 6144, 32 as well.
    const FAR: usize = 12288;

    #[inline(always)]
    unsafe fn unpack(pair: &Pair<{ QUADS / 2 }>, ask: impl Fn(usize), planes: &mut [Plane]) {
        let plane = planes.as_mut_ptr().cast::<__m512i>();
        for (which, quads) in pair.quads.iter().enumerate() {
            let [scales, minima] = meta_bytes(&pair.meta[which]);
            // SAFETY: AVX-512 by the level; a plane has the quads of two blocks, each a line.
            unsafe {
                let (scales, minima) = (in_lanes::<true>(load_lanes(scales)), in_lanes::<false>(load_lanes(minima)));
                let (minima, plane) = (_mm512_add_epi8(minima, minima), plane.add(which * QUADS));
                for (at, quad) in quads.iter().enumerate() {
                    ask(which * QUADS / 2 + at);
                    let bytes = nibbles(quad).map(|quad| _mm512_sub_epi8(_mm512_mullo_epi16(quad, scales), minima));
                    _mm512_store_si512(plane.add(at), bytes[0]);
                    _mm512_store_si512(plane.add(QUADS / 2 + at), bytes[1]);
                }
            }
        }
    }
}

/// Quads of 6 bits, less 32, times the scales of their halves.
pub(in crate::ops::linear::cpu::tiles) struct FoldedQ6K;

impl SuperFormat<6> for FoldedQ6K {
    const FOLDS: bool = true;
    const SUPERS: usize = 1;

    #[inline(always)]
    unsafe fn unpack(pair: &Pair<6>, ask: impl Fn(usize), planes: &mut [Plane]) {
        let plane = planes.as_mut_ptr().cast::<__m512i>();
        for (which, quads) in pair.quads.iter().enumerate() {
            (0..quads.len()).for_each(|line| ask(which * quads.len() + line));
            // SAFETY: AVX-512 by the level; a plane has the quads of two blocks, each a line.
            unsafe {
                for (at, bytes) in folded_sixes::<false>(quads, meta_bytes(&pair.meta[which])).into_iter().enumerate() {
                    _mm512_store_si512(plane.add(which * QUADS + at), bytes);
                }
            }
        }
    }
}

/// The lower and the upper halves of bytes.
#[inline]
#[target_feature(enable = "avx512f,avx512bw")]
fn nibbles(quad: &[u8; QUAD]) -> [__m512i; 2] {
    // SAFETY: the load takes exactly the quad.
    let quad = unsafe { _mm512_loadu_si512(quad.as_ptr().cast()) };
    let mask = _mm512_set1_epi8(15);
    [_mm512_and_si512(quad, mask), _mm512_and_si512(_mm512_srli_epi16::<4>(quad), mask)]
}
