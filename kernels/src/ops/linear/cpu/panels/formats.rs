//! What the quantised formats do with a block of a panel, and with a super-block.
//!
//! Of q6_K a block's halves have scales of their own, and are added before the input's; of q4_K, and of what folds, a super-block
//! is summed in integers.

use crate::ops::linear::pack::notes_of;
use crate::quant::{BlockFormat, PANEL, Pair, SPAN, SUPER, meta_bytes};
use crate::simd::int8::{QUAD, QUADS, sixes};
use crate::simd::{Asks, SHIFT, Simd};

/// A block of 32 k of 16 weight rows, in Q quads.
pub(super) struct Block<'a, const Q: usize> {
    /// The f16 scales of its super-block, `SUPERS` of each row.
    pub supers: &'a [[u16; PANEL]],
    pub meta: &'a [u16; PANEL],
    pub quads: &'a [[u8; QUAD]; Q],
}

/// A format whose blocks are stored in Q quads.
pub(super) trait PanelFormat<S: Simd, const Q: usize> {
    /// Words of a block of input, and its notes.
    const WORDS: usize;
    const NOTES: usize;
    /// f16 scales of each row of a super-block.
    const SUPERS: usize = 0;
    /// Pairs of blocks that `end` takes together.
    const TOGETHER: usize = if Self::SUPERS > 0 { SUPER / 2 } else { SPAN / 2 };
    /// Bytes of a full span of a panel: how far ahead of their use weights are asked for. As far in a shorter span, since a
    /// change would ask for some of them twice and for others never.
    const AHEAD: usize = SPAN / 2 * size_of::<Pair<Q>>() + SPAN / SUPER * Self::SUPERS * size_of::<[u16; PANEL]>();
    /// Adds a block to the sums of N inputs, or to the integers of its super-block; `inputs` are its words and then notes.
    fn add<const N: usize>(
        block: &Block<'_, Q>,
        inputs: &[[i32; N]],
        asks: Asks,
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    );
    /// Adds the integers of a super-block's blocks to the sums; `inputs` are those of all of them.
    #[inline(always)]
    fn end<const N: usize>(
        _supers: &[[u16; PANEL]],
        _pairs: &[Pair<Q>],
        _inputs: &[[i32; N]],
        _ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
    }
}

/// `sums += dots * scales * the inputs' scales`, where dots began at the bits of `SHIFT`.
///
/// With a scale of few bits `SHIFT * scale` is exact (an f16 and at most 8 bits of a block's own are 19), so the multiply-add
/// that takes it away again rounds `dot * scale` once, as if the integer had been converted and multiplied.
#[inline(always)]
fn scaled<S: Simd, const N: usize>(sums: &mut [S::F; N], dots: [S::I; N], scales: S::F, inputs: &[i32; N]) {
    let shift = S::mul(scales, S::splat(-SHIFT));
    for n in 0..N {
        let input = S::splat(f32::from_bits(inputs[n] as u32));
        sums[n] = S::fma(S::fma(S::from_bits(dots[n]), scales, shift), input, sums[n]);
    }
}

pub(super) struct Q8_0;

impl<S: Simd> PanelFormat<S, QUADS> for Q8_0 {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q8_0);

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, QUADS>,
        inputs: &[[i32; N]],
        asks: Asks,
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(<Self as PanelFormat<S, QUADS>>::WORDS);
        let dots = S::dot_bytes(block.quads, words, &notes[1], asks);
        scaled::<S, N>(sums, dots, S::load_f16(block.meta), &notes[0]);
    }
}

/// Super-blocks that have one scale, each block's.
pub(super) struct FoldedQ8_0;

impl<S: Simd> PanelFormat<S, QUADS> for FoldedQ8_0 {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q8_0);
    const TOGETHER: usize = SUPER / 2;

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, QUADS>,
        inputs: &[[i32; N]],
        asks: Asks,
        ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
        let words = &inputs[..<Self as PanelFormat<S, QUADS>>::WORDS];
        add_blocks::<S, N>(ints, S::dot_bytes(block.quads, words, &[0; N], asks));
    }

    #[inline(always)]
    fn end<const N: usize>(
        _supers: &[[u16; PANEL]],
        pairs: &[Pair<QUADS>],
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let words = <Self as PanelFormat<S, QUADS>>::WORDS;
        let per_block = words + <Self as PanelFormat<S, QUADS>>::NOTES;
        end_folded::<S, N>(S::load_f16(&pairs[0].meta[0]), &inputs[words], &inputs[per_block + words], ints, sums);
    }
}

