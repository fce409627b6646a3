//! Where everything of 16 rows lies, a panel of them.
//!
//! Panels lie in bands of 8, and a band's blocks in spans of 24: span by span, and in a span panel by panel. Inputs pass over
//! the weights in this order, so that their span stays in the first-level cache while memory is read as one stream. A span
//! of a panel is its super-blocks' scales, then the blocks two by two: a cache line with the scales of both, then the quants
//! of both. Nothing is skipped and come back to, which the processor's own prefetcher loses track of: on Zen 4, where scales
//! lay apart from the quants, a walk had two thirds of the bandwidth. A quad never straddles two cache lines. Rows and
//! columns that the matrix lacks have scale 0.

use super::{BlockFormat, RowBlock};
use crate::bytes::{Plain, bytes_of, typed};
use crate::simd::LANES;
use crate::simd::int8::{BLOCK, QUAD};
use half::f16;

/// Weight rows of a panel.
pub(crate) const PANEL: usize = LANES;
/// Panels of a band: the last one may have fewer.
pub(crate) const BAND: usize = 8;
/// Weight rows of a band.
pub(crate) const BAND_ROWS: usize = BAND * PANEL;
/// Blocks of a span: the last one may have fewer. Of 16 blocks, 768 columns were a span and a short one, and 8 inputs of q4_K
/// took a twentieth longer.
pub(crate) const SPAN: usize = 24;
/// Blocks of a super-block.
pub(crate) const SUPER: usize = 8;
/// Bytes of a block's scales: two for each row.
const META: usize = 2 * PANEL;
const LINE: usize = 64;

/// Where panels lie in a weight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    format: BlockFormat,
    panels: usize,
    full_spans: usize,
    full: SpanLayout,
    last: SpanLayout,
}

/// Offsets within a span of a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SpanLayout {
    blocks: usize,
    /// Where the first pair of blocks starts.
    pairs: usize,
    bytes: usize,
}

impl SpanLayout {
    fn new(format: BlockFormat, blocks: usize) -> Self {
        let pairs = (super_bytes(format) * blocks.div_ceil(SUPER)).next_multiple_of(LINE);
        Self { blocks, pairs, bytes: pairs + blocks.div_ceil(2) * (LINE + 2 * quads(format) * QUAD) }
    }
}

/// Where a block's scales are and where its quants start, of `quads` quads, behind the start of the pairs.
#[inline(always)]
const fn places(quads: usize, block: usize) -> (usize, usize) {
    let pair = block / 2 * (LINE + 2 * quads * QUAD);
    (pair + block % 2 * META, pair + LINE + block % 2 * quads * QUAD)
}

impl PanelLayout {
    pub fn new(format: BlockFormat, [rows, cols]: [usize; 2]) -> Self {
        let blocks = cols.div_ceil(BLOCK);
        Self {
            format,
            panels: rows.div_ceil(PANEL),
            full_spans: blocks / SPAN,
            full: SpanLayout::new(format, SPAN),
            last: SpanLayout::new(format, blocks % SPAN),
        }
    }

    /// Bytes of all panels, a multiple of a cache line.
    pub fn bytes(&self) -> usize {
        self.panels.saturating_mul(self.panel_bytes())
    }

    /// Bytes of a band, unless it is the last.
    pub fn band_bytes(&self) -> usize {
        BAND.saturating_mul(self.panel_bytes())
    }

    fn panel_bytes(&self) -> usize {
        self.full_spans.saturating_mul(self.full.bytes).saturating_add(self.last.bytes)
    }

    /// Where a span of a panel starts in its band, and how it is laid out.
    #[inline(always)]
    fn span(&self, panel: usize, span: usize) -> (usize, SpanLayout) {
        let panels = BAND.min(self.panels - panel / BAND * BAND);
        let layout = if span < self.full_spans { self.full } else { self.last };
        (span * panels * self.full.bytes + panel % BAND * layout.bytes, layout)
    }

