//! Panels of 16 quantised weight rows times all packed input rows.
//!
//! Lane i of every sum is weight row i of the panel: a block of 32 k is summed in integers, scaled by the block's
//! weight scales and the input's, and added to one f32 sum over ascending k. Of q4_K a whole super-block is summed in
//! integers. A span of weights stays in the first-level cache while inputs pass over it, in chunks of N that share each loaded
//! quad; a band stays in the second-level one while the next inputs pass.
//!
//! The first inputs ask for the spans to come, each chunk for its share, so that memory is as busy all the time: on Zen 5 with
//! 16 inputs a tenth faster than if one chunk asks for all. The first-level cache is asked for the next span, the second, which
//! can wait for more lines at once, for the one after that: on Emerald Rapids a tenth faster than one of them alone. (On Zen 5
//! the first alone was up to a twentieth faster than the second alone.) Asks close to their use, quad by quad in every chunk,
//! made 16 inputs half as long again.

use super::WeightBlock;
use crate::ops::linear::pack::notes_of;
use crate::quant::{BAND, BlockFormat, PANEL, Panel, SPAN, SUPER};
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{LANES, Line, Simd};
use crate::weight::WeightDtype;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most input rows of one walk, whole chunks: their sums for a band leave room in the first-level cache.
const ROWS: usize = 16;

/// Lines of a task's quantised weights that are asked for at once: what lies behind them is asked for by the walk, while it
/// would wait for these one by one (16 rows take a hundredth less).
const FIRST_LINES: usize = 128;

/// One block of a panel's format.
trait PanelFormat<S: Simd> {
    /// Words of a block of input, and its notes.
    const WORDS: usize;
    const NOTES: usize;
    /// Blocks that may be summed in integers before they are added to sums.
    const BLOCKS: usize = SPAN;
    /// Adds block `block` of the span to the sums of N inputs, or to their integers; `inputs` are its words and then notes.
    fn add<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    );
    /// Adds the integers of the up to `BLOCKS` blocks from `block` on to the sums; `inputs` are those of all of them.
    #[inline(always)]
    fn end<const N: usize>(
        _panel: &Panel<'_>,
        _block: usize,
        _inputs: &[[i32; N]],
        _ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
    }
}

/// `sums += dots * scales * the inputs' scales`.
#[inline(always)]
fn scaled<S: Simd, const N: usize>(sums: &mut [S::F; N], dots: [S::I; N], scales: S::F, inputs: &[i32; N]) {
    for n in 0..N {
        let input = S::splat(f32::from_bits(inputs[n] as u32));
        sums[n] = S::fma(S::mul(S::from_i32(dots[n]), scales), input, sums[n]);
    }
}

struct Q8_0;

impl<S: Simd> PanelFormat<S> for Q8_0 {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q8_0);

    #[inline(always)]
    fn add<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(<Self as PanelFormat<S>>::WORDS);
        let quads: &[[u8; QUAD]; QUADS] = panel.quads(block);
        let dots = S::dot_bytes::<N, true>(quads, words, &notes[1]);
        scaled::<S, N>(sums, dots, S::load_f16(panel.meta_words(QUADS, block)), &notes[0]);
    }
}

struct Q4_0;

impl<S: Simd> PanelFormat<S> for Q4_0 {
    const WORDS: usize = S::NARROW_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q4_0);

    #[inline(always)]
    fn add<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(QUADS);
        let words = words.try_into().expect("a word for each quad");
        let dots = S::dot_nibbles(panel.quads(block), words, &notes[1]);
        scaled::<S, N>(sums, dots, S::load_f16(panel.meta_words(4, block)), &notes[0]);
    }
}

struct Q4K;

