//! A matrix of stored weights: `[rows, cols]` = `[out features, in features]`.
//!
//! f32 and f16 lie row by row as in the file and are never copied, so opening such a model is mapping a file, and
//! two models may share one mapping. (One exception: bytes that the file left misaligned for their dtype are copied
//! once, because a typed view of them would be undefined.) Quantised weights are interleaved at load, see `quant`; bf16
//! begins as those do, and is then laid out for its level ([`Weight::arranged`]).

use crate::bytes::{AlignedBytes, SharedBytes, is_aligned_for, typed, typed_mut};
use crate::error::KernelError;
use crate::exec::Exec;
use crate::quant::{BAND_ROWS, BlockFormat, PANEL, PanelLayout, Panels, encode_row};
use crate::simd::int8::BLOCK;
use crate::simd::{LANES, SimdLevel};
#[cfg(target_arch = "x86_64")]
use crate::simd::{Simd, as_rows};
use half::{bf16, f16};
use rayon::prelude::*;
use std::fmt;

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightDtype {
    /// 4 bytes; inputs stay f32.
    F32,
    /// 2 bytes; inputs stay f32.
    F16,
    /// 2 bytes; inputs are rounded to bf16, sums are f32.
    Bf16,
    /// GGUF's q8_0, 8.5 bits a weight; inputs are rounded to int8 per 32, as for all that follow but q4_K and what folds (256).
    Q8_0,
    /// GGUF's q4_0, 4.5 bits a weight.
    Q4_0,
    /// GGUF's q4_K, 4.5 bits a weight.
    Q4K,
    /// GGUF's q6_K, 6.56 bits a weight.
    Q6K,
}

impl WeightDtype {
    /// Every dtype.
    pub const ALL: [Self; 7] = [Self::F32, Self::F16, Self::Bf16, Self::Q8_0, Self::Q4_0, Self::Q4K, Self::Q6K];

    /// Bytes that `[rows, cols]` take in memory.
    pub fn byte_len(self, shape: [usize; 2]) -> usize {
        let [rows, cols] = shape;
        match BlockFormat::of(self) {
            Some(format) => PanelLayout::new(format, shape).bytes(),
            None => rows.saturating_mul(cols).saturating_mul(if self == Self::F32 { 4 } else { 2 }),
        }
    }

    /// Whether weights are integers in blocks with scales.
    pub fn is_quantised(self) -> bool {
        BlockFormat::of(self).is_some()
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
            Self::Q4_0 => "q4_0",
            Self::Q4K => "q4_K",
            Self::Q6K => "q6_K",
        })
    }
}

/// Where the elements of a bf16 weight lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arrangement {
    /// Row by row, as in a file.
    Rows,
    /// `[rows / 64, steps, 16 lanes, 64 rows]` pairs, one stream: what vectors multiply fastest.
    Columns,
    /// `[rows / 16, steps, 16 lanes, 16 rows]` pairs: each step a tile of 1 KiB, as matrix instructions take it. Only levels
    /// that have them multiply these.
    Tiles,
}

/// Panels of 16 rows side by side in columns.
pub(crate) const COLUMN_PANELS: usize = 4;
/// Rows side by side in columns.
pub(crate) const COLUMN: usize = COLUMN_PANELS * PANEL;

impl Arrangement {
    /// Rows side by side.
    fn abreast(self) -> usize {
        match self {
            Self::Rows => 1,
            Self::Tiles => PANEL,
            Self::Columns => COLUMN,
        }
    }
}

/// A checked weight matrix over shared bytes.
#[derive(Debug, Clone)]
pub struct Weight {
    dtype: WeightDtype,
    rows: usize,
    cols: usize,
    bytes: SharedBytes,
    /// Of a quantised weight.
    layout: Option<PanelLayout>,
    /// Whether super-blocks are signed bytes under one scale.
    folds: bool,
    arrangement: Arrangement,
}

/// bf16 of a step of 16 lanes, each of which takes a pair.
const STEP: usize = 2 * LANES;

