//! Blocks made from f32 weights, when a model is quantised at load.
//!
//! Scales are chosen by search: round with each of a few trial scales, then take the scale that is best for those
//! quants by least squares, and keep the trial with the smallest error (the idea of ggml's `make_qx_quants` and
//! `make_qkx2_quants`). Errors are weighted by a weight's own square plus the mean square, since large weights matter
//! more to the output than their number says.

use super::blocks::{SCALE_Q6_K, folds};
use super::panel::f16_bits;
use super::{BlockFormat, RowBlock};
use crate::simd::int8::BLOCK;
use half::f16;

/// Blocks of a super-block.
const SUPER: usize = 8;
/// Trial scales to either side of the obvious one, and how far apart they lie, in quants.
const TRIALS: i32 = 9;
const TRIAL_STEP: f32 = 0.1;

/// Calls `take` with every 32 weights of `row`, in order; the last are followed by zeros.
pub(crate) fn encode_row(format: BlockFormat, row: &[f32], mut take: impl FnMut(RowBlock)) {
    for values in row.chunks(SUPER * BLOCK) {
        let mut padded = [[0.0; BLOCK]; SUPER];
        padded.as_flattened_mut()[..values.len()].copy_from_slice(values);
        let blocks = &padded[..values.len().div_ceil(BLOCK)];
        match format {
            BlockFormat::Q8_0 => q8_0(blocks, &mut take),
            BlockFormat::Q4_0 => blocks.iter().for_each(|values| take(q4_0(values))),
            BlockFormat::Q4K => q4k(blocks, &mut take),
            BlockFormat::Q6K => q6k(blocks, &mut take),
        }
    }
}

/// One scale for all of a super-block, which so folds.
fn q8_0(blocks: &[[f32; BLOCK]], take: &mut impl FnMut(RowBlock)) {
    let greatest = blocks.as_flattened().iter().fold(0f32, |greatest, value| greatest.max(value.abs()));
    blocks.iter().for_each(|values| take(one_scale(values, greatest / 127.0, (-127, 127), 128)));
}

fn q4_0(values: &[f32; BLOCK]) -> RowBlock {
    one_scale(values, symmetric(values), (-8, 7), 8)
}

/// A block with one f16 scale.
fn one_scale(values: &[f32; BLOCK], scale: f32, (low, high): (i32, i32), bias: i32) -> RowBlock {
    let bits = f16_bits(scale);
    let inverse = inverse(f16::from_bits(bits).to_f32());
    let quants = values.map(|value| (nearest(value * inverse, low, high) + bias) as u8);
    RowBlock { quants, meta: bits.to_le_bytes(), supers: [0; 2] }
}

/// Scales and minima of 6 bits each, under f16 ones for the super-block: those with which it folds
/// (`BlockFormat::folds`), so that the greatest weight is 127 times the first. Each block takes the pair near its own that is
/// best for it: errors are 1.02 (normal) to 1.04 (Laplace) times those of a free choice.
fn q4k(blocks: &[[f32; BLOCK]], take: &mut impl FnMut(RowBlock)) {
    let mut chosen = [(0f32, 0f32); SUPER];
    for (chosen, values) in chosen.iter_mut().zip(blocks) {
        *chosen = asymmetric(values);
    }
    let greatest = chosen.iter().fold(0f32, |greatest, (s, m)| greatest.max(*m).max(15.0 * s - m));
    // 126, since minima are even; rounded up, or none of a block's choices might fold.
    let least = f16::from_f32(greatest / 126.0);
    let d = if least.to_f32() * 126.0 < greatest { f16::from_bits(least.to_bits() + 1) } else { least }.to_f32();
    let supers = [d, 2.0 * d].map(f16_bits);
    for (values, (scale, minimum)) in blocks.iter().zip(chosen) {
        let (scale, minimum) = ((scale * inverse(d)) as i32, (minimum * inverse(2.0 * d)) as i32);
        let mean_square = mean_square(values);
        let near =
            (scale..=scale + 1).flat_map(|scale| (minimum - 2..=minimum + 3).map(move |minimum| [scale, minimum]));
        let mut best = RowBlock { quants: [0; BLOCK], meta: [0; 2], supers };
        let mut least = f32::INFINITY;
        for meta in near {
            let meta = meta.map(|value| value.clamp(0, 63) as u8);
            if !folds(meta) {
                continue;
            }
            let (step, minimum) = (d * f32::from(meta[0]), 2.0 * d * f32::from(meta[1]));
            let inverse = inverse(step);
            let quants = values.map(|value| nearest((value + minimum) * inverse, 0, 15) as u8);
            let made = quants.map(|quant| step * f32::from(quant) - minimum);
            let error = error(mean_square, values.iter().copied().zip(made));
            if error < least {
                (best, least) = (RowBlock { quants, meta, supers }, error);
            }
        }
        take(best);
    }
}

