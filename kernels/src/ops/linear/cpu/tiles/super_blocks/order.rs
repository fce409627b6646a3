//! The super-blocks of a task, one behind the other.

use super::formats::SuperFormat;
use super::{PAIRS, WeightBlock};
use crate::quant::{BAND, PANEL, Pair, Panels, SPAN, SUPER};
use crate::simd::int8::BLOCK;
use std::marker::PhantomData;
use std::ops::Range;

/// Up to 8 blocks of a panel.
#[derive(Clone, Copy)]
pub(super) struct SuperBlock<'a, const Q: usize> {
    pub pairs: &'a [Pair<Q>],
    pub supers: &'a [[u16; PANEL]],
    /// The panel, and which of its band's it is, of those that are walked over.
    pub panel: usize,
    pub place: usize,
    /// The first block in the row.
    pub first: usize,
}

/// The super-blocks of a block of weight rows as they lie in memory: band by band, span by span, panel by panel.
pub(super) struct SuperBlocks<'a, T, const Q: usize> {
    weight: Panels<'a>,
    spans: usize,
    /// Panels of the band, and where those of the block end.
    band: Range<usize>,
    end: usize,
    /// The panel and the span that are walked over, and what is left of both.
    panel: usize,
    span: usize,
    pairs: &'a [Pair<Q>],
    supers: &'a [[u16; PANEL]],
    first: usize,
    format: PhantomData<T>,
}

impl<'a, T: SuperFormat<Q>, const Q: usize> SuperBlocks<'a, T, Q> {
    /// Those of a block.
    #[inline(always)]
    pub fn new(block: &WeightBlock<'a>) -> Self {
        let weight = block.linear.weight();
        let (start, end) = (block.rows.start / PANEL, block.rows.end.div_ceil(PANEL));
        let spans = weight.cols().div_ceil(BLOCK).div_ceil(SPAN);
        // As behind a band of no panels.
        let (band, span) = (start..start, spans - 1);
        let (pairs, supers, first, format) = (&[][..], &[][..], 0, PhantomData);
        Self { weight: weight.panels(), spans, band, end, panel: start, span, pairs, supers, first, format }
    }

    /// The first block of the last span.
    #[inline(always)]
    pub fn last_span(&self) -> usize {
        (self.spans - 1) * SPAN
    }

    /// Turns to the band behind, if there is one.
    #[inline(always)]
    fn enter_band(&mut self) -> bool {
        let start = self.band.end;
        self.band = start..self.end.min((start / BAND + 1) * BAND);
        if self.band.is_empty() {
            return false;
        }
        self.enter(start, 0);
        true
    }

    /// Turns to a panel's span.
    #[inline(always)]
    fn enter(&mut self, panel: usize, span: usize) {
        let weights = self.weight.panel(panel, span);
        (self.panel, self.span, self.first) = (panel, span, span * SPAN);
        (self.pairs, self.supers) = (weights.pairs(), weights.all_supers());
    }
}

impl<'a, T: SuperFormat<Q>, const Q: usize> Iterator for SuperBlocks<'a, T, Q> {
    type Item = SuperBlock<'a, Q>;

    #[inline(always)]
    fn next(&mut self) -> Option<SuperBlock<'a, Q>> {
        if self.pairs.is_empty() {
            if self.panel + 1 < self.band.end {
                self.enter(self.panel + 1, self.span);
            } else if self.span + 1 < self.spans {
                self.enter(self.band.start, self.span + 1);
            } else if !self.enter_band() {
                return None;
            }
        }
        let (pairs, other_pairs) = self.pairs.split_at(PAIRS.min(self.pairs.len()));
        let (supers, other_supers) = self.supers.split_at(T::SUPERS);
        let (panel, first) = (self.panel, self.first);
        (self.pairs, self.supers, self.first) = (other_pairs, other_supers, first + SUPER);
        Some(SuperBlock { pairs, supers, panel, place: panel - self.band.start, first })
    }
}
