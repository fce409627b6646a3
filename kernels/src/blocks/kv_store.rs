//! Keys and values by slot, in every layer.
//!
//! One strided layout serves two owners. [`KvStore`] owns its memory and keeps it `[layer][head][slot][k|v][head_dim]`, so
//! that a task of the attention, which reads one head, reads one stream: with all heads of a slot together it would read
//! 128 bytes here and there, and wait for most of them; with keys apart from values it would read two streams.
//! A lane (a draft model's KV, indexed by the engine's slots) is `[slot][layer][k|v][head][head_dim]` in memory that is
//! lent, and [`KvViewMut::over_lane`] views it. Kernels see only strides; what a row's bytes mean is `kv_format`'s. Slots are
//! checked at every access: a wrong one panics instead of reading elsewhere.

use super::kv_format::{KvDtype, LINE, store_row};
use crate::bytes::{AlignedBytes, Plain, typed};
use crate::error::KernelError;
use crate::exec::Exec;
use crate::shared::SharedMut;
use crate::simd::{Kernel, Simd, dispatch};
use std::marker::PhantomData;
use std::ops::Range;

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// Key heads.
    pub heads: usize,
    /// Dimensions of a head.
    pub head_dim: usize,
    /// How elements are stored.
    pub dtype: KvDtype,
}

impl KvShape {
    /// heads * head_dim.
    pub fn kv_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    /// Bytes of one slot: the keys and values of all heads in all layers.
    pub fn bytes_per_slot(&self) -> usize {
        self.layers * 2 * self.heads * self.row_bytes()
    }

    /// Bytes of one head's key or value.
    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.head_dim)
    }
}

/// Where the rows of a slot lie, in bytes.
#[derive(Debug, Clone, Copy)]
struct Strides {
    slot: usize,
    layer: usize,
    /// From a slot's keys to its values.
    value: usize,
    head: usize,
}

/// Owned keys and values, zeroed. Pages are touched only when written.
#[derive(Debug)]
pub struct KvStore {
    shape: KvShape,
    num_slots: usize,
    bytes: AlignedBytes,
}

impl KvStore {
    /// Room for `num_slots` tokens.
    pub fn new(shape: KvShape, num_slots: usize) -> Self {
        Self { shape, num_slots, bytes: AlignedBytes::zeroed(shape.bytes_per_slot() * num_slots) }
    }

    /// What a slot holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of slots.
    pub fn num_slots(&self) -> usize {
        self.num_slots
    }

    /// Asks the system for the memory of the first `slots` now, and not as they are written.
    pub fn populate(&self, slots: usize) {
        let Strides { slot, head, .. } = self.strides();
        let used = slots.min(self.num_slots) * slot;
        (0..self.shape.layers * self.shape.heads).for_each(|row| self.bytes.populate(row * head..row * head + used));
    }

    /// The view that ops read and write.
    pub fn view_mut(&mut self) -> KvViewMut<'_> {
        let (shape, num_slots, strides) = (self.shape, self.num_slots, self.strides());
        KvViewMut { bytes: self.bytes.as_mut(), shape, num_slots, strides }
    }

    fn strides(&self) -> Strides {
        let value = self.shape.row_bytes();
        let slot = 2 * value;
        let head = self.num_slots * slot;
        Strides { slot, layer: self.shape.heads * head, value, head }
    }
}

/// Keys and values, to read and write, of either owner.
#[derive(Debug)]
pub struct KvViewMut<'a> {
    bytes: &'a mut [u8],
    shape: KvShape,
    num_slots: usize,
    strides: Strides,
}

impl<'a> KvViewMut<'a> {
    /// A lane's memory: `num_slots = bytes.len() / slot_stride` slots, each `[layer][k|v][head][head_dim]` from its
    /// start.
    /// An error if a slot does not hold the shape, or the memory is not aligned for its dtype.
    pub fn over_lane(bytes: &'a mut [u8], shape: KvShape, slot_stride: usize) -> Result<Self, KernelError> {
        let alignment = shape.dtype.alignment();
        if slot_stride < shape.bytes_per_slot() {
            let (expected, got) = (shape.bytes_per_slot(), slot_stride);
            return Err(KernelError::KvMemory { what: "at least this many bytes per slot:", expected, got });
        }
        let misaligned = (bytes.as_ptr().addr() % alignment).max(slot_stride % alignment);
        if misaligned != 0 {
            let what = "start and stride aligned to the element:";
            return Err(KernelError::KvMemory { what, expected: 0, got: misaligned });
        }
        let num_slots = bytes.len() / slot_stride.max(1);
        let head = shape.row_bytes();
        let value = shape.heads * head;
        let strides = Strides { slot: slot_stride, layer: 2 * value, value, head };
        Ok(Self { bytes, shape, num_slots, strides })
    }

