//! What makes f32 sums of a super-block's integers.

use super::formats::SuperFormat;
use super::order::SuperBlock;
use super::{Lanes, PAIRS, SIDE};
use crate::ops::linear::pack::NOTES;
use crate::quant::meta_bytes;
use crate::simd::int8::Int8;
use crate::simd::{SHIFT, Simd};
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

type F = <Lanes as Simd>::F;
type I = <Lanes as Int8>::I;

/// What scales a super-block's integers.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    minima: [I; PAIRS],
    d: F,
    d_min: F,
    shift: F,
}

impl Scales {
    /// Writes those of a super-block.
    #[inline(always)]
    pub fn write<T: SuperFormat<Q>, const Q: usize>(to: &mut MaybeUninit<Self>, of: &SuperBlock<'_, Q>) {
        let d = Lanes::load_f16(of.supers.first().unwrap_or(&of.pairs[0].meta[0]));
        let to = to.as_mut_ptr();
        // SAFETY: only fields are written.
        unsafe { (&raw mut (*to).d).write(d) };
        if T::FOLDS {
            // Nothing else is read.
            return;
        }
        let d_min = Lanes::mul(Lanes::load_f16(&of.supers[1]), Lanes::splat(-1.0));
        let mut minima = [Lanes::splat_i32(0); PAIRS];
        for (minima, pair) in minima.iter_mut().zip(of.pairs) {
            let [[_, first], [_, second]] = [&pair.meta[0], &pair.meta[1]].map(meta_bytes);
            *minima = Lanes::load_pairs(first, second);
        }
        // SAFETY: as above.
        unsafe {
            (&raw mut (*to).minima).write(minima);
            (&raw mut (*to).d_min).write(d_min);
            (&raw mut (*to).shift).write(Lanes::mul(d_min, Lanes::splat(-SHIFT)));
        }
    }

    /// What was written, zeros where nothing was. Once for several rows: beside their stores each would read it again.
    ///
    /// # Safety
    /// It must have been written for a super-block of the format.
    #[inline(always)]
    pub unsafe fn read<T: SuperFormat<Q>, const Q: usize>(from: &MaybeUninit<Self>) -> Self {
        let from = from.as_ptr();
        // SAFETY: the caller's; of one that folds only `d` was written.
        unsafe {
            if T::FOLDS {
                let zero = Lanes::splat(0.0);
                return Self { minima: [Lanes::splat_i32(0); PAIRS], d: (*from).d, d_min: zero, shift: zero };
            }
            *from
        }
    }

    /// A sum and what the integers of its row are by these scales.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx); the integers and notes of a super-block must be there.
    #[inline(always)]
    pub unsafe fn add<T: SuperFormat<Q>, const Q: usize>(
        &self,
        ints: *const __m512i,
        notes: *const [i32; NOTES],
        sum: F,
    ) -> F {
        // SAFETY: the caller's: AVX-512 by the level.
        unsafe {
            let mut upper = _mm512_load_si512(ints);
            if T::STORED {
                upper = _mm512_add_epi32(upper, _mm512_set1_epi32((*notes)[1]));
            }
            let dot = if T::FOLDS {
                Lanes::mul(Lanes::from_i32(upper), self.d)
            } else {
                let ints = _mm512_add_epi32(_mm512_slli_epi32::<3>(upper), _mm512_load_si512(ints.add(SIDE)));
                // Below 2^22, so that these are the bits of `SHIFT` and the integer.
                let minima = add_minima(_mm512_set1_epi32(SHIFT.to_bits() as i32), &self.minima, notes);
                let minima = Lanes::fma(_mm512_castsi512_ps(minima), self.d_min, self.shift);
                Lanes::fma(Lanes::from_i32(ints), self.d, minima)
            };
            Lanes::fma(dot, Lanes::splat(f32::from_bits((*notes)[0] as u32)), sum)
        }
    }
}

/// Adds the products of the pairs' minima and of what inputs' notes say of both blocks of each.
///
/// In assembly, since the compiler would load each note by an instruction of its own.
///
/// # Safety
/// The processor must have AVX-512 VNNI, and notes of a super-block be there.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_minima(mut sum: I, minima: &[I; PAIRS], notes: *const [i32; NOTES]) -> I {
    const { assert!(NOTES == 4 && PAIRS == 4) }
    // SAFETY: the instructions read the last of every second block's four notes and change only the sum.
    unsafe {
        asm!(
            "vpdpwssd {sum}, {first}, dword ptr [{notes} + 12]{{1to16}}",
            "vpdpwssd {sum}, {second}, dword ptr [{notes} + 44]{{1to16}}",
            "vpdpwssd {sum}, {third}, dword ptr [{notes} + 76]{{1to16}}",
            "vpdpwssd {sum}, {fourth}, dword ptr [{notes} + 108]{{1to16}}",
            sum = inout(zmm_reg) sum,
            first = in(zmm_reg) minima[0],
            second = in(zmm_reg) minima[1],
            third = in(zmm_reg) minima[2],
            fourth = in(zmm_reg) minima[3],
            notes = in(reg) notes,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sum
}
