//! Panels of 16 quantised weight rows times all packed input rows.
//!
//! Lane i of every sum is weight row i of the panel: a block of 32 k is summed in integers, scaled by the block's
//! weight scales and the input's, and added to one f32 sum over ascending k. A span of weights stays in the first-level
//! cache while inputs pass over it, in chunks of N that share each loaded quad. Few inputs take two panels, block by block:
//! memory serves two walks faster than one.

use super::WeightBlock;
use crate::ops::linear::PackedRows;
use crate::quant::{BAND, PANEL, Panel, SPAN};
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{LANES, Line, Simd};
use crate::weight::WeightDtype;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes ahead of their use at which weights are asked for, in each panel: less than elsewhere, since two go at once.
const AHEAD: usize = 1024;

/// Words that follow the inputs of a row, per block: the input's scale, then what undoes the weights' bias.
pub(crate) const NOTES: usize = 4;

/// Most input rows of one walk: their sums for a band leave room in the first-level cache.
pub(super) const ROWS: usize = 16;

/// A span of N packed input rows as their words: inputs, and notes.
struct Inputs<'a, const N: usize> {
    words: [&'a [i32]; N],
    notes: [&'a [[i32; NOTES]]; N],
}

impl<'a, const N: usize> Inputs<'a, N> {
    /// Rows from `first` on. They have `blocks` blocks of so many words, whose notes come behind them all.
    #[inline(always)]
    fn new(x: &'a PackedRows, first: usize, span: Range<usize>, blocks: usize, block_words: usize) -> Self {
        let mut inputs = Self { words: [&[]; N], notes: [&[]; N] };
        for n in 0..N {
            let lines = x.row(first + n);
            // SAFETY: a `Line` is 64 plain bytes, aligned beyond an i32, and any 4 bytes are an i32.
            let words = unsafe { std::slice::from_raw_parts(lines.as_ptr().cast::<i32>(), lines.len() * LANES) };
            let (words, notes) = words.split_at(blocks * block_words);
            inputs.words[n] = &words[span.start * block_words..span.end * block_words];
            inputs.notes[n] = &notes.as_chunks().0[span.clone()];
        }
        inputs
    }

    #[inline(always)]
    fn note(&self, block: usize, index: usize) -> [i32; N] {
        let mut note = [0; N];
        for n in 0..N {
            note[n] = self.notes[n][block][index];
        }
        note
    }
}

/// One block of a panel's format.
trait PanelFormat<S: Simd> {
    /// Words of a block of input.
    const WORDS: usize;
    /// Adds block `block` of the span to the sums of N inputs.
    fn add<const N: usize>(panel: &Panel<'_>, block: usize, inputs: &Inputs<'_, N>, sums: &mut [S::F; N]);
}

/// `sums += ints * scales * the inputs' scales`.
#[inline(always)]
fn scaled<S: Simd, const N: usize>(sums: &mut [S::F; N], ints: [S::I; N], scales: S::F, inputs: [i32; N]) {
    for n in 0..N {
        let input = S::splat(f32::from_bits(inputs[n] as u32));
        sums[n] = S::fma(S::mul(S::from_i32(ints[n]), scales), input, sums[n]);
    }
}

struct Q8_0;

impl<S: Simd> PanelFormat<S> for Q8_0 {
    const WORDS: usize = S::WIDE_INPUT.words();

    #[inline(always)]
    fn add<const N: usize>(panel: &Panel<'_>, block: usize, inputs: &Inputs<'_, N>, sums: &mut [S::F; N]) {
        let quads: &[[u8; QUAD]; QUADS] = panel.quads(block);
        let at = block * <Self as PanelFormat<S>>::WORDS;
        let ahead = panel.ahead::<QUADS>(block, AHEAD);
        let ints = S::dot_bytes::<N, true>(quads, ahead, &inputs.words, at, inputs.note(block, 1));
        scaled::<S, N>(sums, ints, S::load_f16(panel.meta_words(block)), inputs.note(block, 0));
    }
}

struct Q4_0;

impl<S: Simd> PanelFormat<S> for Q4_0 {
    const WORDS: usize = S::NARROW_INPUT.words();

    #[inline(always)]
    fn add<const N: usize>(panel: &Panel<'_>, block: usize, inputs: &Inputs<'_, N>, sums: &mut [S::F; N]) {
        let at = block * <Self as PanelFormat<S>>::WORDS;
        let ints = S::dot_nibbles(
            panel.quads(block),
            panel.ahead::<4>(block, AHEAD),
            &inputs.words,
            at,
            inputs.note(block, 1),
        );
        scaled::<S, N>(sums, ints, S::load_f16(panel.meta_words(block)), inputs.note(block, 0));
    }
}

struct Q4K;

impl<S: Simd> PanelFormat<S> for Q4K {
    const WORDS: usize = S::NARROW_INPUT.words();

    #[inline(always)]
    fn add<const N: usize>(panel: &Panel<'_>, block: usize, inputs: &Inputs<'_, N>, sums: &mut [S::F; N]) {
        let at = block * <Self as PanelFormat<S>>::WORDS;
        let ints = S::dot_nibbles(panel.quads(block), panel.ahead::<4>(block, AHEAD), &inputs.words, at, [0; N]);
        let [scales, minima] = panel.meta_bytes(block);
        let [d, d_min] = panel.supers::<2>(block);
        scaled::<S, N>(sums, ints, S::mul(S::load_f16(d), S::load_u8(scales)), inputs.note(block, 0));
        let (minima, totals) = (S::mul(S::load_f16(d_min), S::load_u8(minima)), inputs.note(block, 1));
        for n in 0..N {
            sums[n] = S::fma(minima, S::splat(f32::from_bits(totals[n] as u32)), sums[n]);
        }
    }
}

struct Q6K;

impl<S: Simd> PanelFormat<S> for Q6K {
    const WORDS: usize = S::WIDE_INPUT.words();

    #[inline(always)]
    fn add<const N: usize>(panel: &Panel<'_>, block: usize, inputs: &Inputs<'_, N>, sums: &mut [S::F; N]) {
        let quads = sixes(panel.quads(block));
        let [d] = panel.supers::<1>(block);
        let scales = panel.meta_bytes(block);
        for (half, quads) in quads.as_chunks::<{ QUADS / 2 }>().0.iter().enumerate() {
            let at = (2 * block + half) * <Self as PanelFormat<S>>::WORDS / 2;
            let ahead = panel.ahead::<6>(block, AHEAD + half * size_of_val(quads));
            let ints = S::dot_bytes::<N, false>(quads, ahead, &inputs.words, at, inputs.note(block, 1 + half));
            let scales = signed_scales::<S>(d, &scales[half]);
            scaled::<S, N>(sums, ints, scales, inputs.note(block, 0));
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
        for first in (0..self.x.rows()).step_by(ROWS) {
            let inputs = first..self.x.rows().min(first + ROWS);
            for rows in self.bands() {
                // Set by the first span: a short walk would feel it if they were cleared.
                let mut sums = [[MaybeUninit::<Line>::uninit(); ROWS]; BAND];
                let panels = rows.start / PANEL..rows.end.div_ceil(PANEL);
                for span in 0..self.linear.weight().cols().div_ceil(BLOCK).div_ceil(SPAN) {
                    self.span::<S, T>(panels.clone(), span, inputs.clone(), &mut sums);
                }
                for (row, sums) in rows.step_by(PANEL).zip(&sums) {
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
        inputs: Range<usize>,
        sums: &mut [[MaybeUninit<Line>; ROWS]; BAND],
    ) {
        let start = panels.start;
        // Side by side go the halves of a band, each as long as can be. With more inputs, multiplying takes longer than
        // memory does.
        let half = if inputs.len() <= 2 { panels.len() / 2 } else { 0 };
        let (left, right) = sums.split_at_mut(half);
        for (p, (left, right)) in left.iter_mut().zip(&mut *right).enumerate() {
            let panels = [start + p, start + half + p];
            match inputs.len() {
                1 => self.panels::<S, T, 1, 2>(panels, span, inputs.start, [left, right]),
                _ => self.panels::<S, T, 2, 2>(panels, span, inputs.start, [left, right]),
            }
        }
        for (panel, sums) in (start + 2 * half..panels.end).zip(&mut right[half..]) {
            let mut first = inputs.start;
            while first < inputs.end {
                let (left, sums) = (inputs.end - first, [&mut sums[first - inputs.start..]]);
                let count = left.div_ceil(left.div_ceil(S::PANEL_ROWS));
                match count {
                    1 => self.panels::<S, T, 1, 1>([panel], span, first, sums),
                    2 => self.panels::<S, T, 2, 1>([panel], span, first, sums),
                    3 => self.panels::<S, T, 3, 1>([panel], span, first, sums),
                    4 => self.panels::<S, T, 4, 1>([panel], span, first, sums),
                    5 => self.panels::<S, T, 5, 1>([panel], span, first, sums),
                    6 => self.panels::<S, T, 6, 1>([panel], span, first, sums),
                    7 => self.panels::<S, T, 7, 1>([panel], span, first, sums),
                    _ => self.panels::<S, T, 8, 1>([panel], span, first, sums),
                }
                first += count;
            }
        }
    }

    /// A span of P panels times N inputs from `first` on, added to their sums.
    #[inline(always)]
    fn panels<S: Simd, T: PanelFormat<S>, const N: usize, const P: usize>(
        &self,
        panels: [usize; P],
        span: usize,
        first: usize,
        lines: [&mut [MaybeUninit<Line>]; P],
    ) {
        if N > S::PANEL_ROWS {
            return;
        }
        let weight = self.linear.weight();
        let panels: [Panel<'_>; P] = std::array::from_fn(|p| weight.panel(panels[p], span));
        let (blocks, here) = (weight.cols().div_ceil(BLOCK), span * SPAN..span * SPAN + panels[0].blocks());
        let inputs = Inputs::<N>::new(self.x, first, here.clone(), blocks, T::WORDS);
        // In registers.
        let mut sums = [[S::splat(0.0); N]; P];
        if span > 0 {
            for p in 0..P {
                for n in 0..N {
                    // SAFETY: the first span has set them.
                    sums[p][n] = S::load(unsafe { &lines[p][n].assume_init_ref().0 });
                }
            }
        }
        for block in 0..here.len() {
            // No loop: the compiler would keep the sums in memory.
            T::add(&panels[0], block, &inputs, &mut sums[0]);
            if P == 2 {
                T::add(&panels[P - 1], block, &inputs, &mut sums[P - 1]);
            }
        }
        for p in 0..P {
            for n in 0..N {
                let mut lanes = [0.0; LANES];
                S::store(sums[p][n], &mut lanes);
                lines[p][n].write(Line(lanes));
            }
        }
    }
}