/// Scales of 8 bits for every 16 weights, under an f16 one for the super-block, with which it folds (`BlockFormat::folds`):
/// at most 4, of which each 16 take the best. Errors are 1.1 times those of a free choice.
fn q6k(blocks: &[[f32; BLOCK]], take: &mut impl FnMut(RowBlock)) {
    let farthest = blocks.as_flattened().iter().fold(0f32, |most, value| most.max(value / 31.0).max(value / -32.0));
    let d = f16::from_f32(farthest / SCALE_Q6_K as f32).to_f32();
    for values in blocks {
        let mut block = RowBlock { quants: [0; BLOCK], meta: [0; 2], supers: [f16_bits(d), 0] };
        let halves = values.as_chunks::<{ BLOCK / 2 }>().0.iter().zip(block.quants.as_chunks_mut().0);
        for ((values, quants), meta) in halves.zip(&mut block.meta) {
            let (mean_square, mut least) = (mean_square(values), f32::INFINITY);
            for scale in 1..=SCALE_Q6_K {
                let step = d * scale as f32;
                let inverse = inverse(step);
                let trial = values.map(|value| nearest(value * inverse, -32, 31));
                let error =
                    error(mean_square, values.iter().zip(trial).map(|(value, quant)| (*value, step * quant as f32)));
                if error < least {
                    (*quants, *meta, least) = (trial.map(|quant| (quant + 32) as u8), (scale + 128) as u8, error);
                }
            }
        }
        take(block);
    }
}

/// The scale with which quants from -8 to 7 come closest to `values`.
fn symmetric(values: &[f32]) -> f32 {
    // The extreme value takes the extreme quant, which is the negative one: so the scale may be negative.
    let extreme = values.iter().fold(0f32, |extreme, value| if value.abs() > extreme.abs() { *value } else { extreme });
    if extreme.abs() < f32::MIN_POSITIVE {
        return 0.0;
    }
    let mean_square = mean_square(values);
    let (mut best, mut best_gain) = (-extreme / 8.0, 0.0);
    for trial in -TRIALS..=TRIALS {
        let inverse = -(8.0 + TRIAL_STEP * trial as f32) / extreme;
        let (mut product, mut square) = (0f32, 0f32);
        for value in values {
            let quant = nearest(value * inverse, -8, 7) as f32;
            let weight = mean_square + value * value;
            product += weight * value * quant;
            square += weight * quant * quant;
        }
        // The error with the best scale is a constant minus this.
        let gain = if square > 0.0 { product * product / square } else { 0.0 };
        if gain > best_gain {
            (best, best_gain) = (product / square, gain);
        }
    }
    best
}

