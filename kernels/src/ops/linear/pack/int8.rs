//! Inputs of quantised weights: rounded to int8 with a scale, and notes of where sums start, which undo the weights' bias.

use super::{NOTES, input_layout, rounded_as};
use crate::quant::{BlockFormat, SUPER};
use crate::simd::int8::BLOCK;
use crate::simd::{LANES, SHIFT, Simd};
use crate::weight::WeightDtype;
use std::mem::MaybeUninit;

/// Values as int8, followed by the notes of all blocks, for matrix instructions.
#[inline(always)]
pub(super) fn pack_int8<S: Simd>(dtype: WeightDtype, folds: bool, x: &[f32], words: &mut [i32]) {
    let (Some(format), Some(layout)) = (rounded_as(dtype, folds), input_layout::<S>(dtype)) else {
        return;
    };
    let (words, notes) = words.split_at_mut(x.len().div_ceil(BLOCK) * layout.words());
    let blocks = words.chunks_mut(SUPER * layout.words()).zip(notes.as_chunks_mut::<NOTES>().0.chunks_mut(SUPER));
    for (x, (words, notes)) in x.chunks(SUPER * BLOCK).zip(blocks) {
        let scales = Scales::of::<S>(format, x);
        let quants = round_blocks::<S>(x, &scales);
        for (words, quants) in words.chunks_exact_mut(layout.words()).zip(&quants) {
            layout.write(quants, words);
        }
        if folds {
            notes[0][0] = scales.scales[0].to_bits() as i32;
            // Tiles multiply q8_0 as it is stored, biased, and add nothing to the sums of what is made signed bytes.
            if dtype == WeightDtype::Q8_0 {
                notes[0][1] = -128 * S::sum_int8(&quants).as_flattened().iter().sum::<i32>();
            }
            continue;
        }
        let made = block_notes::<S>(format, &quants, &scales);
        for (at, to) in notes.iter_mut().enumerate() {
            for (to, notes) in to.iter_mut().zip(&made) {
                *to = notes[at];
            }
        }
    }
}

/// Notes that a format has.
pub(in crate::ops::linear) const fn notes_of(format: BlockFormat) -> usize {
    if matches!(format, BlockFormat::Q6K | BlockFormat::Q4K) { 3 } else { 2 }
}

/// Blocks of inputs that have one scale: of q4_K a super-block, which is then summed in integers.
pub(super) const fn scaled_alike(format: BlockFormat) -> usize {
    if matches!(format, BlockFormat::Q4K) { SUPER } else { 1 }
}

/// A super-block of inputs as int8.
type Quants = [[i8; BLOCK]; SUPER];

/// By what up to 8 blocks are rounded: their scales, greatest / 127 of each block or of all, and the inverses.
#[derive(Clone, Copy)]
pub(super) struct Scales {
    scales: [f32; LANES],
    inverses: [f32; LANES],
}

impl Scales {
    pub const NONE: Self = Self { scales: [0.0; LANES], inverses: [0.0; LANES] };

    /// Those of up to 8 blocks of values.
    ///
    /// Step by step for all blocks: a block by itself is one chain of instructions that wait for each other.
    #[inline(always)]
    pub fn of<S: Simd>(format: BlockFormat, x: &[f32]) -> Self {
        let mut padded = MaybeUninit::uninit();
        let blocks = whole(x, &mut padded);
        let mut magnitudes = [S::splat(0.0); SUPER];
        for (magnitude, [low, high]) in magnitudes.iter_mut().zip(blocks) {
            let (low, high) = (S::load(low), S::load(high));
            *magnitude = S::max(S::max(low, high), S::sub(S::splat(0.0), S::min(low, high)));
        }
        if scaled_alike(format) == SUPER {
            let all = magnitudes.into_iter().reduce(|all, magnitude| S::max(all, magnitude));
            let greatest = all.map_or(0.0, |all| S::greatest(all));
            let inverse = if greatest > 0.0 { 127.0 / greatest } else { 0.0 };
            return Self { scales: [greatest / 127.0; LANES], inverses: [inverse; LANES] };
        }
        let greatest = S::greatest_of_each(magnitudes);
        let (most, zero) = (S::splat(127.0), S::splat(0.0));
        let mut made = Self::NONE;
        S::store(S::div(greatest, most), &mut made.scales);
        S::store(S::select_less(zero, greatest, S::div(most, greatest), zero), &mut made.inverses);
        made
    }
}

/// Up to 8 blocks of values, then zeros.
#[inline(always)]
fn whole<'a>(x: &'a [f32], padded: &'a mut MaybeUninit<[[[f32; LANES]; 2]; SUPER]>) -> &'a [[[f32; LANES]; 2]; SUPER] {
    if let Ok(whole) = x.as_chunks::<LANES>().0.as_chunks::<2>().0.try_into()
        && x.len() == SUPER * BLOCK
    {
        return whole;
    }
    let padded = padded.write([[[0.0; LANES]; 2]; SUPER]);
    padded.as_flattened_mut().as_flattened_mut()[..x.len()].copy_from_slice(x);
    padded
}

/// Up to 8 blocks of values, then zeros, as int8 with these scales.
#[inline(always)]
pub(super) fn round_blocks<S: Simd>(x: &[f32], by: &Scales) -> Quants {
    let mut padded = MaybeUninit::uninit();
    let blocks = whole(x, &mut padded);
    let mut quants = [[0; BLOCK]; SUPER];
    for (block, [low, high]) in blocks.iter().enumerate() {
        quants[block] = S::round_int8(S::load(low), S::load(high), by.inverses[block]);
    }
    quants
}

/// The notes of a super-block, note by note of each block.
#[inline(always)]
pub(super) fn block_notes<S: Simd>(format: BlockFormat, quants: &Quants, by: &Scales) -> [[i32; SUPER]; NOTES] {
    let mut notes = [[0; SUPER]; NOTES];
    for (note, scale) in notes[0].iter_mut().zip(by.scales) {
        *note = scale.to_bits() as i32;
    }
    let halves = S::sum_int8(quants);
    // The bits of a float, for blocks that are scaled by themselves.
    let start = |sum: i32| SHIFT.to_bits() as i32 - format.bias() * sum;
    for block in 0..SUPER {
        let [first, second] = halves[block];
        match format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => notes[1][block] = start(first + second),
            BlockFormat::Q6K => (notes[1][block], notes[2][block]) = (start(first), start(second)),
            BlockFormat::Q4K => {
                let (even, odd) = (halves[block & !1], halves[block | 1]);
                let (even, odd) = (even[0] + even[1], odd[0] + odd[1]);
                notes[1][block] = -8 * (first + second);
                // Of a super-block that folds the bits of a float, as of others above: its weights are biased by 128. The scale
                // is read of the first block.
                if block == 1 {
                    let all: i32 = halves.as_flattened().iter().sum();
                    notes[0][block] = SHIFT.to_bits() as i32 - 128 * all;
                }
                (notes[2][block], notes[3][block]) = ((8 * even) & 0xffff | odd << 19, even & 0xffff | odd << 16);
            }
        }
    }
    notes
}
