//! Dot products of unsigned weight bytes with signed input bytes, for 16 weight rows at a time.
//!
//! Quantised weights lie in panels: a *quad* is 64 bytes, the same 4 k of 16 weight rows, so lane i of every sum belongs
//! to weight row i and no horizontal sum is ever taken. Sums of a block of 32 k are exact integers, so all levels agree
//! bit for bit and VNNI is only a faster way to the same bits. Weights are unsigned (biased) because that is the form
//! which VNNI, tiles, `maddubs` and a plain zero extension all take; the bias is undone by where a block's sum starts, which
//! depends on the input alone.

use super::{Asks, LANES};

mod avx2;
mod avx512;
mod portable;

#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::{folded_sixes, in_lanes, load_lanes};

/// Bytes of a quad: 4 k of 16 weight rows.
pub(crate) const QUAD: usize = 64;
/// K of a block of weights, and of the inputs that share a scale, but for q4_K and what folds, whose inputs have one for a super-block.
pub(crate) const BLOCK: usize = 32;
/// Quads of a block, when each weight is a byte.
pub(crate) const QUADS: usize = 8;

/// How a block of 32 input bytes is laid out, in words of 4 bytes. What a level asks for depends on the weights' range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum InputLayout {
    /// Word q: the i8 of k = 4q .. 4q + 4. 8 words a block.
    Bytes,
    /// Words 2q and 2q + 1: the i16 of k = 4q, 4q + 2 and of k = 4q + 1, 4q + 3. 16 words a block.
    Shorts,
}

impl InputLayout {
    /// Words of a block.
    pub(crate) const fn words(self) -> usize {
        match self {
            Self::Bytes => QUADS,
            Self::Shorts => 2 * QUADS,
        }
    }

    /// Writes 32 inputs.
    #[inline(always)]
    pub(crate) fn write(self, inputs: &[i8; BLOCK], words: &mut [i32]) {
        for (quad, inputs) in inputs.as_chunks::<4>().0.iter().enumerate() {
            match self {
                Self::Bytes => words[quad] = i32::from_le_bytes(inputs.map(|input| input as u8)),
                Self::Shorts => {
                    let pair = |low: i8, high: i8| i32::from(low) & 0xffff | i32::from(high) << 16;
                    words[2 * quad] = pair(inputs[0], inputs[2]);
                    words[2 * quad + 1] = pair(inputs[1], inputs[3]);
                }
            }
        }
    }
}