    /// What a slot holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// Number of slots.
    pub fn num_slots(&self) -> usize {
        self.num_slots
    }

    /// The keys and values of one layer, to read.
    pub fn layer(&self, layer: usize) -> KvLayer<'_> {
        KvLayer { bytes: self.bytes, places: self.places(layer) }
    }

    fn places(&self, layer: usize) -> LayerPlaces {
        assert!(layer < self.shape.layers, "layer {layer} is outside of the KV's {}", self.shape.layers);
        let Self { shape, num_slots, strides, .. } = *self;
        LayerPlaces { base: layer * strides.layer, shape, num_slots, strides }
    }

    /// Stores tokens' keys and values (each `[slots, kv_dim]`) in `layer`; where a slot is given twice, the last.
    pub fn write(&mut self, exec: &Exec, layer: usize, slots: &[u32], keys: &[f32], values: &[f32]) {
        let KvShape { heads, head_dim, .. } = self.shape;
        let kv_dim = self.shape.kv_dim();
        assert_eq!([keys.len(), values.len()], [slots.len() * kv_dim; 2], "keys and values must be [slots, kv_dim]");
        let layer = &self.layer_mut(layer);
        exec.for_rows(heads, 2 * slots.len() * head_dim, &|heads| {
            dispatch(exec.simd(), StoreHeads { layer, slots, keys, values, heads });
        });
    }

    /// One layer's, to share among threads.
    pub(crate) fn layer_mut(&mut self, layer: usize) -> LayerMut<'_> {
        LayerMut { places: self.places(layer), bytes: SharedMut::new(self.bytes) }
    }

    /// Copies all layers of slot `from` to slot `to`.
    pub fn copy_slot(&mut self, from: u32, to: u32) {
        for layer in 0..self.shape.layers {
            for head in 0..self.shape.heads {
                for is_value in [false, true] {
                    let places = self.places(layer);
                    let (source, target) = (places.range(is_value, from, head), places.range(is_value, to, head));
                    self.bytes.copy_within(source, target.start);
                }
            }
        }
    }
}

/// Where the rows of a layer lie.
#[derive(Debug, Clone, Copy)]
struct LayerPlaces {
    base: usize,
    shape: KvShape,
    num_slots: usize,
    strides: Strides,
}

impl LayerPlaces {
    /// A head's key (or value) of `slot`.
    #[inline(always)]
    fn range(&self, is_value: bool, slot: u32, head: usize) -> Range<usize> {
        assert!((slot as usize) < self.num_slots, "slot {slot} is outside of the KV's {} slots", self.num_slots);
        let offset = if is_value { self.strides.value } else { 0 };
        let start = self.base + offset + head * self.strides.head + slot as usize * self.strides.slot;
        start..start + self.shape.row_bytes()
    }
}

/// One layer's keys and values, that threads write by heads.
pub(crate) struct LayerMut<'a> {
    places: LayerPlaces,
    bytes: SharedMut<'a, u8>,
}

impl LayerMut<'_> {
    /// What a slot holds.
    #[inline(always)]
    pub fn shape(&self) -> KvShape {
        self.places.shape
    }

    /// Stores a slot's keys and values of some heads from `first` on, each `[heads, head_dim]`.
    ///
    /// # Safety
    /// No other task may store these heads.
    #[inline(always)]
    pub unsafe fn store<S: Simd>(&self, slot: u32, first: usize, [keys, values]: [&[f32]; 2]) {
        let KvShape { dtype, head_dim, .. } = self.places.shape;
        let rows = keys.chunks_exact(head_dim).zip(values.chunks_exact(head_dim));
        for (head, (key, value)) in rows.enumerate() {
            for (is_value, row) in [(false, key), (true, value)] {
                // SAFETY: heads lie apart from each other, and the caller's task alone has these.
                let to = unsafe { self.bytes.range(self.places.range(is_value, slot, first + head)) };
                store_row::<S>(dtype, row, to);
            }
        }
    }
}

/// Some heads of the keys and values of slots.
struct StoreHeads<'a> {
    layer: &'a LayerMut<'a>,
    slots: &'a [u32],
    keys: &'a [f32],
    values: &'a [f32],
    heads: Range<usize>,
}

