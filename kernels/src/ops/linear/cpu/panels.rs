//! Panels of 16 quantised weight rows times all packed input rows.
//!
//! Lane i of every sum is weight row i of the panel: a block of 32 k is summed in integers, scaled by the block's
//! weight scales and the input's, and added to one f32 sum over ascending k; what else formats do is in `formats`. A span of
//! weights stays in the first-level cache while inputs pass over it, in chunks of N that share each loaded quad; a band stays
//! in the second-level one while the next inputs pass.
//!
//! The first inputs ask for the spans to come, each of two chunks for its half, so that memory is as busy all the time: on
//! Zen 5 with 16 inputs a tenth faster than if one chunk asks for all. A half is one piece, line after line: a processor that
//! fetches neighbours would fetch both of two interleaved shares while the first is asked for (see `columns.rs`). Asks close to
//! their use, quad by quad in every chunk, made 16 inputs half as long again.

mod formats;

pub(super) use formats::signed_scales;

use super::WeightBlock;
use crate::quant::{BAND, PANEL, Pair, Panel, SPAN};
use crate::simd::int8::{BLOCK, QUADS};
use crate::simd::{Asks, LANES, Line, Simd};
use crate::weight::WeightDtype;
use formats::{Block, FoldedQ6K, FoldedQ8_0, PanelFormat, Q4_0, Q4K, Q6K, Q8_0};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most input rows of one walk, whole chunks: their sums for a band leave room in the first-level cache.
const ROWS: usize = 16;

/// Lines of quantised weights that are asked for at once where a walk begins: what lies behind them is asked for by the walk,
/// while it would wait for these one by one (16 rows take a hundredth less).
const FIRST_LINES: usize = 128;

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