pub(super) struct Q4_0;

impl<S: Simd> PanelFormat<S, { QUADS / 2 }> for Q4_0 {
    const WORDS: usize = S::NARROW_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q4_0);

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, { QUADS / 2 }>,
        inputs: &[[i32; N]],
        asks: Asks,
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(QUADS);
        let words = words.try_into().expect("a word for each quad");
        let dots = S::dot_nibbles(block.quads, words, &notes[1], asks);
        scaled::<S, N>(sums, dots, S::load_f16(block.meta), &notes[0]);
    }
}

/// Whether a level makes bytes of folded super-blocks for N inputs: what it takes is shared by them, and fewer have less to
/// scale.
const fn folds<S: Simd, const N: usize>() -> bool {
    S::FOLDS && N > 6
}

/// One that folds is bytes under one scale, whether a level makes them or multiplies by quants, scales and minima: all of it is
/// integers, which are scaled once.
pub(super) struct Q4K<const FOLDS: bool>;

/// A super-block is summed in integers: its blocks' scales are integers, and its inputs have one scale.
impl<S: Simd, const FOLDS: bool> PanelFormat<S, { QUADS / 2 }> for Q4K<FOLDS> {
    const WORDS: usize = S::NARROW_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q4K);
    const SUPERS: usize = 2;

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, { QUADS / 2 }>,
        inputs: &[[i32; N]],
        asks: Asks,
        ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(QUADS);
        let words = words.try_into().expect("a word for each quad");
        if FOLDS && folds::<S, N>() {
            S::add_folded(ints, block.quads, meta_bytes(block.meta), words, asks);
            return;
        }
        // Of the weights less 8 where a dot must have 16 bits.
        let first = if S::MULTIPLIES { &[0; N] } else { &notes[1] };
        let dots = S::dot_nibbles(block.quads, words, first, asks);
        let scales = S::load_pairs(&meta_bytes(block.meta)[0], &[0; PANEL]);
        for n in 0..N {
            ints[n] = S::add_product(ints[n], dots[n], scales);
        }
    }

    #[inline(always)]
    fn end<const N: usize>(
        supers: &[[u16; PANEL]],
        pairs: &[Pair<{ QUADS / 2 }>],
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let per_block = <Self as PanelFormat<S, { QUADS / 2 }>>::WORDS + <Self as PanelFormat<S, { QUADS / 2 }>>::NOTES;
        let d = S::load_f16(&supers[0]);
        if FOLDS && folds::<S, N>() {
            end_folded::<S, N>(d, &inputs[QUADS], &inputs[per_block + QUADS], ints, sums);
            return;
        }
        let mut minima = [S::splat_i32(0); N];
        // The minima, and what the dots lack for the 8 if they were of less.
        for (at, pair) in pairs.iter().enumerate() {
            let [[first, first_minima], [second, second_minima]] = [&pair.meta[0], &pair.meta[1]].map(meta_bytes);
            let (scales, least) = (S::load_pairs(first, second), S::load_pairs(first_minima, second_minima));
            for n in 0..N {
                let eights = S::splat_i32(inputs[2 * at * per_block + QUADS + 2][n]);
                if !S::MULTIPLIES {
                    ints[n] = S::add_pairs(ints[n], scales, eights);
                }
                minima[n] = S::add_pairs(minima[n], least, eights);
            }
        }
        let d_min = S::mul(S::load_f16(&supers[1]), S::splat(-0.125));
        for n in 0..N {
            let scale = S::splat(f32::from_bits(inputs[QUADS][n] as u32));
            let (int, minimum) = (S::from_i32(ints[n]), S::from_i32(minima[n]));
            let dot = match FOLDS {
                // Twice an eighth, and both are below 2^24: exact.
                true => S::mul(S::fma(minimum, S::splat(-0.25), int), d),
                false => S::fma(int, d, S::mul(minimum, d_min)),
            };
            sums[n] = S::fma(dot, scale, sums[n]);
            ints[n] = S::splat_i32(0);
        }
    }
}