/// A super-block is summed in integers: its blocks' scales are integers, and its inputs have one scale.
impl<S: Simd> PanelFormat<S> for Q4K {
    const WORDS: usize = S::NARROW_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q4K);
    const BLOCKS: usize = SUPER;

    #[inline(always)]
    fn add<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        _sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(QUADS);
        let words = words.try_into().expect("a word for each quad");
        // Of the weights less 8, so that a dot has 16 bits.
        let dots = S::dot_nibbles(panel.quads(block), words, &notes[1]);
        let scales = S::load_pairs(&panel.meta_bytes(4, block)[0], &[0; PANEL]);
        for n in 0..N {
            ints[n] = S::add_pairs(ints[n], dots[n], scales);
        }
    }

    #[inline(always)]
    fn end<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let per_block = <Self as PanelFormat<S>>::WORDS + <Self as PanelFormat<S>>::NOTES;
        let mut minima = [S::splat_i32(0); N];
        // What the dots lack for the 8, and the minima.
        for (pair, inputs) in panel.pairs::<4>()[block / 2..].iter().zip(inputs.chunks(2 * per_block)) {
            let [[first, first_minima], [second, second_minima]] = &pair.meta;
            let (scales, least) = (S::load_pairs(first, second), S::load_pairs(first_minima, second_minima));
            for n in 0..N {
                let eights = S::splat_i32(inputs[QUADS + 2][n]);
                ints[n] = S::add_pairs(ints[n], scales, eights);
                minima[n] = S::add_pairs(minima[n], least, eights);
            }
        }
        let [d, d_min] = panel.supers::<2>(block);
        let (d, d_min) = (S::load_f16(d), S::mul(S::load_f16(d_min), S::splat(-0.125)));
        for n in 0..N {
            let scale = S::splat(f32::from_bits(inputs[QUADS][n] as u32));
            let dot = S::fma(S::from_i32(ints[n]), d, S::mul(S::from_i32(minima[n]), d_min));
            sums[n] = S::fma(dot, scale, sums[n]);
            ints[n] = S::splat_i32(0);
        }
    }
}

struct Q6K;

impl<S: Simd> PanelFormat<S> for Q6K {
    const WORDS: usize = S::WIDE_INPUT.words();
    const NOTES: usize = notes_of(BlockFormat::Q6K);

    #[inline(always)]
    fn add<const N: usize>(
        panel: &Panel<'_>,
        block: usize,
        inputs: &[[i32; N]],
        _ints: &mut [S::I; N],
        sums: &mut [S::F; N],
    ) {
        let (words, notes) = inputs.split_at(<Self as PanelFormat<S>>::WORDS);
        let quads = sixes(panel.quads(block));
        let [d] = panel.supers::<1>(block);
        let scales = panel.meta_bytes(6, block);
        let halves = quads.as_chunks::<{ QUADS / 2 }>().0.iter().zip(words.chunks_exact(words.len() / 2));
        for (half, (quads, words)) in halves.enumerate() {
            let dots = S::dot_bytes::<N, false>(quads, words, &notes[1 + half]);
            scaled::<S, N>(sums, dots, signed_scales::<S>(d, &scales[half]), &notes[0]);
        }
    }
}

/// Scales of q6_K, which are signed and stored with a bias of 128.
#[inline(always)]
pub(super) fn signed_scales<S: Simd>(d: &[u16; PANEL], scales: &[u8; PANEL]) -> S::F {
    S::mul(S::load_f16(d), S::sub(S::load_u8(scales), S::splat(128.0)))
}