    /// Writes block `index` of a row into its band, which is zeros at first.
    pub fn put(&self, band: &mut [u8], row: usize, index: usize, block: &RowBlock) {
        let (lane, place) = (row % PANEL, index % SPAN);
        let (start, layout) = self.span(row / PANEL, index / SPAN);
        let span = &mut band[start..][..layout.bytes];
        let (meta, quants) = places(quads(self.format), place);
        let meta = &mut span[layout.pairs + meta..][..META];
        match self.format {
            // f16s, one after another.
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => meta[2 * lane..][..2].copy_from_slice(&block.meta),
            BlockFormat::Q4K | BlockFormat::Q6K => {
                (meta[lane], meta[PANEL + lane]) = (block.meta[0], block.meta[1]);
            }
        }
        for (which, bits) in block.supers.iter().enumerate().take(super_bytes(self.format) / META) {
            let at = place / SUPER * super_bytes(self.format) + which * META + 2 * lane;
            span[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        let quads = &mut span[layout.pairs + quants..];
        for (k, quant) in block.quants.iter().enumerate() {
            let (quad, at) = (k / 4, 4 * lane + k % 4);
            match self.format {
                BlockFormat::Q8_0 => quads[quad * QUAD + at] = *quant,
                BlockFormat::Q4_0 | BlockFormat::Q4K => quads[quad % 4 * QUAD + at] |= quant << (4 * (quad / 4)),
                BlockFormat::Q6K if quad < 6 => quads[quad * QUAD + at] |= quant,
                BlockFormat::Q6K => {
                    for piece in 0..3 {
                        quads[(3 * (quad - 6) + piece) * QUAD + at] |= (quant >> (2 * piece) & 3) << 6;
                    }
                }
            }
        }
    }

    /// The weights of block `index` of a row.
    pub fn values(&self, bytes: &[u8], row: usize, index: usize) -> [f32; BLOCK] {
        let (lane, place) = (row % PANEL, index % SPAN);
        let panel = Panels::new(self, bytes).panel(row / PANEL, index / SPAN);
        let (meta, quants) = places(quads(self.format), place);
        let meta = &panel.pairs[meta..][..META];
        let meta = match self.format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => [meta[2 * lane], meta[2 * lane + 1]],
            BlockFormat::Q4K | BlockFormat::Q6K => [meta[lane], meta[PANEL + lane]],
        };
        let mut supers = [0; 2];
        for (which, bits) in supers.iter_mut().enumerate().take(super_bytes(self.format) / META) {
            let at = place / SUPER * super_bytes(self.format) + which * META + 2 * lane;
            *bits = u16::from_le_bytes([panel.supers[at], panel.supers[at + 1]]);
        }
        let quads = &panel.pairs[quants..];
        let quants = std::array::from_fn(|k| {
            let (quad, at) = (k / 4, 4 * lane + k % 4);
            match self.format {
                BlockFormat::Q8_0 => quads[quad * QUAD + at],
                BlockFormat::Q4_0 | BlockFormat::Q4K => quads[quad % 4 * QUAD + at] >> (4 * (quad / 4)) & 15,
                BlockFormat::Q6K if quad < 6 => quads[quad * QUAD + at] & 63,
                BlockFormat::Q6K => {
                    (0..3).map(|piece| quads[(3 * (quad - 6) + piece) * QUAD + at] >> 6 << (2 * piece)).sum()
                }
            }
        });
        self.format.values(&RowBlock { quants, meta, supers })
    }
}

/// Quads in which a block's quants are stored.
const fn quads(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q8_0 => 8,
        BlockFormat::Q4_0 | BlockFormat::Q4K => 4,
        BlockFormat::Q6K => 6,
    }
}

/// Bytes of a super-block's scales: an f16 each for every row.
const fn super_bytes(format: BlockFormat) -> usize {
    match format {
        BlockFormat::Q8_0 | BlockFormat::Q4_0 => 0,
        BlockFormat::Q4K => 2 * META,
        BlockFormat::Q6K => META,
    }
}

/// Two blocks, stored in Q quads each.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct Pair<const Q: usize> {
    /// Of each block the f16 scales, or what has as many bytes.
    pub meta: [[u16; PANEL]; 2],
    pub quads: [[[u8; QUAD]; Q]; 2],
}

