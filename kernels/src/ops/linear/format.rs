//! How a stored weight meets a packed input, one step of k at a time.
//!
//! A further weight format is a further [`Format`]: its element, its step and its dot product. The walk over blocks
//! and tiles in `cpu` is the same for all.

use crate::simd::{LANES, Line, Simd, padded};

/// One weight format at one level.
pub(super) trait Format<S: Simd> {
    type Element: Copy;
    /// The elements of a step.
    type Chunk;
    /// A step's weights in registers.
    type Loaded: Copy;
    /// Lines of packed input that a step reads.
    const LINES: usize;

    /// Whole steps, and the rest of the row.
    fn split(row: &[Self::Element]) -> (&[Self::Chunk], &[Self::Element]);
    /// The rest of a row, followed by zeros.
    fn pad(rest: &[Self::Element]) -> Self::Chunk;
    fn load(chunk: &Self::Chunk) -> Self::Loaded;
    fn dot(sum: S::F, weights: Self::Loaded, lines: &[Line]) -> S::F;
}

/// f32 weights, 16 a step.
pub(super) struct F32;

impl<S: Simd> Format<S> for F32 {
    type Element = f32;
    type Chunk = [f32; LANES];
    type Loaded = S::F;
    const LINES: usize = 1;

    #[inline(always)]
    fn split(row: &[f32]) -> (&[[f32; LANES]], &[f32]) {
        row.as_chunks()
    }
    #[inline(always)]
    fn pad(rest: &[f32]) -> [f32; LANES] {
        padded(rest, 0.0)
    }
    #[inline(always)]
    fn load(chunk: &[f32; LANES]) -> S::F {
        S::load(chunk)
    }
    #[inline(always)]
    fn dot(sum: S::F, weights: S::F, lines: &[Line]) -> S::F {
        S::fma(weights, S::load(&lines[0].0), sum)
    }
}

/// bf16 weights, 32 a step.
pub(super) struct Bf16;

impl<S: Simd> Format<S> for Bf16 {
    type Element = u16;
    type Chunk = [u16; 2 * LANES];
    type Loaded = S::Pair;
    const LINES: usize = if S::PAIRED_INPUT { 1 } else { 2 };

    #[inline(always)]
    fn split(row: &[u16]) -> (&[[u16; 2 * LANES]], &[u16]) {
        row.as_chunks()
    }
    #[inline(always)]
    fn pad(rest: &[u16]) -> [u16; 2 * LANES] {
        let mut chunk = [0; 2 * LANES];
        chunk[..rest.len()].copy_from_slice(rest);
        chunk
    }
    #[inline(always)]
    fn load(chunk: &[u16; 2 * LANES]) -> S::Pair {
        S::load_pair(chunk)
    }
    #[inline(always)]
    fn dot(sum: S::F, weights: S::Pair, lines: &[Line]) -> S::F {
        S::dot_pair(sum, weights, S::load_input(lines))
    }
}
