//! What the bytes of a key or value mean, by dtype.

use crate::bytes::{Plain, typed, typed_mut};
use crate::simd::int8::BLOCK;
use crate::simd::{Kernel, LANES, Simd, SimdLevel, dispatch, padded, unpadded};
use half::f16;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvDtype {
    /// 4 bytes.
    F32,
    /// 2 bytes, rounded to nearest even when written.
    Bf16,
    /// Int8 with an f16 scale for every 32 dimensions, 1.06 bytes each.
    Q8_0,
}

impl KvDtype {
    /// Bytes of a row, such as a head's key, of `dims` dimensions.
    pub fn row_bytes(self, dims: usize) -> usize {
        match self {
            Self::F32 => 4 * dims,
            Self::Bf16 => 2 * dims,
            // Quants, then scales; an even number of bytes, so that the scales of every row are aligned.
            Self::Q8_0 => dims.next_multiple_of(2) + 2 * dims.div_ceil(BLOCK),
        }
    }

    /// What rows must be aligned to.
    pub(super) fn alignment(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }

    /// Stores a row. Panics if `to` is not as long as [`row_bytes`](Self::row_bytes) says, or not aligned for its elements.
    pub fn store(self, level: SimdLevel, row: &[f32], to: &mut [u8]) {
        assert_eq!(to.len(), self.row_bytes(row.len()), "bytes of a row of {} dimensions", row.len());
        dispatch(level, StoreRow { dtype: self, row, to });
    }

    /// The values of a stored row. Panics as [`store`](Self::store) does.
    pub fn load(self, row: &[u8], out: &mut [f32]) {
        assert_eq!(row.len(), self.row_bytes(out.len()), "bytes of a row of {} dimensions", out.len());
        match self {
            Self::F32 => widen::<F32>(row, out),
            Self::Bf16 => widen::<Bf16>(row, out),
            Self::Q8_0 => widen::<Q8_0>(row, out),
        }
    }
}

fn widen<D: KvFormat>(row: &[u8], out: &mut [f32]) {
    let dims = out.len();
    out.iter_mut().enumerate().for_each(|(dim, out)| *out = D::element(typed(row), dims, dim));
}

/// How to read the keys and values of one dtype. A row is one head's.
pub(crate) trait KvFormat {
    /// What a row is a slice of.
    type Element: Plain;

    /// Dimension `dim` of a row of `dims`.
    fn element(row: &[Self::Element], dims: usize, dim: usize) -> f32;
    /// The 16 dimensions from `dim` on. Within a block of 32, where there are blocks.
    fn lanes<S: Simd>(row: &[Self::Element], dims: usize, dim: usize) -> S::F;
}

pub(crate) struct F32;

impl KvFormat for F32 {
    type Element = f32;

    #[inline(always)]
    fn element(row: &[f32], _dims: usize, dim: usize) -> f32 {
        row[dim]
    }

    #[inline(always)]
    fn lanes<S: Simd>(row: &[f32], _dims: usize, dim: usize) -> S::F {
        S::load(row[dim..].first_chunk().expect("dimensions of the row"))
    }
}

pub(crate) struct Bf16;

impl KvFormat for Bf16 {
    type Element = u16;

    #[inline(always)]
    fn element(row: &[u16], _dims: usize, dim: usize) -> f32 {
        f32::from_bits(u32::from(row[dim]) << 16)
    }

    #[inline(always)]
    fn lanes<S: Simd>(row: &[u16], _dims: usize, dim: usize) -> S::F {
        S::load_bf16(row[dim..].first_chunk().expect("dimensions of the row"))
    }
}

pub(crate) struct Q8_0;

impl Q8_0 {
    #[inline(always)]
    fn scale(row: &[u8], dims: usize, dim: usize) -> f32 {
        let at = dims.next_multiple_of(2) + 2 * (dim / BLOCK);
        let bits = u16::from_ne_bytes([row[at], row[at + 1]]);
        // Exact for what is stored, which has no sign, infinity or NaN; the library's conversion asks the processor what
        // it has at every call.
        const EXPONENTS_APART: f32 = f32::from_bits(0x7780_0000);
        f32::from_bits(u32::from(bits) << 13) * EXPONENTS_APART
    }
}

impl KvFormat for Q8_0 {
    type Element = u8;

    #[inline(always)]
    fn element(row: &[u8], dims: usize, dim: usize) -> f32 {
        (f32::from(row[dim]) - 128.0) * Self::scale(row, dims, dim)
    }

    #[inline(always)]
    fn lanes<S: Simd>(row: &[u8], dims: usize, dim: usize) -> S::F {
        let quants = row[dim..].first_chunk().expect("dimensions of the row");
        S::mul(S::sub(S::load_u8(quants), S::splat(128.0)), S::splat(Self::scale(row, dims, dim)))
    }
}

/// Writes a row.
struct StoreRow<'a> {
    dtype: KvDtype,
    row: &'a [f32],
    to: &'a mut [u8],
}

impl Kernel for StoreRow<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        match self.dtype {
            KvDtype::F32 => typed_mut::<f32>(self.to).copy_from_slice(self.row),
            KvDtype::Bf16 => {
                let to = typed_mut::<u16>(self.to);
                for (row, to) in self.row.chunks(LANES).zip(to.chunks_mut(LANES)) {
                    let mut bits = [0; LANES];
                    S::store_bf16(S::load(&padded(row, 0.0)), &mut bits);
                    unpadded(&bits, to);
                }
            }
            KvDtype::Q8_0 => {
                let (quants, scales) = self.to.split_at_mut(self.row.len().next_multiple_of(2));
                let blocks = self.row.chunks(BLOCK).zip(quants.chunks_mut(BLOCK)).zip(typed_mut::<u16>(scales));
                for ((row, quants), scale) in blocks {
                    let greatest = row.iter().fold(0f32, |greatest, value| greatest.max(value.abs()));
                    let rounded = f16::from_f32(greatest / 127.0);
                    let inverse = if greatest > 0.0 { 1.0 / rounded.to_f32() } else { 0.0 };
                    *scale = rounded.to_bits();
                    for (quant, value) in quants.iter_mut().zip(row) {
                        // The scale was rounded, so the greatest may come out above 127.
                        *quant = ((value * inverse).round_ties_even().clamp(-127.0, 127.0) + 128.0) as u8;
                    }
                }
            }
        }
    }
}
