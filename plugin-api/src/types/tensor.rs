//! Two-dimensional row-major views: how numbers cross the border, valid for the call.

use std::marker::PhantomData;

use abi_stable::StableAbi;

/// Element types of a [`TensorView`].
#[repr(u8)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub enum DType {
    /// 32-bit float.
    F32 = 0,
    /// bfloat16.
    Bf16 = 1,
    /// IEEE half.
    F16 = 2,
    /// 32-bit unsigned.
    U32 = 3,
    /// 64-bit signed.
    I64 = 4,
    /// Bytes (also booleans).
    U8 = 5,
}

impl DType {
    /// Bytes per element.
    pub fn size(self) -> usize {
        match self {
            Self::F32 | Self::U32 => 4,
            Self::Bf16 | Self::F16 => 2,
            Self::I64 => 8,
            Self::U8 => 1,
        }
    }
}

/// A borrowed matrix `[rows, columns]`, rows `stride` elements apart, on the CPU. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct TensorView<'a> {
    data: *const u8,
    rows: usize,
    columns: usize,
    stride: usize,
    dtype: DType,
    lifetime: PhantomData<&'a u8>,
}

impl<'a> TensorView<'a> {
    /// A view of `[rows, columns]` f32 values without gaps.
    ///
    /// # Panics
    /// If `data.len() != rows * columns`.
    pub fn from_f32(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns, "TensorView: {rows} rows x {columns} columns");
        Self { data: data.as_ptr().cast(), rows, columns, stride: columns, dtype: DType::F32, lifetime: PhantomData }
    }

    /// A view of raw bytes, little-endian, without gaps; `None` if the length or the alignment does not fit.
    pub fn from_bytes(bytes: &'a [u8], rows: usize, columns: usize, dtype: DType) -> Option<Self> {
        let fits = rows.checked_mul(columns)?.checked_mul(dtype.size())? == bytes.len();
        let aligned = (bytes.as_ptr() as usize).is_multiple_of(dtype.size());
        let data = bytes.as_ptr();
        (fits && aligned).then_some(Self { data, rows, columns, stride: columns, dtype, lifetime: PhantomData })
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn columns(&self) -> usize {
        self.columns
    }

    /// The element type.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The raw address, for DLPack and other foreign consumers; rows are [`Self::stride`] elements apart.
    pub fn as_ptr(&self) -> *const u8 {
        self.data
    }

    /// Elements from one row's start to the next's.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The bytes of row `index`.
    ///
    /// # Panics
    /// If `index` is not below [`Self::rows`].
    pub fn row_bytes(&self, index: usize) -> &'a [u8] {
        assert!(index < self.rows, "TensorView: row {index} of {}", self.rows);
        crate::abi::view_bytes(self.data, index * self.stride * self.dtype.size(), self.columns * self.dtype.size())
    }

    /// Row `index` as f32; `None` if the view holds another type.
    ///
    /// # Panics
    /// If `index` is not below [`Self::rows`].
    pub fn row_f32(&self, index: usize) -> Option<&'a [f32]> {
        (self.dtype == DType::F32).then(|| crate::abi::bytes_as_f32(self.row_bytes(index)))
    }
}