impl Weight {
    /// `[rows, cols]` elements of f32, f16 or bf16 in `bytes`, row by row. `tensor` names it in the error.
    ///
    /// # Panics
    /// If `dtype` is quantised: [`Weight::from_blocks`] takes those.
    pub fn new(tensor: &str, dtype: WeightDtype, shape: [usize; 2], bytes: SharedBytes) -> Result<Self, KernelError> {
        assert!(!dtype.is_quantised(), "{dtype} comes in blocks");
        let (got, expected) = (bytes.as_slice().len(), dtype.byte_len(shape));
        if got != expected {
            return Err(KernelError::ByteLen { tensor: tensor.to_owned(), expected, got });
        }
        let aligned = match dtype {
            WeightDtype::F32 => is_aligned_for::<f32>(bytes.as_slice()),
            _ => is_aligned_for::<u16>(bytes.as_slice()),
        };
        let bytes = if aligned { bytes } else { SharedBytes::copied(bytes.as_slice()) };
        let [rows, cols] = shape;
        Ok(Self { dtype, rows, cols, bytes, layout: None, folds: false, arrangement: Arrangement::Rows })
    }

    /// `[rows, cols]` in the blocks of a GGUF file, each row's bytes by themselves, interleaved here. `tensor` names it in
    /// the error.
    ///
    /// # Panics
    /// If `dtype` is not quantised.
    pub fn from_blocks(
        tensor: &str,
        dtype: WeightDtype,
        [rows, cols]: [usize; 2],
        stored: &[&[u8]],
    ) -> Result<Self, KernelError> {
        let format = BlockFormat::of(dtype).expect("a quantised dtype");
        let (weights, block) = format.stored();
        if !cols.is_multiple_of(weights) {
            let tensor = tensor.to_owned();
            return Err(KernelError::BlockCols { tensor, dtype, multiple: weights, got: cols });
        }
        let row_bytes = cols / weights * block;
        let got = stored.iter().map(|row| row.len()).sum();
        let expected = rows.saturating_mul(row_bytes);
        if got != expected || stored.len() != rows || stored.iter().any(|row| row.len() != row_bytes) {
            return Err(KernelError::ByteLen { tensor: tensor.to_owned(), expected, got });
        }
        Ok(Self::interleaved(dtype, format, [rows, cols], |row, put| {
            let mut index = 0;
            for stored in stored[row].chunks_exact(block) {
                format.read(stored, |block| {
                    put(index, &block);
                    index += 1;
                });
            }
        }))
    }

    /// `[rows, cols]` rounded to `dtype`; `fill` writes the values of one row into `[cols]`, on several threads at once.
    pub fn from_rows(dtype: WeightDtype, shape: [usize; 2], fill: impl Fn(usize, &mut [f32]) + Sync) -> Self {
        let [rows, cols] = shape;
        if let Some(format) = BlockFormat::of(dtype) {
            let weight = Self::interleaved(dtype, format, shape, |row, put| {
                let (mut values, mut index) = (vec![0.0; cols], 0);
                fill(row, &mut values);
                encode_row(format, &values, |block| {
                    put(index, &block);
                    index += 1;
                });
            });
            return Self { folds: format != BlockFormat::Q4_0, ..weight };
        }
        let mut bytes = AlignedBytes::zeroed(dtype.byte_len(shape));
        let row_bytes = dtype.byte_len([1, cols]);
        bytes.as_mut().par_chunks_exact_mut(row_bytes.max(1)).enumerate().for_each(|(row, out)| {
            let mut values = vec![0.0; cols];
            fill(row, &mut values);
            match dtype {
                WeightDtype::F32 => write(&values, out, |value| value.to_ne_bytes()),
                WeightDtype::F16 => write(&values, out, |value| f16::from_f32(value).to_ne_bytes()),
                _ => write(&values, out, |value| bf16::from_f32(value).to_ne_bytes()),
            }
        });
        let bytes = SharedBytes::from(bytes);
        Self { dtype, rows, cols, bytes, layout: None, folds: false, arrangement: Arrangement::Rows }
    }