/// Scale and minimum (which is subtracted, so at least 0) with which quants from 0 to 15 come closest to `values`.
fn asymmetric(values: &[f32; BLOCK]) -> (f32, f32) {
    let low = values.iter().copied().fold(0f32, f32::min);
    let high = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if high - low < f32::MIN_POSITIVE {
        return (0.0, -low);
    }
    let mean_square = mean_square(values);
    let (mut best, mut least) = (((high - low) / 15.0, -low), f32::INFINITY);
    for trial in -TRIALS..=TRIALS {
        let inverse = (15.0 + TRIAL_STEP * trial as f32) / (high - low);
        let quants = values.map(|value| nearest((value - low) * inverse, 0, 15) as f32);
        let (mut w, mut q, mut qq, mut x, mut xq) = (0f32, 0f32, 0f32, 0f32, 0f32);
        for (value, quant) in values.iter().zip(quants) {
            let weight = mean_square + value * value;
            w += weight;
            q += weight * quant;
            qq += weight * quant * quant;
            x += weight * value;
            xq += weight * value * quant;
        }
        let determinant = w * qq - q * q;
        if determinant <= 0.0 {
            continue;
        }
        let (mut scale, mut offset) = ((w * xq - x * q) / determinant, (qq * x - q * xq) / determinant);
        if offset > 0.0 {
            (scale, offset) = (xq / qq, 0.0);
        }
        let error: f32 = values.iter().zip(quants).fold(0.0, |error, (value, quant)| {
            let miss = scale * quant + offset - value;
            error + (mean_square + value * value) * miss * miss
        });
        if error < least {
            (best, least) = ((scale, -offset), error);
        }
    }
    best
}

/// The weighted squares of what is made of values less the values.
fn error(mean_square: f32, made: impl Iterator<Item = (f32, f32)>) -> f32 {
    made.fold(0.0, |error, (value, made)| error + (mean_square + value * value) * (made - value) * (made - value))
}

fn mean_square(values: &[f32]) -> f32 {
    values.iter().map(|value| value * value).sum::<f32>() / values.len() as f32
}

/// 1 / value, or 0: a scale of 0 stands for weights that are all 0.
fn inverse(value: f32) -> f32 {
    if value == 0.0 { 0.0 } else { 1.0 / value }
}

fn nearest(value: f32, low: i32, high: i32) -> i32 {
    (value.round_ties_even() as i32).clamp(low, high)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the weights are: even, all positive, with outliers, so small that scales have few bits, zeros. Only beside
    /// outliers, and if they are the smallest, may a block's weights all become zeros.
    #[test]
    fn what_is_made_of_super_blocks_folds() {
        let even: Vec<f32> = (0..10_000).map(|i| (i * 7919 % 10_007) as f32 / 5003.5 - 1.0).collect();
        let forms: [fn(usize, f32) -> f32; 6] = [
            |_, value| value,
            |_, value| value.abs() + 0.5,
            |i, value| if i % 97 == 0 { 1000.0 * value } else { value },
            |_, value| 1e-5 * value,
            |_, value| 1e-7 * value,
            |_, _| 0.0,
        ];
        for form in forms {
            let row: Vec<f32> = even.iter().enumerate().map(|(i, value)| form(i, *value)).collect();
            let greatest = row.iter().fold(0f32, |greatest, value| greatest.max(value.abs()));
            for format in [BlockFormat::Q8_0, BlockFormat::Q4K, BlockFormat::Q6K] {
                let (mut blocks, mut first) = (0, None);
                encode_row(format, &row, |block| {
                    assert!(format.folds(&block), "{format:?} {block:?}");
                    let values = format.values(&block);
                    assert!(
                        !(1e-6..100.0).contains(&greatest) || values.iter().any(|value| *value != 0.0),
                        "{format:?} {block:?}"
                    );
                    // Of the first block of a super-block, and so of all.
                    let scale = if format == BlockFormat::Q8_0 { block.meta } else { [0; 2] };
                    first = first.filter(|_| blocks % SUPER > 0).or(Some(scale));
                    assert_eq!(Some(scale), first, "{format:?} block {blocks}");
                    blocks += 1;
                });
                assert_eq!(blocks, row.len().div_ceil(BLOCK));
            }
        }
    }
}