/// Integer operations of one level; like those of [`Simd`](super::Simd), called only inside `dispatch`.
pub(crate) trait Int8: Copy + 'static {
    /// 16 i32, one per weight row.
    type I: Copy;
    /// Layout of inputs for weights of 8 bits, and for weights of 4.
    const WIDE_INPUT: InputLayout;
    const NARROW_INPUT: InputLayout;
    /// Most input rows that share a loaded quad.
    const PANEL_ROWS: usize;

    /// 16 times the same.
    fn splat_i32(value: i32) -> Self::I;
    /// 16 i32 of these bits.
    fn load_bits(from: &[f32; LANES]) -> Self::I;
    /// Lane i: `acc[i]` and the products of the four bytes of `quad[i]` and the four integers of `input[i]`.
    fn add_quad(acc: Self::I, quad: Self::I, input: Self::I) -> Self::I;
    /// 64 bytes.
    fn load_bytes(from: &[u8; QUAD]) -> Self::I;
    /// Word `word` of each four lanes in all of the four.
    fn spread(words: Self::I, word: usize) -> Self::I;
    /// Adds to each sum of N fours the dot products of word `word` of each four lanes of a quad and the inputs of its four.
    #[inline(always)]
    fn add_spread<const N: usize>(
        sums: &mut [[Self::I; 4]; N],
        quads: &[Self::I; 4],
        word: usize,
        inputs: [&[f32; LANES]; N],
    ) {
        let mut spread = *quads;
        for spread in &mut spread {
            *spread = Self::spread(*spread, word);
        }
        for n in 0..N {
            let inputs = Self::load_bits(inputs[n]);
            for i in 0..4 {
                sums[n][i] = Self::add_quad(sums[n][i], spread[i], inputs);
            }
        }
    }
    /// The first four lanes of a and its third, then those of b.
    fn even_fours(a: Self::I, b: Self::I) -> Self::I;
    /// The second four lanes of a and its last, then those of b.
    fn odd_fours(a: Self::I, b: Self::I) -> Self::I;
    /// Lane i: `a[i] + b[i]`.
    fn add_i32(a: Self::I, b: Self::I) -> Self::I;
    /// Pairs of i16, lane i `low[i]` and `high[i]`.
    fn load_pairs(low: &[u8; LANES], high: &[u8; LANES]) -> Self::I;
    /// Lane i: `acc[i]` and the products of both of the pairs `a[i]` and `b[i]`.
    fn add_pairs(acc: Self::I, a: Self::I, b: Self::I) -> Self::I;
    /// Whether a product of i32 costs no more than those of a pair of i16.
    const MULTIPLIES: bool = false;
    /// Lane i: `acc[i] + a[i] * b[i]`, where `MULTIPLIES` says that there is such an instruction; else of `a[i]` that have 16
    /// bits and `b[i]` that are 16 bits and zeros.
    #[inline(always)]
    fn add_product(acc: Self::I, a: Self::I, b: Self::I) -> Self::I {
        Self::add_pairs(acc, a, b)
    }

    /// Quads of 6 bits less 32, times the scales of their halves, which are biased by 128 or 0 and at most 4; biased by 128.
    #[inline(always)]
    fn fold_sixes(packed: &[[u8; QUAD]; 6], scales: &[[u8; LANES]; 2]) -> [[u8; QUAD]; QUADS] {
        let mut quads = sixes(packed);
        for (quads, scales) in quads.as_chunks_mut::<{ QUADS / 2 }>().0.iter_mut().zip(scales) {
            let mut factors = [0; QUAD];
            for (factors, scale) in factors.as_chunks_mut::<4>().0.iter_mut().zip(scales) {
                *factors = [scale.saturating_sub(128); 4];
            }
            for byte_and_factor in quads.iter_mut().map(|quad| quad.iter_mut().zip(&factors)) {
                byte_and_factor.for_each(|(byte, factor)| {
                    *byte = byte.wrapping_sub(32).wrapping_mul(*factor).wrapping_add(128);
                });
            }
        }
        quads
    }
    /// Whether [`Self::add_folded`] is there.
    const FOLDS: bool = false;
    /// Adds to each sum of N inputs the products with a block's weights below 16, as of [`Self::dot_nibbles`], each made a byte
    /// first: lane by lane times a scale, less twice a minimum, and biased by 128.
    #[inline(always)]
    fn add_folded<const N: usize>(
        _sums: &mut [Self::I; N],
        _quads: &[[u8; QUAD]; 4],
        _scales_and_minima: &[[u8; LANES]; 2],
        _inputs: &[[i32; N]; QUADS],
        _asks: Asks,
    ) {
        unreachable!("a level that folds says so and how");
    }

    /// The sum of `first[n]` and, over the quads, weight times input, for each of N inputs (`WIDE_INPUT`), word by word.
    /// The asks are made between the products.
    fn dot_bytes<const N: usize>(
        quads: &[[u8; QUAD]],
        inputs: &[[i32; N]],
        first: &[i32; N],
        asks: Asks,
    ) -> [Self::I; N];
    /// The same for weights below 16, two to a byte: quad q in the low halves of `quads[q]`, quad 4 + q in the high
    /// ones (`NARROW_INPUT`).
    fn dot_nibbles<const N: usize>(
        quads: &[[u8; QUAD]; 4],
        inputs: &[[i32; N]; QUADS],
        first: &[i32; N],
        asks: Asks,
    ) -> [Self::I; N];
}

/// Quads of 6 bits a weight, unpacked to bytes: the lower bits are six quads, the upper two of three quads are another.
#[inline(always)]
pub(crate) fn sixes(packed: &[[u8; QUAD]; 6]) -> [[u8; QUAD]; QUADS] {
    let mut quads = [[0; QUAD]; QUADS];
    let (lower, upper) = quads.split_at_mut(packed.len());
    for (quad, packed) in lower.iter_mut().zip(packed) {
        *quad = packed.map(|byte| byte & 63);
    }
    for (quad, [first, second, third]) in upper.iter_mut().zip(packed.as_chunks().0) {
        for (byte, ((first, second), third)) in quad.iter_mut().zip(first.iter().zip(second).zip(third)) {
            *byte = first >> 6 & 3 | second >> 4 & 12 | third >> 2 & 48;
        }
    }
    quads
}
