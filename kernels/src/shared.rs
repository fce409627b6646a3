//! A mutable slice that the tasks of one parallel region write to in disjoint parts.
//!
//! Outputs are row-major and tasks own column blocks, so `chunks_mut` cannot express the split. The alternative,
//! a lock or a copy per task, would cost more than the region itself.

use std::marker::PhantomData;
use std::ops::Range;

/// `&mut [T]` lent to several tasks at once.
pub(crate) struct SharedMut<'a, T> {
    start: *mut T,
    len: usize,
    lender: PhantomData<&'a mut [T]>,
}

// SAFETY: the pointer stands for an exclusive borrow, and `range` makes its callers keep their parts disjoint, so
// sharing the handle shares no element; elements themselves move between threads, hence `T: Send`.
unsafe impl<T: Send> Sync for SharedMut<'_, T> {}

impl<'a, T> SharedMut<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), lender: PhantomData }
    }

    /// The address of an element, to ask for its line; any index will do.
    #[inline(always)]
    pub(crate) fn address(&self, index: usize) -> *const T {
        self.start.wrapping_add(index)
    }

    /// The elements of `range`, to write.
    ///
    /// # Safety
    /// No other part taken from this handle while the result lives may overlap `range`.
    #[inline(always)]
    #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's promise, stated above")]
    pub(crate) unsafe fn range(&self, range: Range<usize>) -> &mut [T] {
        assert!(range.start <= range.end && range.end <= self.len, "range {range:?} outside of {}", self.len);
        // SAFETY: in bounds by the assert; exclusive by this function's contract and the borrow in `lender`.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start), range.end - range.start) }
    }

    /// Where `rows` rows of `width` elements start, `stride` elements from one to the next, to write.
    ///
    /// # Safety
    /// No other task may touch these elements in this region.
    #[inline(always)]
    pub(crate) unsafe fn columns(&self, start: usize, rows: usize, stride: usize, width: usize) -> *mut T {
        assert!(rows > 0 && width <= stride, "{rows} rows of {width} elements, {stride} apart");
        assert!(start + (rows - 1) * stride + width <= self.len, "{rows} rows from {start} outside of {}", self.len);
        // SAFETY: in bounds by the asserts.
        unsafe { self.start.add(start) }
    }
}