/// Adds a block's dots to its super-block's: as one chain of dots they would wait for each other.
#[inline(always)]
fn add_blocks<S: Simd, const N: usize>(ints: &mut [S::I; N], dots: [S::I; N]) {
    for n in 0..N {
        ints[n] = S::add_i32(ints[n], dots[n]);
    }
}

/// Adds the integers of a folded super-block to the sums; `starts` are where dots of its inputs begin.
#[inline(always)]
fn end_folded<S: Simd, const N: usize>(
    scales: S::F,
    inputs: &[i32; N],
    starts: &[i32; N],
    ints: &mut [S::I; N],
    sums: &mut [S::F; N],
) {
    for n in 0..N {
        ints[n] = S::add_i32(ints[n], S::splat_i32(starts[n]));
    }
    scaled::<S, N>(sums, *ints, scales, inputs);
    *ints = [S::splat_i32(0); N];
}

/// Super-blocks that fold, as bytes.
pub(super) struct FoldedQ6K;

impl<S: Simd> PanelFormat<S, 6> for FoldedQ6K {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q6K);
    const SUPERS: usize = 1;

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, 6>,
        inputs: &[[i32; N]],
        asks: Asks,
        ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
        let words = &inputs[..<Self as PanelFormat<S, 6>>::WORDS];
        add_blocks::<S, N>(
            ints,
            S::dot_bytes(&S::fold_sixes(block.quads, meta_bytes(block.meta)), words, &[0; N], asks),
        );
    }

    #[inline(always)]
    fn end<const N: usize>(
        supers: &[[u16; PANEL]],
        _pairs: &[Pair<6>],
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let words = <Self as PanelFormat<S, 6>>::WORDS;
        let per_block = words + <Self as PanelFormat<S, 6>>::NOTES;
        end_folded::<S, N>(S::load_f16(&supers[0]), &inputs[words], &inputs[per_block + words], ints, sums);
    }
}

pub(super) struct Q6K;

impl<S: Simd> PanelFormat<S, 6> for Q6K {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q6K);
    const SUPERS: usize = 1;

    #[inline(always)]
    fn add<const N: usize>(
        block: &Block<'_, 6>,
        inputs: &[[i32; N]],
        asks: Asks,
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(<Self as PanelFormat<S, 6>>::WORDS);
        let quads = sixes(block.quads);
        let halves = quads.as_chunks::<{ QUADS / 2 }>().0.iter().zip(words.chunks_exact(words.len() / 2));
        let (early, late) = asks.halves();
        // Other units add than multiply.
        let mut scaled = [[S::splat(0.0); N]; 2];
        for (half, (quads, words)) in halves.enumerate() {
            // Not zipped: the loop would stay a loop, and take a fifth longer.
            let asks = if half == 0 { early } else { late };
            let scales = signed_scales::<S>(&block.supers[0], &meta_bytes(block.meta)[half]);
            let (dots, shift) = (S::dot_bytes(quads, words, &notes[1 + half], asks), S::mul(scales, S::splat(-SHIFT)));
            for n in 0..N {
                scaled[half][n] = S::fma(S::from_bits(dots[n]), scales, shift);
            }
        }
        for n in 0..N {
            let input = S::splat(f32::from_bits(notes[0][n] as u32));
            sums[n] = S::fma(S::add(scaled[0][n], scaled[1][n]), input, sums[n]);
        }
    }
}

/// Scales of q6_K, which are signed and stored with a bias of 128.
#[inline(always)]
pub(in crate::ops::linear::cpu) fn signed_scales<S: Simd>(d: &[u16; PANEL], scales: &[u8; PANEL]) -> S::F {
    let d = S::load_f16(d);
    S::fma(S::load_u8(scales), d, S::mul(d, S::splat(-128.0)))
}
