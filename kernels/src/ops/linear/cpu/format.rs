//! How a weight stored row by row meets a packed input, one step of k at a time.
//!
//! The walk over blocks and tiles in `rows` is the same for all; quantised weights lie in panels and have theirs in
//! `panels`.

use crate::simd::{LANES, Line, Simd, padded};

/// One weight format at one level.
pub(super) trait Format<S: Simd> {
    type Element: Copy;
    /// The elements of a step.
    type Chunk;
    /// One part of a step's weights, or of one half of them, in registers.
    type Loaded: Copy;
    /// Calls of `dot` that a part of a step takes.
    const HALVES: usize;
    /// Lines of packed input that a step reads.
    const LINES: usize;

    /// Whole steps, and the rest of the row.
    fn split(row: &[Self::Element]) -> (&[Self::Chunk], &[Self::Element]);
    /// The rest of a row, followed by zeros.
    fn pad(rest: &[Self::Element]) -> Self::Chunk;
    fn load(chunk: &Self::Chunk, part: usize, half: usize) -> Self::Loaded;
    fn input(lines: &[Line], part: usize, half: usize) -> Self::Loaded;
    fn dot(sum: S::Part, weights: Self::Loaded, input: Self::Loaded) -> S::Part;
}

/// f32 weights, 16 a step.
pub(super) struct F32;

impl<S: Simd> Format<S> for F32 {
    type Element = f32;
    type Chunk = [f32; LANES];
    type Loaded = S::Part;
    const HALVES: usize = 1;
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
    fn load(chunk: &[f32; LANES], part: usize, _half: usize) -> S::Part {
        S::load_part(chunk, part)
    }
    #[inline(always)]
    fn input(lines: &[Line], part: usize, _half: usize) -> S::Part {
        S::load_part(&lines[0].0, part)
    }
    #[inline(always)]
    fn dot(sum: S::Part, weights: S::Part, input: S::Part) -> S::Part {
        S::fma_part(weights, input, sum)
    }
}

/// f16 weights, 16 a step, times f32 inputs.
pub(super) struct F16;

impl<S: Simd> Format<S> for F16 {
    type Element = u16;
    type Chunk = [u16; LANES];
    type Loaded = S::Part;
    const HALVES: usize = 1;
    const LINES: usize = 1;

    #[inline(always)]
    fn split(row: &[u16]) -> (&[[u16; LANES]], &[u16]) {
        row.as_chunks()
    }
    #[inline(always)]
    fn pad(rest: &[u16]) -> [u16; LANES] {
        padded(rest, 0)
    }
    #[inline(always)]
    fn load(chunk: &[u16; LANES], part: usize, _half: usize) -> S::Part {
        S::load_part_f16(chunk, part)
    }
    #[inline(always)]
    fn input(lines: &[Line], part: usize, _half: usize) -> S::Part {
        S::load_part(&lines[0].0, part)
    }
    #[inline(always)]
    fn dot(sum: S::Part, weights: S::Part, input: S::Part) -> S::Part {
        S::fma_part(weights, input, sum)
    }
}

/// bf16 weights, 32 a step.
pub(super) struct Bf16;

impl<S: Simd> Format<S> for Bf16 {
    type Element = u16;
    type Chunk = [u16; 2 * LANES];
    type Loaded = S::Half;
    const HALVES: usize = S::HALVES;
    const LINES: usize = S::INPUT_LINES;

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
    fn load(chunk: &[u16; 2 * LANES], part: usize, half: usize) -> S::Half {
        S::load_half(chunk, part, half)
    }
    #[inline(always)]
    fn input(lines: &[Line], part: usize, half: usize) -> S::Half {
        S::load_input(lines, part, half)
    }
    #[inline(always)]
    fn dot(sum: S::Part, weights: S::Half, input: S::Half) -> S::Part {
        S::dot_half(sum, weights, input)
    }
}
