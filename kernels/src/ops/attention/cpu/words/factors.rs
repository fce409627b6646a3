//! How words are multiplied, and what their products are summed as: f32, or exact integers.

use crate::simd::{Line, Simd};

/// How words of keys and queries, or of values and weights, are multiplied.
pub(in super::super) trait Factors<S: Simd> {
    /// A part of 16 words.
    type Word: Copy;
    /// A part of 16 sums.
    type Sum: Copy;
    /// Numbers of a word.
    const NUMBERS: usize;

    /// The same word in every lane.
    fn splat(word: f32) -> Self::Word;
    /// Part `part` of 16 words.
    fn load(line: &Line, part: usize) -> Self::Word;
    /// Sums that go on from these, or from 0 where they are scaled at their end.
    fn resume(sums: S::Part) -> Self::Sum;
    /// Adds the products of all numbers of the words.
    fn add_product(a: Self::Word, b: Self::Word, sum: Self::Sum) -> Self::Sum;
    /// The sums as numbers.
    fn total(sum: Self::Sum, part: usize) -> S::Part;
}

/// Sums that are floats from their start on.
macro_rules! sums_of_floats {
    () => {
        type Sum = S::Part;

        #[inline(always)]
        fn resume(sums: S::Part) -> S::Part {
            sums
        }

        #[inline(always)]
        fn total(sum: S::Part, _part: usize) -> S::Part {
            sum
        }
    };
}

/// f32.
pub(in super::super) struct Floats;

impl<S: Simd> Factors<S> for Floats {
    type Word = S::Part;
    const NUMBERS: usize = 1;

    #[inline(always)]
    fn splat(word: f32) -> S::Part {
        S::splat_part(word)
    }

    #[inline(always)]
    fn load(line: &Line, part: usize) -> S::Part {
        S::load_part(&line.0, part)
    }

    sums_of_floats!();

    #[inline(always)]
    fn add_product(a: S::Part, b: S::Part, sum: S::Part) -> S::Part {
        S::fma_part(a, b, sum)
    }
}

/// Two bf16.
pub(in super::super) struct Halves;

impl<S: Simd> Factors<S> for Halves {
    type Word = S::Half;
    const NUMBERS: usize = 2;

    #[inline(always)]
    fn splat(word: f32) -> S::Half {
        S::splat_half(word)
    }

    #[inline(always)]
    fn load(line: &Line, part: usize) -> S::Half {
        S::load_half(line.u16s(), part, 0)
    }

    sums_of_floats!();

    #[inline(always)]
    fn add_product(a: S::Half, b: S::Half, sum: S::Part) -> S::Part {
        S::dot_half(sum, a, b)
    }
}

/// Four bytes of a weight, and four integers of a value.
pub(in super::super) struct Bytes;

impl<S: Simd> Factors<S> for Bytes {
    type Word = S::I;
    type Sum = S::I;
    const NUMBERS: usize = 4;

    #[inline(always)]
    fn splat(word: f32) -> S::I {
        S::splat_i32(word.to_bits() as i32)
    }

    #[inline(always)]
    fn load(line: &Line, _part: usize) -> S::I {
        S::load_bits(&line.0)
    }

    #[inline(always)]
    fn resume(_sums: S::Part) -> S::I {
        S::splat_i32(0)
    }

    #[inline(always)]
    fn add_product(bytes: S::I, integers: S::I, sum: S::I) -> S::I {
        S::add_quad(sum, bytes, integers)
    }

    #[inline(always)]
    fn total(sum: S::I, part: usize) -> S::Part {
        S::part(S::from_i32(sum), part)
    }
}