/// Quads of 6 bits a weight, unpacked to bytes: low halves in the first four, high pairs of bits in the last two.
#[inline(always)]
pub(super) fn sixes(packed: &[[u8; QUAD]; 6]) -> [[u8; QUAD]; QUADS] {
    let mut quads = [[0; QUAD]; QUADS];
    for (at, quad) in quads.iter_mut().enumerate() {
        let (low, high) = (&packed[at % 4], &packed[4 + at % 2]);
        for ((byte, low), high) in quad.iter_mut().zip(low).zip(high) {
            *byte = low >> (4 * (at / 4)) & 15 | (high >> (2 * (at / 2)) & 3) << 4;
        }
    }
    quads
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
            WeightDtype::Q8_0 => self.walk_format::<S, Q8_0>(),
            WeightDtype::Q4_0 => self.walk_format::<S, Q4_0>(),
            WeightDtype::Q4K => self.walk_format::<S, Q4K>(),
            _ => self.walk_format::<S, Q6K>(),
        }
    }

    #[inline(always)]
    fn walk_format<S: Simd, T: PanelFormat<S>>(&self) {
        let together = ROWS / S::PANEL_ROWS;
        self.ask_for_first::<S>();
        for rows in self.bands() {
            for first in (0..self.x.chunks()).step_by(together) {
                let chunks = first..self.x.chunks().min(first + together);
                let inputs = self.x.chunk(first).start..self.x.chunk(chunks.end - 1).end;
                // Set by the first span: a short walk would feel it if they were cleared.
                let mut sums = [[MaybeUninit::<Line>::uninit(); ROWS]; BAND];
                let panels = rows.start / PANEL..rows.end.div_ceil(PANEL);
                for span in 0..self.linear.weight().cols().div_ceil(BLOCK).div_ceil(SPAN) {
                    self.span::<S, T>(panels.clone(), span, chunks.clone(), &mut sums);
                }
                for (row, sums) in rows.clone().step_by(PANEL).zip(&sums) {
                    for (n, sums) in inputs.clone().zip(sums) {
                        // SAFETY: the first span has set the sums of these inputs; packed rows have columns, so there is one.
                        self.put(n, row, unsafe { &sums.assume_init_ref().0 });
                    }
                }
            }
        }
    }

    /// A span of some panels of a band.
    #[inline(always)]
    fn span<S: Simd, T: PanelFormat<S>>(
        &self,
        panels: Range<usize>,
        span: usize,
        chunks: Range<usize>,
        sums: &mut [[MaybeUninit<Line>; ROWS]; BAND],
    ) {
        let first = self.x.chunk(chunks.start).start;
        let weight = self.linear.weight().panels();
        for (panel, sums) in panels.zip(sums) {
            let panel = weight.panel(panel, span);
            for chunk in chunks.clone() {
                let rows = self.x.chunk(chunk);
                let asks = (chunks.start == 0).then_some((chunk, chunks.len()));
                let sums = &mut sums[rows.start - first..];
                match rows.len() {
                    1 => self.panel::<S, T, 1>(&panel, span, (chunk, asks), sums),
                    2 => self.panel::<S, T, 2>(&panel, span, (chunk, asks), sums),
                    3 => self.panel::<S, T, 3>(&panel, span, (chunk, asks), sums),
                    4 => self.panel::<S, T, 4>(&panel, span, (chunk, asks), sums),
                    5 => self.panel::<S, T, 5>(&panel, span, (chunk, asks), sums),
                    6 => self.panel::<S, T, 6>(&panel, span, (chunk, asks), sums),
                    7 => self.panel::<S, T, 7>(&panel, span, (chunk, asks), sums),
                    _ => self.panel::<S, T, 8>(&panel, span, (chunk, asks), sums),
                }
            }
        }
    }

    /// A span of a panel times the N inputs of a chunk, added to their sums; it asks for one of so many parts of the spans to
    /// come, or not.
    #[inline(always)]
    fn panel<S: Simd, T: PanelFormat<S>, const N: usize>(
        &self,
        panel: &Panel<'_>,
        span: usize,
        (chunk, asks): (usize, Option<(usize, usize)>),
        lines: &mut [MaybeUninit<Line>],
    ) {
        if N > S::PANEL_ROWS {
            return;
        }
        let per_block = T::WORDS + T::NOTES;
        let inputs = &self.x.words::<N>(chunk)[span * SPAN * per_block..][..panel.blocks() * per_block];
        let count = panel.lines();
        let mut asked = asks.map_or(0..0, |(part, parts)| count * part / parts..count * (part + 1) / parts);
        let share = asked.len().div_ceil(panel.blocks());
        // In registers.
        let mut sums = [S::splat(0.0); N];
        if span > 0 {
            for n in 0..N {
                // SAFETY: the first span has set them.
                sums[n] = S::load(unsafe { &lines[n].assume_init_ref().0 });
            }
        }
        let mut ints = [S::splat_i32(0); N];
        for (at, inputs) in inputs.chunks(T::BLOCKS * per_block).enumerate() {
            let first = at * T::BLOCKS;
            for (at, inputs) in inputs.chunks_exact(per_block).enumerate() {
                for line in asked.by_ref().take(share) {
                    S::prefetch(panel.line(count + line));
                    S::prefetch_far(panel.line(2 * count + line));
                }
                T::add(panel, first + at, inputs, &mut ints, &mut sums);
            }
            T::end(panel, first, inputs, &mut ints, &mut sums);
        }
        for n in 0..N {
            let mut lanes = [0.0; LANES];
            S::store(sums[n], &mut lanes);
            lines[n].write(Line(lanes));
        }
    }
}
