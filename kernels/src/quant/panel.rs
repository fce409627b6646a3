//! Where everything of 16 rows lies: first the super-blocks' scales, then the blocks' scales, then the quants.
//!
//! The three sections each start a cache line, so a quad never straddles two. Rows and columns that the matrix lacks
//! have scale 0.

use super::{BlockFormat, RowBlock};
use crate::bytes::typed;
use crate::simd::LANES;
use crate::simd::int8::{BLOCK, QUAD};
use half::f16;

/// Weight rows of a panel.
pub(crate) const PANEL: usize = LANES;
/// Blocks of a super-block.
const SUPER: usize = 8;
/// Bytes of a block's scales: two for each row.
const META: usize = 2 * PANEL;
const LINE: usize = 64;

/// Offsets within a panel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct PanelLayout {
    format: BlockFormat,
    blocks: usize,
    metas: usize,
    quants: usize,
    bytes: usize,
}

impl PanelLayout {
    pub fn new(format: BlockFormat, cols: usize) -> Self {
        let blocks = cols.div_ceil(BLOCK);
        let metas = (super_bytes(format) * blocks.div_ceil(SUPER)).next_multiple_of(LINE);
        let quants = metas + (META * blocks).next_multiple_of(LINE);
        Self { format, blocks, metas, quants, bytes: quants + quads(format) * QUAD * blocks }
    }

    /// Bytes of a panel, a multiple of a cache line.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Writes block `index` of row `lane` into a panel of zeros.
    pub fn put(&self, panel: &mut [u8], lane: usize, index: usize, block: &RowBlock) {
        let meta = &mut panel[self.metas + index * META..][..META];
        match self.format {
            // f16s, one after another.
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => meta[2 * lane..][..2].copy_from_slice(&block.meta),
            BlockFormat::Q4K | BlockFormat::Q6K => {
                (meta[lane], meta[PANEL + lane]) = (block.meta[0], block.meta[1]);
            }
        }
        for (place, bits) in block.supers.iter().enumerate().take(super_bytes(self.format) / META) {
            let at = index / SUPER * super_bytes(self.format) + place * META + 2 * lane;
            panel[at..at + 2].copy_from_slice(&bits.to_le_bytes());
        }
        let quads = &mut panel[self.quants + index * quads(self.format) * QUAD..];
        for (k, quant) in block.quants.iter().enumerate() {
            let (quad, at) = (k / 4, 4 * lane + k % 4);
            match self.format {
                BlockFormat::Q8_0 => quads[quad * QUAD + at] = *quant,
                _ => quads[quad % 4 * QUAD + at] |= (quant & 15) << (4 * (quad / 4)),
            }
            if self.format == BlockFormat::Q6K {
                quads[(4 + quad % 2) * QUAD + at] |= (quant >> 4) << (2 * (quad / 2));
            }
        }
    }

    /// Reads block `index` of row `lane` back.
    fn get(&self, panel: &[u8], lane: usize, index: usize) -> RowBlock {
        let meta = &panel[self.metas + index * META..][..META];
        let meta = match self.format {
            BlockFormat::Q8_0 | BlockFormat::Q4_0 => [meta[2 * lane], meta[2 * lane + 1]],
            BlockFormat::Q4K | BlockFormat::Q6K => [meta[lane], meta[PANEL + lane]],
        };
        let mut supers = [0; 2];
        for (place, bits) in supers.iter_mut().enumerate().take(super_bytes(self.format) / META) {
            let at = index / SUPER * super_bytes(self.format) + place * META + 2 * lane;
            *bits = u16::from_le_bytes([panel[at], panel[at + 1]]);
        }
        let quads = &panel[self.quants + index * quads(self.format) * QUAD..];
        let quants = std::array::from_fn(|k| {
            let (quad, at) = (k / 4, 4 * lane + k % 4);
            match self.format {
                BlockFormat::Q8_0 => quads[quad * QUAD + at],
                BlockFormat::Q4_0 | BlockFormat::Q4K => quads[quad % 4 * QUAD + at] >> (4 * (quad / 4)) & 15,
                BlockFormat::Q6K => {
                    let high = quads[(4 + quad % 2) * QUAD + at] >> (2 * (quad / 2)) & 3;
                    quads[quad % 4 * QUAD + at] >> (4 * (quad / 4)) & 15 | high << 4
                }
            }
        });
        RowBlock { quants, meta, supers }
    }

    /// The weights of block `index` of row `lane`.
    pub fn values(&self, panel: &[u8], lane: usize, index: usize) -> [f32; BLOCK] {
        self.format.values(&self.get(panel, lane, index))
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

/// 16 weight rows, to multiply by.
#[derive(Clone, Copy)]
pub(crate) struct Panel<'a> {
    supers: &'a [u8],
    metas: &'a [[u8; META]],
    quads: &'a [[u8; QUAD]],
}

impl<'a> Panel<'a> {
    /// `bytes` must be one panel of this layout, starting a cache line.
    #[inline(always)]
    pub fn new(layout: &PanelLayout, bytes: &'a [u8]) -> Self {
        assert_eq!(bytes.len(), layout.bytes, "one whole panel");
        let (supers, rest) = bytes.split_at(layout.metas);
        let (metas, quads) = rest.split_at(layout.quants - layout.metas);
        Self { supers, metas: metas.as_chunks().0, quads: quads.as_chunks().0 }
    }

    /// The stored quads of a block.
    #[inline(always)]
    pub fn quads<const Q: usize>(&self, block: usize) -> &'a [[u8; QUAD]; Q] {
        (&self.quads[block * Q..(block + 1) * Q]).try_into().expect("Q quads")
    }

    /// The address that lies `ahead` bytes behind the Q stored quads of a block, in this panel or a later one.
    #[inline(always)]
    pub fn ahead<const Q: usize>(&self, block: usize, ahead: usize) -> *const u8 {
        self.quads.as_ptr().cast::<u8>().wrapping_add(block * Q * QUAD + ahead)
    }

    /// The scales of a block, where they are f16.
    #[inline(always)]
    pub fn meta_words(&self, block: usize) -> &'a [u16; PANEL] {
        typed::<u16>(&self.metas[block]).try_into().expect("one for each row")
    }

    /// The two bytes of each row's scales, where they are bytes.
    #[inline(always)]
    pub fn meta_bytes(&self, block: usize) -> &'a [[u8; PANEL]; 2] {
        self.metas[block].as_chunks().0.try_into().expect("two for each row")
    }

    /// The f16 scales of the super-block that a block belongs to, P for each row.
    #[inline(always)]
    pub fn supers<const P: usize>(&self, block: usize) -> [&'a [u16; PANEL]; P] {
        let start = block / SUPER * P * META;
        let words = typed::<u16>(&self.supers[start..start + P * META]).as_chunks::<PANEL>().0;
        std::array::from_fn(|place| &words[place])
    }
}

/// A scale as a file stores it.
pub(super) fn f16_bits(value: f32) -> u16 {
    f16::from_f32(value).to_bits()
}