impl Kernel for StoreHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let KvShape { head_dim, .. } = self.layer.shape();
        let kv_dim = self.layer.shape().kv_dim();
        for (index, slot) in self.slots.iter().enumerate() {
            let rows = [self.keys, self.values].map(|rows| {
                &rows[index * kv_dim + self.heads.start * head_dim..index * kv_dim + self.heads.end * head_dim]
            });
            // SAFETY: tasks have different heads.
            unsafe { self.layer.store::<S>(*slot, self.heads.start, rows) };
        }
    }
}

/// One layer's keys and values, to read.
#[derive(Debug, Clone, Copy)]
pub struct KvLayer<'a> {
    bytes: &'a [u8],
    places: LayerPlaces,
}

impl<'a> KvLayer<'a> {
    /// What a slot holds.
    pub fn shape(&self) -> KvShape {
        self.places.shape
    }

    /// The key (or value) of `slot` as f32 into `out` (`[kv_dim]`).
    pub fn read(&self, is_value: bool, slot: u32, out: &mut [f32]) {
        let KvShape { head_dim, dtype, .. } = self.shape();
        assert_eq!(out.len(), self.shape().kv_dim(), "out must be [kv_dim]");
        for (head, out) in out.chunks_exact_mut(head_dim).enumerate() {
            dtype.load(&self.bytes[self.places.range(is_value, slot, head)], out);
        }
    }

    /// A head's keys and values as they are stored.
    #[inline(always)]
    pub(crate) fn rows<E: Plain>(&self, head: usize) -> HeadRows<'a, E> {
        let LayerPlaces { num_slots, strides: Strides { slot: stride, value, .. }, .. } = self.places;
        let first = self.places.range(false, 0, head);
        let len = typed::<E>(&self.bytes[first.clone()]).len();
        let last = self.places.range(true, num_slots as u32 - 1, head);
        assert!(last.end <= self.bytes.len(), "KV of {num_slots} slots");
        assert!(stride.is_multiple_of(align_of::<E>()) && value.is_multiple_of(size_of::<E>()), "aligned rows");
        let bytes = &self.bytes[first.start..];
        let stride = u32::try_from(stride).expect("a slot of less than 4 GiB");
        HeadRows { bytes, len, stride, value: value / size_of::<E>(), num_slots, element: PhantomData }
    }
}

/// The keys and values of one head, all of them inside of the KV's bytes and aligned.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadRows<'a, E> {
    /// From the first slot's key on.
    bytes: &'a [u8],
    /// Elements of a key or value.
    len: usize,
    /// Elements from a slot's key to its value.
    value: usize,
    /// Bytes from one slot's key to the next slot's.
    stride: u32,
    num_slots: usize,
    element: PhantomData<E>,
}

/// Cache lines of a head's keys and values that lie one behind the other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct HeadLines {
    at: *const u8,
    end: *const u8,
    /// Whole lines of a key or value, at least one.
    a_row: usize,
}

impl HeadLines {
    /// The first line.
    #[inline(always)]
    pub fn first(&self) -> *const u8 {
        self.at
    }

    /// Calls `f` with the next lines, as many as so many keys and values fill, or all that are left.
    #[inline(always)]
    pub fn advance(&mut self, rows: usize, f: impl Fn(*const u8)) {
        let end = self.at.wrapping_add(rows * self.a_row * LINE).min(self.end);
        while self.at < end {
            f(self.at);
            self.at = self.at.wrapping_add(LINE);
        }
    }
}

