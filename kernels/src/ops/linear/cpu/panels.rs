//! Panels of 16 quantised weight rows times all packed input rows.
//!
//! Lane i of every sum is weight row i of the panel: a block of 32 k is summed in integers, scaled by the block's
//! weight scales and the input's, and added to one f32 sum over ascending k. Of q6_K a block's halves have scales of their
//! own, and are added before the input's; of q4_K, and of what folds, a super-block is summed in integers. A span of weights stays in the
//! first-level cache while inputs pass over it, in chunks of N that share each loaded quad; a band stays in the second-level
//! one while the next inputs pass.
//!
//! The first inputs ask for the spans to come, each of two chunks for its half, so that memory is as busy all the time: on
//! Zen 5 with 16 inputs a tenth faster than if one chunk asks for all. A half is one piece, line after line: a processor that
//! fetches neighbours would fetch both of two interleaved shares while the first is asked for (see `columns.rs`). Asks close to
//! their use, quad by quad in every chunk, made 16 inputs half as long again.

use super::WeightBlock;
use crate::ops::linear::pack::notes_of;
use crate::quant::{BAND, BlockFormat, PANEL, Pair, Panel, SPAN, SUPER, meta_bytes};
use crate::simd::int8::{BLOCK, QUAD, QUADS, sixes};
use crate::simd::{Asks, LANES, Line, SHIFT, Simd};
use crate::weight::WeightDtype;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most input rows of one walk, whole chunks: their sums for a band leave room in the first-level cache.
const ROWS: usize = 16;

/// Lines of quantised weights that are asked for at once where a walk begins: what lies behind them is asked for by the walk,
/// while it would wait for these one by one (16 rows take a hundredth less).
const FIRST_LINES: usize = 128;

/// A block of 32 k of 16 weight rows, in Q quads.
struct Block<'a, const Q: usize> {
    /// The f16 scales of its super-block, `SUPERS` of each row.
    supers: &'a [[u16; PANEL]],
    meta: &'a [u16; PANEL],
    quads: &'a [[u8; QUAD]; Q],
}

/// A format whose blocks are stored in Q quads.
trait PanelFormat<S: Simd, const Q: usize> {
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

struct Q8_0;

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
struct FoldedQ8_0;

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

struct Q4_0;

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
struct Q4K<const FOLDS: bool>;

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
struct FoldedQ6K;

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

struct Q6K;

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
pub(super) fn signed_scales<S: Simd>(d: &[u16; PANEL], scales: &[u8; PANEL]) -> S::F {
    let d = S::load_f16(d);
    S::fma(S::load_u8(scales), d, S::mul(d, S::splat(-128.0)))
}

impl WeightBlock<'_> {
    /// Asks for the first lines of the block, if its weights are quantised.
    #[inline(always)]
    pub(super) fn ask_for_first<S: Simd>(&self) {
        let panel = self.linear.weight().panels().panel(self.rows.start / PANEL, 0);
        (0..FIRST_LINES).for_each(|line| S::prefetch_far(panel.line(line)));
    }

    /// The block, if its weights are quantised.
    #[inline(always)]
    pub(super) fn walk_panels<S: Simd>(&self) {
        match self.linear.weight().dtype() {
            WeightDtype::Q8_0 if self.linear.weight().folds() => self.walk_format::<S, FoldedQ8_0, QUADS>(),
            WeightDtype::Q8_0 => self.walk_format::<S, Q8_0, QUADS>(),
            WeightDtype::Q4_0 => self.walk_format::<S, Q4_0, { QUADS / 2 }>(),
            WeightDtype::Q4K if self.linear.weight().folds() => self.walk_format::<S, Q4K<true>, { QUADS / 2 }>(),
            WeightDtype::Q4K => self.walk_format::<S, Q4K<false>, { QUADS / 2 }>(),
            _ if self.linear.weight().folds() => self.walk_format::<S, FoldedQ6K, 6>(),
            _ => self.walk_format::<S, Q6K, 6>(),
        }
    }

    #[inline(always)]
    fn walk_format<S: Simd, T: PanelFormat<S, Q>, const Q: usize>(&self) {
        let together = ROWS / S::PANEL_ROWS;
        if self.begins {
            self.ask_for_first::<S>();
            self.ask_for_inputs::<S>(0..self.x.chunks().min(together));
        }
        for rows in self.bands() {
            for first in (0..self.x.chunks()).step_by(together) {
                let chunks = first..self.x.chunks().min(first + together);
                let inputs = self.x.chunk(first).start..self.x.chunk(chunks.end - 1).end;
                // Set by the first span: a short walk would feel it if they were cleared.
                let mut sums = [[MaybeUninit::<Line>::uninit(); ROWS]; BAND];
                let panels = rows.start / PANEL..rows.end.div_ceil(PANEL);
                for span in 0..self.linear.weight().cols().div_ceil(BLOCK).div_ceil(SPAN) {
                    self.span::<S, T, Q>(panels.clone(), span, chunks.clone(), &mut sums);
                }
                for (row, sums) in rows.clone().step_by(PANEL).zip(&sums) {
                    // SAFETY: the first span has set the sums of these inputs; packed rows have columns, so there is one.
                    let lines = unsafe { sums[..inputs.len()].assume_init_ref() };
                    self.put_lines::<S>(inputs.start, row, lines);
                }
            }
        }
    }

