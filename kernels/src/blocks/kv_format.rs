//! What the bytes of a key, a value or a hidden row mean, by dtype.

use crate::bytes::{Plain, typed, typed_mut};
use crate::exec::Exec;
use crate::shared::SharedMut;
use crate::simd::int8::BLOCK;
use crate::simd::{Kernel, LANES, Simd, dispatch, padded, unpadded};
use half::f16;
use std::ops::Range;

/// How many rows ahead those that are stored are asked for.
const ROWS_AHEAD: usize = 8;
/// Bytes of a cache line.
pub(super) const LINE: usize = 64;
/// Shares into which slots are divided, by their remainder.
const SHARES: usize = 16;

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum KvDtype {
    /// 4 bytes.
    F32,
    /// 2 bytes, rounded to nearest even when written. Where the processor multiplies bf16 by bf16 (`avx512bf16`, `amx`),
    /// attention rounds queries and weights likewise.
    Bf16,
    /// Int8 with an f16 scale for every 32 dimensions, 1.06 bytes each. Attention multiplies integers: it rounds queries to int8
    /// for every 32 dimensions, and the weights of 32 tokens, times their values' scales, to 255 parts of the greatest; with
    /// matrix instructions (`amx`) and more than 4 query heads to a key's it rounds all to bf16 instead.
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

    /// Stores the first `dims` dimensions of each of `rows`, `[places.slots, width]`, in `to`. Panics where a slot is outside
    /// of it, or not aligned.
    pub fn store_rows(self, exec: &Exec, (rows, dims): (&[f32], usize), to: &mut [u8], places: RowPlaces<'_>) {
        let RowPlaces { slots, stride, offset } = places;
        assert!(rows.len().is_multiple_of(slots.len().max(1)), "{} values for {} slots", rows.len(), slots.len());
        assert!(offset + self.row_bytes(dims) <= stride, "rows of {dims} dimensions, {stride} bytes apart");
        let to = SharedMut::new(to);
        exec.for_rows(SHARES, slots.len() * dims / SHARES, &|shares| {
            dispatch(exec.simd(), StoreRows { dtype: self, rows, dims, to: &to, places, shares });
        });
    }

    /// The values of a stored row. Panics if `row` is not as long as [`row_bytes`](Self::row_bytes) says, or not aligned for
    /// its elements.
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
}

pub(crate) struct F32;

impl KvFormat for F32 {
    type Element = f32;

    #[inline(always)]
    fn element(row: &[f32], _dims: usize, dim: usize) -> f32 {
        row[dim]
    }
}

pub(crate) struct Bf16;

impl KvFormat for Bf16 {
    type Element = u16;

    #[inline(always)]
    fn element(row: &[u16], _dims: usize, dim: usize) -> f32 {
        f32::from_bits(u32::from(row[dim]) << 16)
    }
}

pub(crate) struct Q8_0;

impl Q8_0 {
    /// The bits of the scale, an f16, of block `block` of a row of `dims`. Panics if the row does not have it.
    #[inline(always)]
    pub fn scale_bits(row: &[u8], dims: usize, block: usize) -> u16 {
        let at = dims.next_multiple_of(2) + 2 * block;
        u16::from_ne_bytes(*row[at..].first_chunk().expect("the bytes of a scale"))
    }

    /// The scale of that block.
    #[inline(always)]
    pub fn scale(row: &[u8], dims: usize, block: usize) -> f32 {
        let bits = Self::scale_bits(row, dims, block);
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
        (f32::from(row[dim]) - 128.0) * Self::scale(row, dims, dim / BLOCK)
    }
}

/// Where rows are stored: bytes from one slot to the next, and from a slot's start to the row.
#[derive(Debug, Clone, Copy)]
pub struct RowPlaces<'a> {
    /// The slot of each row.
    pub slots: &'a [u32],
    /// Bytes from one slot to the next.
    pub stride: usize,
    /// Bytes from a slot's start to its row.
    pub offset: usize,
}

/// Writes the rows of some shares of the slots.
struct StoreRows<'a> {
    dtype: KvDtype,
    rows: &'a [f32],
    dims: usize,
    to: &'a SharedMut<'a, u8>,
    places: RowPlaces<'a>,
    shares: Range<usize>,
}

impl Kernel for StoreRows<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Self { dtype, rows, dims, to, places: RowPlaces { slots, stride, offset }, shares } = self;
        let width = rows.len() / slots.len().max(1);
        // A slot's share is the same for all tasks, so that no two write to one even if it were given twice.
        let own = slots.iter().enumerate().filter(|(_, slot)| shares.contains(&(**slot as usize % SHARES)));
        let places = own.map(|(row, slot)| {
            let start = *slot as usize * stride + offset;
            (row, start..start + dtype.row_bytes(dims))
        });
        // Rows lie far from each other: their lines are asked for some rows ahead.
        let ask = |bytes: Range<usize>| bytes.step_by(LINE).for_each(|at| S::prefetch(to.address(at)));
        let mut ahead = places.clone();
        ahead.by_ref().take(ROWS_AHEAD).for_each(|(_, bytes)| ask(bytes));
        for (row, bytes) in places {
            if let Some((_, bytes)) = ahead.next() {
                ask(bytes);
            }
            // SAFETY: slots of a share are this task's, and a row lies within its slot.
            let to = unsafe { to.range(bytes) };
            store_row::<S>(dtype, &rows[row * width..][..dims], to);
        }
    }
}

/// Stores a row in as many bytes as it takes.
#[inline(always)]
pub(super) fn store_row<S: Simd>(dtype: KvDtype, row: &[f32], to: &mut [u8]) {
    match dtype {
        KvDtype::F32 => typed_mut::<f32>(to).copy_from_slice(row),
        KvDtype::Bf16 => {
            let to = typed_mut::<u16>(to);
            for (row, to) in row.chunks(LANES).zip(to.chunks_mut(LANES)) {
                let mut bits = [0; LANES];
                S::store_bf16(S::load(&padded(row, 0.0)), &mut bits);
                unpadded(&bits, to);
            }
        }
        KvDtype::Q8_0 => {
            let (quants, scales) = to.split_at_mut(row.len().next_multiple_of(2));
            let blocks = row.chunks(BLOCK).zip(quants.chunks_mut(BLOCK)).zip(typed_mut::<u16>(scales));
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
