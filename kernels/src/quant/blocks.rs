//! 32 weights of one row, in one form for all formats, and how GGUF's blocks are read into it.
//!
//! Byte layouts follow ggml's `block_q8_0`, `block_q4_0`, `block_q4_K` and `block_q6_K` (ggml-common.h).

use crate::simd::int8::BLOCK;
use crate::weight::WeightDtype;
use half::f16;

/// 32 consecutive weights of a row. A weight is `(quant - bias) * scale`, or for q4_K `quant * scale - minimum`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RowBlock {
    /// Unsigned, biased by [`BlockFormat::bias`].
    pub quants: [u8; BLOCK],
    /// q8_0, q4_0: the bits of an f16 scale. q4_K: 6-bit scale and minimum. q6_K: the scales of both halves, biased by
    /// 128.
    pub meta: [u8; 2],
    /// The f16 bits that a super-block's scale and minimum are multiplied by; 0 where a format has none.
    pub supers: [u16; 2],
}

/// The greatest scale with which weights of q6_K are signed bytes times the super-block's.
pub(super) const SCALE_Q6_K: i32 = 4;

/// Whether `scale * quant - 2 * minimum` is a signed byte for every quant.
pub(super) fn folds([scale, minimum]: [u8; 2]) -> bool {
    15 * i32::from(scale) - 2 * i32::from(minimum) <= i32::from(i8::MAX)
}

/// A quantised format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockFormat {
    Q8_0,
    Q4_0,
    Q4K,
    Q6K,
}

impl BlockFormat {
    /// The format of a dtype, if it is quantised.
    pub fn of(dtype: WeightDtype) -> Option<Self> {
        match dtype {
            WeightDtype::F32 | WeightDtype::F16 | WeightDtype::Bf16 => None,
            WeightDtype::Q8_0 => Some(Self::Q8_0),
            WeightDtype::Q4_0 => Some(Self::Q4_0),
            WeightDtype::Q4K => Some(Self::Q4K),
            WeightDtype::Q6K => Some(Self::Q6K),
        }
    }

    /// What a quant of 0 stands for, negated.
    pub fn bias(self) -> i32 {
        match self {
            Self::Q8_0 => 128,
            Self::Q4_0 => 8,
            Self::Q4K => 0,
            Self::Q6K => 32,
        }
    }

    /// Weights and bytes of a block as a file stores it.
    pub fn stored(self) -> (usize, usize) {
        match self {
            Self::Q8_0 => (32, 34),
            Self::Q4_0 => (32, 18),
            Self::Q4K => (256, 144),
            Self::Q6K => (256, 210),
        }
    }

    /// Whether the weights of a block are signed bytes from -127 on times the super-block's scale: of q4_K
    /// `scale * quant - 2 * minimum`, of q6_K `scale * (quant - 32)` with a scale from 0 on; of q8_0 if that is the block's.
    #[cfg(test)]
    pub fn folds(self, block: &RowBlock) -> bool {
        let [d, d_min] = block.supers.map(|bits| f16::from_bits(bits).to_f32());
        match self {
            Self::Q8_0 => !block.quants.contains(&0),
            Self::Q4_0 => false,
            Self::Q4K => d_min == 2.0 * d && folds(block.meta),
            Self::Q6K => block.meta.iter().all(|scale| (0..=SCALE_Q6_K).contains(&(i32::from(*scale) - 128))),
        }
    }

    /// Calls `take` with each 32 weights of a stored block, in order.
    pub fn read(self, bytes: &[u8], mut take: impl FnMut(RowBlock)) {
        let half = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        match self {
            Self::Q8_0 => {
                let quants = std::array::from_fn(|i| bytes[2 + i] ^ 0x80);
                take(RowBlock { quants, meta: [bytes[0], bytes[1]], supers: [0; 2] });
            }
            Self::Q4_0 => {
                let quants = std::array::from_fn(|i| if i < 16 { bytes[2 + i] & 15 } else { bytes[2 + i - 16] >> 4 });
                take(RowBlock { quants, meta: [bytes[0], bytes[1]], supers: [0; 2] });
            }
            Self::Q4K => {
                for block in 0..8 {
                    let stored = &bytes[16 + block / 2 * 32..][..32];
                    let quants = std::array::from_fn(|i| stored[i] >> (4 * (block % 2)) & 15);
                    take(RowBlock { quants, meta: q4k_meta(&bytes[4..16], block), supers: [half(0), half(2)] });
                }
            }
            Self::Q6K => {
                for block in 0..8 {
                    // Each half of 128 weights: 64 bytes of low bits, 32 of high ones.
                    let (low, high) = (&bytes[block / 4 * 64..][..64], &bytes[128 + block / 4 * 32..][..32]);
                    let part = block % 4;
                    let quants = std::array::from_fn(|i| {
                        low[part % 2 * 32 + i] >> (4 * (part / 2)) & 15 | (high[i] >> (2 * part) & 3) << 4
                    });
                    let meta = [0, 1].map(|i| bytes[192 + 2 * block + i] ^ 0x80);
                    take(RowBlock { quants, meta, supers: [half(208), 0] });
                }
            }
        }
    }

    /// The weights of a block, as f32.
    pub fn values(self, block: &RowBlock) -> [f32; BLOCK] {
        let [d, d_min] = block.supers.map(|bits| f16::from_bits(bits).to_f32());
        std::array::from_fn(|i| {
            let quant = i32::from(block.quants[i]) - self.bias();
            match self {
                Self::Q8_0 | Self::Q4_0 => f16::from_le_bytes(block.meta).to_f32() * quant as f32,
                Self::Q4K => d * f32::from(block.meta[0]) * quant as f32 - d_min * f32::from(block.meta[1]),
                Self::Q6K => d * (f32::from(block.meta[i / 16]) - 128.0) * quant as f32,
            }
        })
    }
}

/// Scale and minimum `block` of the 12 bytes in which q4_K packs eight of each, 6 bits wide.
fn q4k_meta(packed: &[u8], block: usize) -> [u8; 2] {
    if block < 4 {
        return [packed[block] & 63, packed[block + 4] & 63];
    }
    let shared = packed[block + 4];
    [shared & 15 | packed[block - 4] >> 6 << 4, shared >> 4 | packed[block] >> 6 << 4]
}
