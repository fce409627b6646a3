//! Bytes kept alive by whoever owns them, and typed views of plain bytes.
//!
//! Weights point straight into a memory-mapped file: [`SharedBytes`] holds the owner behind an `Arc` and slices it
//! anew at each access. That costs a virtual call per tensor and pass, and in exchange needs no raw pointer and no
//! promise that the owner's bytes never move.

use crate::error::KernelError;
use memmap2::MmapMut;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError, Weak};

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
        let mut copy = AlignedBytes::zeroed(bytes.len());
        copy.as_mut().copy_from_slice(bytes);
        copy.into()
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

impl From<AlignedBytes> for SharedBytes {
    fn from(bytes: AlignedBytes) -> Self {
        let range = 0..bytes.len;
        Self { owner: Arc::new(bytes), range }
    }
}

/// An owned byte buffer of zeros that starts a page, on huge pages where the system has them: weights and keys are read
/// from end to end once a token, and with small pages the misses of the address cache show in the bandwidth.
///
/// A buffer that holds whole huge pages starts one, since the system gives one only where all of it belongs to the buffer.
/// What is left behind the last stays on small pages, so that a buffer takes no more memory than it has bytes.
#[derive(Debug)]
pub struct AlignedBytes {
    /// Keeps the memory; buffers that share it hold parts that do not overlap.
    pages: Arc<Pages>,
    start: usize,
    len: usize,
}

/// Memory of zeros from the system, whose whole huge pages are huge.
#[derive(Debug)]
struct Pages {
    map: MmapMut,
    /// Where `map` begins, as its buffers write it.
    base: *mut u8,
    /// Where the first huge page starts, if there is a whole one.
    start: usize,
}

// SAFETY: `base` points into `map`, which is the owner's alone and may go to and be seen from any thread.
unsafe impl Send for Pages {}
// SAFETY: as above; what it points to is read and written through buffers, each by its borrow.
unsafe impl Sync for Pages {}

/// Bytes of a huge page on x86-64, and on aarch64 with pages of 4 KiB.
const HUGE_PAGE: usize = 2 << 20;

/// Bytes of a small page, or of a part of one.
const PAGE: usize = 4096;

/// Bytes that buffers share at a time. In a longer buffer small pages are few.
const SHARED: usize = 64 << 20;

impl Pages {
    fn map(len: usize) -> Self {
        let huge = len / HUGE_PAGE * HUGE_PAGE;
        // What is never touched takes no memory.
        let spare = if huge > 0 { HUGE_PAGE } else { 0 };
        let mut map = MmapMut::map_anon(len.max(1) + spare).expect("the system refuses memory");
        let start = if huge > 0 { map.as_ptr().align_offset(HUGE_PAGE) } else { 0 };
        // Only a hint: where it is refused, pages are small.
        #[cfg(target_os = "linux")]
        let _ = map.advise_range(memmap2::Advice::HugePage, start, huge);
        Self { base: map.as_mut_ptr(), map, start }
    }
}

impl AlignedBytes {
    /// `len` zeros; pages are touched only when written.
    pub fn zeroed(len: usize) -> Self {
        let pages = Pages::map(len);
        Self { start: pages.start, pages: Arc::new(pages), len }
    }

    /// `len` zeros behind those of the last such call, if both find room, so that all of them lie on huge pages. The memory is
    /// given back once all that share it are gone: for what stays, such as the weights of a model. (Weights of 0.8 MB each
    /// on small pages, which lie anywhere, took 5 to 10 % longer to multiply on Zen 4, and by chance more; of 12 MB each,
    /// with 2 on small pages, 1 to 5 % on a Xeon.)
    pub fn zeroed_beside_others(len: usize) -> Self {
        static LAST: Mutex<(Weak<Pages>, usize)> = Mutex::new((Weak::new(), 0));
        if len > SHARED {
            return Self::zeroed(len);
        }
        // A poisoned lock means a panic for want of memory; nothing was cut then.
        let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
        let pages = last.0.upgrade().filter(|pages| len <= pages.start + SHARED - last.1).unwrap_or_else(|| {
            let pages = Arc::new(Pages::map(SHARED));
            *last = (Arc::downgrade(&pages), pages.start);
            pages
        });
        let start = last.1;
        last.1 = start + len.next_multiple_of(PAGE);
        Self { pages, start, len }
    }

    /// Asks the system for the memory of these bytes now, and not as they are written.
    pub fn populate(&self, bytes: Range<usize>) {
        let (start, end) = (bytes.start.min(self.len), bytes.end.min(self.len));
        // Only a hint: where it is refused, pages come one by one.
        #[cfg(target_os = "linux")]
        let _ =
            self.pages.map.advise_range(memmap2::Advice::PopulateWrite, self.start + start, end.saturating_sub(start));
    }
}

impl AsRef<[u8]> for AlignedBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the range is inside the map, which lives as long as `pages`, and no other buffer's; it is written only
        // through `&mut self`.
        unsafe { std::slice::from_raw_parts(self.pages.base.add(self.start), self.len) }
    }
}

impl AsMut<[u8]> for AlignedBytes {
    fn as_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.pages.base.add(self.start), self.len) }
    }
}

/// Types for which every bit pattern of their size is a value, and which have no padding.
///
/// # Safety
/// The implementor must be such a type.
pub(crate) unsafe trait Plain: Copy + 'static {}
// SAFETY: any 4 bytes are an f32.
unsafe impl Plain for f32 {}
// SAFETY: any 2 bytes are a u16.
unsafe impl Plain for u16 {}
// SAFETY: any byte is a u8.
unsafe impl Plain for u8 {}

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

/// The bytes of `values`.
#[inline(always)]
pub(crate) fn bytes_of<T: Plain>(values: &[T]) -> &[u8] {
    // SAFETY: `Plain` has no padding, and bytes need no alignment.
    unsafe { std::slice::from_raw_parts(values.as_ptr().cast(), size_of_val(values)) }
}

/// `bytes` as a mutable slice of `T`; panics unless aligned and a whole number of elements.
#[inline(always)]
pub(crate) fn typed_mut<T: Plain>(bytes: &mut [u8]) -> &mut [T] {
    assert!(is_aligned_for::<T>(bytes) && bytes.len().is_multiple_of(size_of::<T>()), "misaligned typed view");
    // SAFETY: alignment and size were just asserted, and `Plain` admits and leaves only valid bit patterns.
    unsafe { std::slice::from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len() / size_of::<T>()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_that_share_pages_are_zero_and_their_own() {
        const PART: usize = SHARED / 4;
        let lens = [1, PAGE, PAGE + 1, 3 << 20, PART, 0, SHARED + 1, PART, 7, SHARED, 3 * PART, PART, PART, PART, 5];
        let mut buffers: Vec<AlignedBytes> = Vec::new();
        for (number, len) in lens.into_iter().enumerate() {
            let mut buffer = AlignedBytes::zeroed_beside_others(len);
            assert_eq!((buffer.as_ref().len(), buffer.as_ref().as_ptr().align_offset(PAGE)), (len, 0));
            assert!(buffer.as_ref().iter().all(|byte| *byte == 0), "buffer {number}");
            buffer.as_mut().fill(number as u8 + 1);
            // The others stay where they are when some are gone.
            if number == 3 {
                buffers.remove(1);
            }
            buffers.push(buffer);
        }
        let numbers = (1..=lens.len()).filter(|number| *number != 2);
        for (buffer, number) in buffers.iter().zip(numbers) {
            assert!(buffer.as_ref().iter().all(|byte| *byte == number as u8), "buffer {number}");
        }
    }
}
