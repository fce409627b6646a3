//! Bytes kept alive by whoever owns them, and typed views of plain bytes.
//!
//! Weights point straight into a memory-mapped file: [`SharedBytes`] holds the owner behind an `Arc` and slices it
//! anew at each access. That costs a virtual call per tensor and pass, and in exchange needs no raw pointer and no
//! promise that the owner's bytes never move.

use crate::error::KernelError;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

/// A byte range of a shared owner, such as one tensor of a memory-mapped file.
#[derive(Clone)]
pub struct SharedBytes {
    owner: Arc<dyn AsRef<[u8]> + Send + Sync>,
    range: Range<usize>,
}

impl SharedBytes {
    /// The bytes `range` of `owner`; an error if the owner is shorter.
    pub fn new(owner: Arc<dyn AsRef<[u8]> + Send + Sync>, range: Range<usize>) -> Result<Self, KernelError> {
        let owner_len = (*owner).as_ref().len();
        if range.start > range.end || range.end > owner_len {
            return Err(KernelError::Range { start: range.start, end: range.end, owner_len });
        }
        Ok(Self { owner, range })
    }

    /// A copy of `bytes`, aligned to a cache line.
    pub fn copied(bytes: &[u8]) -> Self {
        let range = 0..bytes.len();
        Self { owner: Arc::new(AlignedBytes::copied(bytes)), range }
    }

    /// The bytes themselves.
    pub fn as_slice(&self) -> &[u8] {
        &(*self.owner).as_ref()[self.range.clone()]
    }
}

impl fmt::Debug for SharedBytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedBytes({:?})", self.range)
    }
}

/// One cache line of plain bytes.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// An owned byte buffer whose first byte starts a cache line.
struct AlignedBytes {
    lines: Vec<Line>,
    len: usize,
}

impl AlignedBytes {
    fn copied(bytes: &[u8]) -> Self {
        let mut lines = vec![Line([0; 64]); bytes.len().div_ceil(64)];
        for (line, chunk) in lines.iter_mut().zip(bytes.chunks(64)) {
            line.0[..chunk.len()].copy_from_slice(chunk);
        }
        Self { lines, len: bytes.len() }
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: `Line` is 64 bytes without padding, and `len` <= 64 * lines by construction.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

/// Types for which every bit pattern of their size is a value, and which have no padding.
///
/// # Safety
/// The implementor must be such a type.
pub(crate) unsafe trait Plain: Copy {}
// SAFETY: any 4 bytes are an f32.
unsafe impl Plain for f32 {}
// SAFETY: any 2 bytes are a u16.
unsafe impl Plain for u16 {}

/// Whether `bytes` may be viewed as a slice of `T`.
pub(crate) fn is_aligned_for<T: Plain>(bytes: &[u8]) -> bool {
    bytes.as_ptr().align_offset(align_of::<T>()) == 0
}

/// `bytes` as a slice of `T`; panics unless aligned and a whole number of elements.
#[inline(always)]
pub(crate) fn typed<T: Plain>(bytes: &[u8]) -> &[T] {
    assert!(is_aligned_for::<T>(bytes) && bytes.len().is_multiple_of(size_of::<T>()), "misaligned typed view");
    // SAFETY: alignment and size were just asserted, and `Plain` admits every bit pattern.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / size_of::<T>()) }
}

/// `bytes` as a mutable slice of `T`; panics unless aligned and a whole number of elements.
#[inline(always)]
pub(crate) fn typed_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    assert!(is_aligned_for::<T>(bytes) && bytes.len().is_multiple_of(size_of::<T>()), "misaligned typed view");
    // SAFETY: alignment and size were just asserted, and `Plain` admits and leaves only valid bit patterns.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}