/// The two bytes of each row's scales, where they are bytes.
#[inline(always)]
pub(crate) fn meta_bytes(meta: &[u16; PANEL]) -> &[[u8; PANEL]; 2] {
    bytes_of(meta).as_chunks().0.try_into().expect("two for each row")
}

// SAFETY: all that it is are numbers, without padding.
unsafe impl<const Q: usize> Plain for Pair<Q> {}

/// The panels of a weight, to multiply by.
#[derive(Clone, Copy)]
pub(crate) struct Panels<'a> {
    layout: &'a PanelLayout,
    bytes: &'a [u8],
}

impl<'a> Panels<'a> {
    /// Those of a weight's bytes.
    pub fn new(layout: &'a PanelLayout, bytes: &'a [u8]) -> Self {
        Self { layout, bytes }
    }

    /// A span of weight rows `16 * panel ..`.
    #[inline(always)]
    pub fn panel(&self, panel: usize, span: usize) -> Panel<'a> {
        let (start, layout) = self.layout.span(panel, span);
        let bytes = &self.bytes[panel / BAND * self.layout.band_bytes() + start..][..layout.bytes];
        let (supers, pairs) = bytes.split_at(layout.pairs);
        Panel { supers, pairs, blocks: layout.blocks }
    }
}

/// A span of 16 weight rows, to multiply by. Blocks are counted from its start; where one lies depends on how many quads a
/// block of the format is stored in, a constant to whoever asks.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    supers: &'a [u8],
    pairs: &'a [u8],
    blocks: usize,
}

impl<'a> Panel<'a> {
    /// Blocks of the span.
    #[inline(always)]
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The stored quads of a block.
    #[inline(always)]
    pub fn quads<const Q: usize>(&self, block: usize) -> &'a [[u8; QUAD]; Q] {
        self.pairs[places(Q, block).1..][..Q * QUAD].as_chunks().0.try_into().expect("Q quads")
    }

    /// The address that lies `ahead` bytes behind the stored quads of a block, in this span or a later one.
    #[inline(always)]
    pub fn ahead(&self, quads: usize, block: usize, ahead: usize) -> *const u8 {
        self.pairs.as_ptr().wrapping_add(places(quads, block).1 + ahead)
    }

    /// The address of a cache line, counted from the start of the span, of which it may lie behind.
    #[inline(always)]
    pub fn line(&self, line: usize) -> *const u8 {
        self.supers.as_ptr().wrapping_add(line * LINE)
    }

    /// The scales of a block, where they are f16.
    #[inline(always)]
    pub fn meta_words(&self, quads: usize, block: usize) -> &'a [u16; PANEL] {
        typed::<u16>(&self.pairs[places(quads, block).0..][..META]).try_into().expect("one for each row")
    }

    /// The two bytes of each row's scales, where they are bytes.
    #[inline(always)]
    pub fn meta_bytes(&self, quads: usize, block: usize) -> &'a [[u8; PANEL]; 2] {
        meta_bytes(self.meta_words(quads, block))
    }

    /// The blocks two by two; the last may lack its second, which then is zeros.
    #[inline(always)]
    pub fn pairs<const Q: usize>(&self) -> &'a [Pair<Q>] {
        typed(self.pairs)
    }

    /// The f16 scales of the super-block that a block belongs to, P for each row.
    #[inline(always)]
    pub fn supers<const P: usize>(&self, block: usize) -> &'a [[u16; PANEL]; P] {
        self.supers_of(block / SUPER, P).try_into().expect("P for each row")
    }

    /// The f16 scales of all super-blocks; there may be more than these have.
    #[inline(always)]
    pub fn all_supers(&self) -> &'a [[u16; PANEL]] {
        typed::<u16>(self.supers).as_chunks().0
    }

    /// The f16 scales of a super-block, so many for each row.
    #[inline(always)]
    pub fn supers_of(&self, super_block: usize, count: usize) -> &'a [[u16; PANEL]] {
        &self.all_supers()[super_block * count..][..count]
    }
}

/// A scale as a file stores it.
pub(super) fn f16_bits(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}