impl<E: Plain> HeadRows<'_, E> {
    /// Elements of a key or value.
    #[inline(always)]
    pub fn row_len(&self) -> usize {
        self.len
    }

    /// Elements from a slot's key to its value.
    #[inline(always)]
    pub fn key_to_value(&self) -> usize {
        self.value
    }

    /// Bytes from the first slot's key (or value) to those of `slots`. Panics if there is no such slot.
    #[inline(always)]
    pub fn offsets<const N: usize>(&self, slots: &[u32; N], offsets: &mut [usize; N]) {
        self.check(slots);
        for (offset, slot) in offsets.iter_mut().zip(slots) {
            *offset = self.offset(*slot);
        }
    }

    /// The first slot's key.
    #[inline(always)]
    pub fn first_key(&self) -> *const E {
        self.bytes.as_ptr().cast()
    }

    /// Panics if there are no such slots.
    #[inline(always)]
    pub fn check(&self, slots: &[u32]) {
        let last = slots.iter().copied().fold(0, u32::max) as usize;
        assert!(last < self.num_slots, "slot {last} is outside of the KV's {} slots", self.num_slots);
    }

    /// Where the key of `slot` starts, if there is such a slot.
    #[inline(always)]
    pub fn key(&self, slot: u32) -> *const E {
        self.address(slot).cast()
    }

    /// Calls `f` with an address in each cache line of the key of `slot`, or of its value.
    #[inline(always)]
    pub fn for_lines(&self, is_value: bool, slot: u32, f: &impl Fn(*const u8)) {
        let (first, bytes) = (if is_value { self.value } else { 0 }, self.len * size_of::<E>());
        let row = self.address(slot).wrapping_add(first * size_of::<E>());
        f(row);
        f(row.wrapping_add(bytes - 1));
        if bytes > 2 * LINE {
            (LINE..bytes - 1).step_by(LINE).for_each(|at| f(row.wrapping_add(at)));
        }
    }

    /// The cache lines of the keys and values of `slots`, if these seem to lie one behind the other: not all are looked at,
    /// which does for asking.
    #[inline(always)]
    pub fn lines<const N: usize>(&self, slots: &[u32; N]) -> Option<HeadLines> {
        let row = self.len * size_of::<E>();
        let fills = self.value == self.len && self.stride as usize == 2 * row;
        let follows = |i: usize| slots[i] == slots[0].wrapping_add(i as u32);
        if !(fills && follows(1) && follows(N / 2) && follows(N - 1)) {
            return None;
        }
        let first = self.address(slots[0]);
        let (at, end) = (first.wrapping_sub(first.addr() % LINE), first.wrapping_add(2 * N * row));
        Some(HeadLines { at, end, a_row: (row / LINE).max(1) })
    }

    #[inline(always)]
    fn address(&self, slot: u32) -> *const u8 {
        self.bytes.as_ptr().wrapping_add(self.offset(slot))
    }

    /// Factors of 32 bits, so that vectors can multiply.
    #[inline(always)]
    fn offset(&self, slot: u32) -> usize {
        (u64::from(slot) * u64::from(self.stride)) as usize
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::os::unix::fs::FileExt;

    #[test]
    fn the_lines_of_slots_in_a_row_are_those_of_their_keys_and_values() {
        let shape = KvShape { layers: 2, heads: 3, head_dim: 64, dtype: KvDtype::Q8_0 };
        let mut store = KvStore::new(shape, 50);
        let view = store.view_mut();
        let rows = view.layer(1).rows::<u8>(1);
        let slots: [u32; 8] = std::array::from_fn(|i| 5 + i as u32);
        let found = RefCell::new(vec![]);
        let note = |address: *const u8| found.borrow_mut().push(address.addr() / LINE);
        for slot in slots {
            rows.for_lines(false, slot, &note);
            rows.for_lines(true, slot, &note);
        }
        let mut of_rows = found.take();
        of_rows.sort_unstable();
        of_rows.dedup();
        let mut lines = rows.lines(&slots).expect("slots in a row");
        lines.advance(3, note);
        assert_eq!(found.borrow().len(), 3, "a line for a row of 68 bytes");
        lines.advance(2 * slots.len(), note);
        assert_eq!(found.take(), of_rows);

        let apart = [5, 6, 7, 8, 9, 10, 11, 13];
        assert!(rows.lines(&apart).is_none(), "a slot is left out");
        let mut lane = AlignedBytes::zeroed(50 * shape.bytes_per_slot());
        let lane = KvViewMut::over_lane(lane.as_mut(), shape, shape.bytes_per_slot()).unwrap();
        assert!(lane.layer(0).rows::<u8>(0).lines(&slots).is_none(), "other heads are between");
    }

    #[test]
    fn the_first_slots_of_all_heads_are_populated_and_no_others() {
        let shape = KvShape { layers: 2, heads: 3, head_dim: 64, dtype: KvDtype::F32 };
        // 512 bytes a slot and head: 1 MiB in all, on small pages.
        let store = KvStore::new(shape, 320);
        store.populate(64);
        let pages = std::fs::File::open("/proc/self/pagemap").expect("the kernel's list of pages");
        let present = |byte: usize| {
            let (address, mut entry) = (store.bytes.as_ref().as_ptr().addr() + byte, [0; 8]);
            pages.read_exact_at(&mut entry, address as u64 / 4096 * 8).expect("an entry for every page");
            u64::from_ne_bytes(entry) >> 63 == 1
        };
        for head in 0..6 {
            for (slot, expected) in [(0, true), (63, true), (72, false), (319 - 8, false)] {
                assert_eq!(present((head * 320 + slot) * 512), expected, "head {head}, slot {slot}");
            }
        }
    }
}
