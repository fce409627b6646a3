//! A matrix of stored weights: `[rows, cols]` = `[out features, in features]`, row-major, in the file's own dtype.
//!
//! Weights are never repacked, so opening a model is mapping a file, and two models may share one mapping. The one
//! exception: bytes that the file left misaligned for their dtype are copied once, because a typed view of them
//! would be undefined. Repacked and quantised formats are further [`WeightDtype`]s.

use crate::bytes::{SharedBytes, is_aligned_for, typed};
use crate::error::KernelError;
use half::bf16;
use std::fmt;

/// How a weight is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum WeightDtype {
    /// 4 bytes; inputs stay f32.
    F32,
    /// 2 bytes; inputs are rounded to bf16, sums are f32.
    Bf16,
}

impl WeightDtype {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::Bf16 => 2,
        }
    }
}

impl fmt::Display for WeightDtype {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::F32 => "f32",
            Self::Bf16 => "bf16",
        })
    }
}

/// A checked weight matrix over shared bytes.
#[derive(Debug, Clone)]
pub struct Weight {
    dtype: WeightDtype,
    rows: usize,
    cols: usize,
    bytes: SharedBytes,
}

impl Weight {
    /// `[rows, cols]` elements of `dtype` in `bytes`. `tensor` names it in the error.
    pub fn new(
        tensor: &str,
        dtype: WeightDtype,
        [rows, cols]: [usize; 2],
        bytes: SharedBytes,
    ) -> Result<Self, KernelError> {
        let got = bytes.as_slice().len();
        let expected = rows.saturating_mul(cols).saturating_mul(dtype.size());
        if got != expected {
            return Err(KernelError::ByteLen { tensor: tensor.to_owned(), expected, got });
        }
        let aligned = match dtype {
            WeightDtype::F32 => is_aligned_for::<f32>(bytes.as_slice()),
            WeightDtype::Bf16 => is_aligned_for::<u16>(bytes.as_slice()),
        };
        let bytes = if aligned { bytes } else { SharedBytes::copied(bytes.as_slice()) };
        Ok(Self { dtype, rows, cols, bytes })
    }

    /// A copy of `values` (`[rows, cols]`), rounded to `dtype`. Panics if the length is not rows * cols.
    pub fn from_f32(dtype: WeightDtype, [rows, cols]: [usize; 2], values: &[f32]) -> Self {
        assert_eq!(values.len(), rows * cols, "values must be rows * cols");
        let bytes: Vec<u8> = match dtype {
            WeightDtype::F32 => values.iter().flat_map(|v| v.to_ne_bytes()).collect(),
            WeightDtype::Bf16 => values.iter().flat_map(|v| bf16::from_f32(*v).to_ne_bytes()).collect(),
        };
        Self { dtype, rows, cols, bytes: SharedBytes::copied(&bytes) }
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
        self.rows * self.cols * self.dtype.size()
    }

    /// Row `row` as f32 into `out` (`[cols]`).
    pub fn row_f32(&self, row: usize, out: &mut [f32]) {
        assert_eq!(out.len(), self.cols, "out must be [cols]");
        let range = row * self.cols..(row + 1) * self.cols;
        match self.dtype {
            WeightDtype::F32 => out.copy_from_slice(&self.f32s()[range]),
            WeightDtype::Bf16 => {
                for (out, bits) in out.iter_mut().zip(&self.bf16s()[range]) {
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

    /// All elements as bf16 bits; panics unless the dtype is Bf16.
    pub(crate) fn bf16s(&self) -> &[u16] {
        assert_eq!(self.dtype, WeightDtype::Bf16);
        typed(self.bytes.as_slice())
    }
}