    /// A copy of `values` (`[rows, cols]`), rounded to `dtype`. Panics if the length is not rows * cols.
    pub fn from_f32(dtype: WeightDtype, [rows, cols]: [usize; 2], values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols, "values must be rows * cols");
        Self::from_rows(dtype, [rows, cols], |row, out| out.copy_from_slice(&values[row * cols..(row + 1) * cols]))
    }

    /// Panels of the blocks that `blocks` puts for each row.
    fn interleaved(
        dtype: WeightDtype,
        format: BlockFormat,
        shape: [usize; 2],
        blocks: impl Fn(usize, &mut dyn FnMut(usize, &crate::quant::RowBlock)) + Sync,
    ) -> Self {
        let [rows, cols] = shape;
        let layout = PanelLayout::new(format, shape);
        let mut bytes = AlignedBytes::zeroed_beside_others(layout.bytes());
        bytes.as_mut().par_chunks_mut(layout.band_bytes().max(1)).enumerate().for_each(|(band, out)| {
            for row in band * BAND_ROWS..rows.min((band + 1) * BAND_ROWS) {
                blocks(row, &mut |index, block| layout.put(out, row, index, block));
            }
        });
        Self {
            dtype,
            rows,
            cols,
            bytes: SharedBytes::from(bytes),
            layout: Some(layout),
            folds: false,
            arrangement: Arrangement::Rows,
        }
    }

    /// The same weights, laid out as the level of `exec` multiplies them fastest: bf16 in tiles where it has matrix
    /// instructions, else in columns.
    pub fn arranged(self, exec: &Exec) -> Self {
        match exec.simd() {
            SimdLevel::Amx => self.rearranged(Arrangement::Tiles),
            _ => self.rearranged(Arrangement::Columns),
        }
    }

    /// bf16 that lies row by row, laid out anew with 16 or 64 rows side by side, rows and steps of 32 columns padded with
    /// zeros; any other weight as it is. An arrangement decides the order of the sums.
    pub fn rearranged(self, arrangement: Arrangement) -> Self {
        if self.dtype != WeightDtype::Bf16 || self.arrangement != Arrangement::Rows || arrangement == Arrangement::Rows
        {
            return self;
        }
        let (rows, cols, stored) = (self.rows, self.cols, self.u16s());
        let (steps, abreast) = (cols.div_ceil(STEP), arrangement.abreast());
        let mut bytes = AlignedBytes::zeroed_beside_others(2 * rows.next_multiple_of(abreast) * steps * STEP);
        bytes.as_mut().par_chunks_exact_mut((2 * abreast * steps * STEP).max(1)).enumerate().for_each(|(part, out)| {
            let out = typed_mut::<u16>(out);
            for row in part * abreast..rows.min((part + 1) * abreast) {
                for (step, stored) in stored[row * cols..(row + 1) * cols].chunks(STEP).enumerate() {
                    for (i, bits) in stored.iter().enumerate() {
                        out[arranged_index(abreast, row % abreast, step * STEP + i)] = *bits;
                    }
                }
            }
        });
        Self { bytes: SharedBytes::from(bytes), arrangement, ..self }
    }

    /// Whether every super-block is signed bytes under one scale, as of q8_0, q4_K and q6_K that are quantised here, not read: such
    /// weights are made bytes, if they are not, and summed in integers, by inputs with one scale for each super-block.
    pub fn folds(&self) -> bool {
        self.folds
    }

    /// The same weights, multiplied as those of a file are.
    pub fn unfolded(self) -> Self {
        Self { folds: false, ..self }
    }

    /// Where the elements lie; [`Arrangement::Rows`] unless the weight is bf16.
    pub fn arrangement(&self) -> Arrangement {
        self.arrangement
    }

    /// How the elements are stored.
    pub fn dtype(&self) -> WeightDtype {
        self.dtype
    }

    /// Out features.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// In features.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// Bytes that one pass over this weight reads.
    pub fn byte_len(&self) -> usize {
        self.bytes.as_slice().len()
    }

    /// Row `row` as f32 into `out` (`[cols]`).
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "out must be [cols]");
        let range = row * self.cols..(row + 1) * self.cols;
        if let Some(layout) = &self.layout {
            for (index, out) in out.chunks_mut(BLOCK).enumerate() {
                let values = layout.values(self.bytes.as_slice(), row, index);
                out.copy_from_slice(&values[..out.len()]);
            }
            return;
        }
        if self.arrangement != Arrangement::Rows {
            for (col, out) in out.iter_mut().enumerate() {
                *out = bf16::from_bits(self.bf16_bits(row, col)).to_f32();
            }
            return;
        }
        match self.dtype {
            WeightDtype::F32 => out.copy_from_slice(&self.f32s()[range]),
            WeightDtype::F16 => {
                for (out, bits) in out.iter_mut().zip(&self.u16s()[range]) {
                    *out = f16::from_bits(*bits).to_f32();
                }
            }
            _ => {
                for (out, bits) in out.iter_mut().zip(&self.u16s()[range]) {
                    *out = bf16::from_bits(*bits).to_f32();
                }
            }
        }
    }

    /// All elements; panics unless the dtype is F32.
    pub(crate) fn f32s(&self) -> &[f32] {
        assert_eq!(self.dtype, WeightDtype::F32);
        typed(self.bytes.as_slice())
    }

    /// The bits of all elements; panics unless the dtype is F16 or Bf16, row by row.
    pub(crate) fn u16s(&self) -> &[u16] {
        assert!(matches!(self.dtype, WeightDtype::F16 | WeightDtype::Bf16) && self.arrangement == Arrangement::Rows);
        typed(self.bytes.as_slice())
    }

    /// An element of a bf16 weight, however it is arranged.
    fn bf16_bits(&self, row: usize, col: usize) -> u16 {
        let bits: &[u16] = typed(self.bytes.as_slice());
        match self.arrangement {
            Arrangement::Rows => bits[row * self.cols + col],
            arrangement => {
                let steps = self.cols.div_ceil(STEP);
                let abreast = arrangement.abreast();
                bits[row / abreast * abreast * steps * STEP + arranged_index(abreast, row % abreast, col)]
            }
        }
    }

    /// Weight rows `64 * index ..` of bf16 in columns, pair by pair of k: each row's. Panics if they are not.
    #[inline(always)]
    pub(crate) fn column(&self, index: usize) -> &[[[u16; STEP]; COLUMN_PANELS]] {
        assert_eq!(self.arrangement, Arrangement::Columns);
        let len = LANES * self.cols.div_ceil(STEP);
        let pairs = typed::<u16>(self.bytes.as_slice()).as_chunks::<STEP>().0.as_chunks::<COLUMN_PANELS>().0;
        &pairs[index * len..(index + 1) * len]
    }

    /// Weight rows `16 * index ..` of bf16 in tiles, one for each step: `[16 lanes, 16 rows]` pairs. Panics if they are not.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn tiles(&self, index: usize) -> &[Tile] {
        assert_eq!(self.arrangement, Arrangement::Tiles);
        let len = self.cols.div_ceil(STEP);
        &typed::<u16>(self.bytes.as_slice()).as_chunks().0[index * len..(index + 1) * len]
    }

    /// The tile of one step of bf16 weight rows `16 * index ..`, gathered from another arrangement.
    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    pub(crate) fn gather_tile<S: Simd>(&self, index: usize, step: usize, tile: &mut Tile) {
        let (rows, cols) = (index * PANEL..(index + 1) * PANEL, step * STEP..(step + 1) * STEP);
        if self.arrangement == Arrangement::Rows && rows.end <= self.rows && cols.end <= self.cols {
            let mut pairs = [&[0; STEP]; PANEL];
            for (pairs, row) in pairs.iter_mut().zip(rows) {
                *pairs = self.u16s()[row * self.cols..][cols.clone()].as_array().expect("a step");
            }
            let mut columns = [[0.0; PANEL]; LANES];
            S::transpose(&as_rows(&pairs), &mut columns);
            for (pair, column) in tile.as_chunks_mut::<2>().0.iter_mut().zip(columns.as_flattened()) {
                *pair = [column.to_bits() as u16, (column.to_bits() >> 16) as u16];
            }
            return;
        }
        *tile = [0; PANEL * STEP];
        for row in rows.start..rows.end.min(self.rows) {
            for col in cols.start..cols.end.min(self.cols) {
                tile[arranged_index(PANEL, row % PANEL, col % STEP)] = self.bf16_bits(row, col);
            }
        }
    }

    /// All panels; panics unless the dtype is quantised.
    #[inline(always)]
    pub(crate) fn panels(&self) -> Panels<'_> {
        Panels::new(self.layout.as_ref().expect("a quantised weight"), self.bytes.as_slice())
    }
}

/// One step of 16 rows of bf16 in tiles.
#[cfg(target_arch = "x86_64")]
pub(crate) type Tile = [u16; PANEL * STEP];

/// Where among `abreast` rows side by side a row has its column.
#[inline(always)]
fn arranged_index(abreast: usize, row: usize, col: usize) -> usize {
    (col / 2 * abreast + row) * 2 + col % 2
}

fn write<const N: usize>(values: &[f32], out: &mut [u8], bytes: impl Fn(f32) -> [u8; N]) {
    for (value, out) in values.iter().zip(out.as_chunks_mut::<N>().0) {
        *out = bytes(*value);
    }
}