    /// A span of some panels of a band.
    #[inline(always)]
    fn span<S: Simd, T: PanelFormat<S, Q>, const Q: usize>(
        &self,
        panels: Range<usize>,
        span: usize,
        chunks: Range<usize>,
        sums: &mut [[MaybeUninit<Line>; ROWS]; BAND],
    ) {
        let first = self.x.chunk(chunks.start).start;
        let weight = self.linear.weight().panels();
        let inputs = first..self.x.chunk(chunks.end - 1).end;
        let is_last = (span + 1) * SPAN * BLOCK >= self.linear.weight().cols();
        for (panel, sums) in panels.zip(sums) {
            if is_last {
                self.ask_for_output::<S>(inputs.clone(), panel);
            }
            let panel = weight.panel(panel, span);
            for chunk in chunks.clone() {
                let rows = self.x.chunk(chunk);
                let sums = &mut sums[rows.start - first..];
                match rows.len() {
                    1 => self.panel::<S, T, Q, 1>(&panel, span, chunks.clone(), chunk, sums),
                    2 => self.panel::<S, T, Q, 2>(&panel, span, chunks.clone(), chunk, sums),
                    3 => self.panel::<S, T, Q, 3>(&panel, span, chunks.clone(), chunk, sums),
                    4 => self.panel::<S, T, Q, 4>(&panel, span, chunks.clone(), chunk, sums),
                    5 => self.panel::<S, T, Q, 5>(&panel, span, chunks.clone(), chunk, sums),
                    6 => self.panel::<S, T, Q, 6>(&panel, span, chunks.clone(), chunk, sums),
                    7 => self.panel::<S, T, Q, 7>(&panel, span, chunks.clone(), chunk, sums),
                    _ => self.panel::<S, T, Q, 8>(&panel, span, chunks.clone(), chunk, sums),
                }
            }
        }
    }

    /// A span of a panel times the N inputs of one of several chunks, added to their sums. A walk's first chunks ask for the
    /// spans to come.
    #[inline(always)]
    fn panel<S: Simd, T: PanelFormat<S, Q>, const Q: usize, const N: usize>(
        &self,
        panel: &Panel<'_>,
        span: usize,
        chunks: Range<usize>,
        chunk: usize,
        lines: &mut [MaybeUninit<Line>],
    ) {
        // Larger chunks than a level takes would only be dead code.
        if N > S::PANEL_ROWS {
            return;
        }
        let lines = lines.first_chunk_mut::<N>().expect("room for the sums of all chunks");
        match (chunks.len(), chunks.start, chunk) {
            (1, 0, _) => self.blocks::<S, T, Q, N, 1>(panel, span, chunk, Asks::alone::<S>(T::AHEAD), lines),
            (_, 0, 0 | 1) => self.blocks::<S, T, Q, N, 2>(panel, span, chunk, T::AHEAD, lines),
            // It asks for what it has, which spares a third copy of the walk.
            _ => self.blocks::<S, T, Q, N, 2>(panel, span, chunk, 0, lines),
        }
    }

    /// The same; of so many parts of the weights that lie so many bytes ahead it asks for one.
    #[inline(always)]
    fn blocks<S: Simd, T: PanelFormat<S, Q>, const Q: usize, const N: usize, const PARTS: usize>(
        &self,
        panel: &Panel<'_>,
        span: usize,
        chunk: usize,
        ahead: usize,
        lines: &mut [MaybeUninit<Line>; N],
    ) {
        let per_block = T::WORDS + T::NOTES;
        let mut pairs = panel.pairs::<Q>();
        let mut inputs = &self.x.words::<N>(chunk)[span * SPAN * per_block..][..pairs.len() * 2 * per_block];
        // In registers.
        let mut sums = [S::splat(0.0); N];
        if span > 0 {
            for n in 0..N {
                // SAFETY: the first span has set them.
                sums[n] = S::load(unsafe { &lines[n].assume_init_ref().0 });
            }
        }
        let mut ints = [S::splat_i32(0); N];
        // Its share lies in one piece, and is asked for at the pace of the walk.
        let mut asked = pairs.as_ptr().cast::<u8>().wrapping_add(chunk % PARTS * size_of_val(pairs) / PARTS);
        let mut super_block = 0;
        // Few instructions but the dots: counting blocks and lines for every block took 8 rows of q8_0 a tenth longer.
        while !pairs.is_empty() {
            let supers = panel.supers_of(super_block, T::SUPERS);
            if T::SUPERS > 0 {
                Asks::ahead(supers.as_ptr().cast(), ahead, 1, 1).now::<S>();
            }
            let (these, other) = pairs.split_at(T::TOGETHER.min(pairs.len()));
            let (theirs, others) = inputs.split_at(these.len() * 2 * per_block);
            for (pair, inputs) in these.iter().zip(theirs.chunks_exact(2 * per_block)) {
                let (first, second) = inputs.split_at(per_block);
                let (scales, quads) = Asks::ahead(asked, ahead, 1 + 2 * Q / PARTS, PARTS).split_at(1);
                let (early, late) = quads.halves();
                scales.now::<S>();
                let block = Block { supers, meta: &pair.meta[0], quads: &pair.quads[0] };
                T::add(&block, first, early, &mut ints, &mut sums);
                let block = Block { supers, meta: &pair.meta[1], quads: &pair.quads[1] };
                T::add(&block, second, late, &mut ints, &mut sums);
                asked = asked.wrapping_add(size_of::<Pair<Q>>() / PARTS);
            }
            T::end(supers, these, theirs, &mut ints, &mut sums);
            (pairs, inputs) = (other, others);
            super_block += 1;
        }
        for n in 0..N {
            let mut lanes = [0.0; LANES];
            S::store(sums[n], &mut lanes);
            lines[n].write(Line(lanes));
        }
    }
}
