//! Keys and values by slot, in every layer.
//!
//! One strided layout serves two owners. [`KvStore`] owns its memory, layer by layer, so that the slots of a sequence
//! lie close together in the layer being read. A lane (a draft model's KV, indexed by the engine's slots) is
//! `[slot][layer][k|v][kv_dim]` in memory that is lent, and [`KvViewMut::over_lane`] views it. Kernels see only
//! strides. Slots are checked at every access: a wrong one panics instead of reading elsewhere.

use crate::bytes::{AlignedBytes, typed, typed_mut};
use crate::error::KernelError;
use crate::simd::int8::BLOCK;
use crate::simd::{Kernel, LANES, Simd, SimdLevel, dispatch, padded};
use half::f16;
use std::ops::Range;

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
    /// Bytes of a key or value of `dims` dimensions.
    fn row_bytes(self, dims: usize) -> usize {
        match self {
            Self::F32 => 4 * dims,
            Self::Bf16 => 2 * dims,
            // Quants, then scales; an even number of bytes, so that the scales of every row are aligned.
            Self::Q8_0 => dims.next_multiple_of(2) + 2 * dims.div_ceil(BLOCK),
        }
    }

    /// What rows must be aligned to.
    fn alignment(self) -> usize {
        if self == Self::F32 { 4 } else { 2 }
    }
}

/// What a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvShape {
    /// Layers.
    pub layers: usize,
    /// kv_heads * head_dim.
    pub kv_dim: usize,
    /// How elements are stored.
    pub dtype: KvDtype,
}

impl KvShape {
    /// Bytes of one slot: layers * 2 * kv_dim elements.
    pub fn bytes_per_slot(&self) -> usize {
        self.layers * 2 * self.row_bytes()
    }

    fn row_bytes(&self) -> usize {
        self.dtype.row_bytes(self.kv_dim)
    }
}

/// Where the rows of a slot lie, in bytes.
#[derive(Debug, Clone, Copy)]
struct Strides {
    slot: usize,
    layer: usize,
    /// From a slot's keys to its values.
    value: usize,
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

    /// The view that ops read and write.
    pub fn view_mut(&mut self) -> KvViewMut<'_> {
        let plane = self.num_slots * self.shape.row_bytes();
        let strides = Strides { slot: self.shape.row_bytes(), layer: 2 * plane, value: plane };
        KvViewMut { bytes: self.bytes.as_mut(), shape: self.shape, num_slots: self.num_slots, strides }
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
    /// A lane's memory: `num_slots = bytes.len() / slot_stride` slots, each `[layer][k|v][kv_dim]` from its start.
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
        let strides = Strides { slot: slot_stride, layer: 2 * shape.row_bytes(), value: shape.row_bytes() };
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
        assert!(layer < self.shape.layers, "layer {layer} is outside of the KV's {}", self.shape.layers);
        let base = layer * self.strides.layer;
        KvLayer { bytes: self.bytes, base, shape: self.shape, num_slots: self.num_slots, strides: self.strides }
    }

    /// Stores one token's key and value (each `[kv_dim]`) in `layer`.
    pub fn write(&mut self, level: SimdLevel, layer: usize, slot: u32, key: &[f32], value: &[f32]) {
        for (is_value, row) in [(false, key), (true, value)] {
            let range = self.layer(layer).range(is_value, slot);
            let (dtype, to) = (self.shape.dtype, &mut self.bytes[range]);
            dispatch(level, StoreRow { dtype, row, to });
        }
    }

    /// Copies all layers of slot `from` to slot `to`.
    pub fn copy_slot(&mut self, from: u32, to: u32) {
        for layer in 0..self.shape.layers {
            for is_value in [false, true] {
                let view = self.layer(layer);
                let (source, target) = (view.range(is_value, from), view.range(is_value, to));
                self.bytes.copy_within(source, target.start);
            }
        }
    }
}

/// One layer's keys and values, to read.
#[derive(Debug, Clone, Copy)]
pub struct KvLayer<'a> {
    bytes: &'a [u8],
    base: usize,
    shape: KvShape,
    num_slots: usize,
    strides: Strides,
}

impl<'a> KvLayer<'a> {
    /// What a slot holds.
    pub fn shape(&self) -> KvShape {
        self.shape
    }

    /// The key (or value) of `slot` as f32 into `out` (`[kv_dim]`).
    pub fn read(&self, is_value: bool, slot: u32, out: &mut [f32]) {
        assert_eq!(out.len(), self.shape.kv_dim, "out must be [kv_dim]");
        let bytes = &self.bytes[self.range(is_value, slot)];
        match self.shape.dtype {
            KvDtype::F32 => out.copy_from_slice(typed(bytes)),
            KvDtype::Bf16 => {
                for (out, bits) in out.iter_mut().zip(typed::<u16>(bytes)) {
                    *out = f32::from_bits(u32::from(*bits) << 16);
                }
            }
            KvDtype::Q8_0 => {
                let (quants, scales) = bytes.split_at(self.shape.kv_dim.next_multiple_of(2));
                for ((out, quant), dim) in out.iter_mut().zip(quants).zip(0..) {
                    let scale = f16::from_bits(typed::<u16>(scales)[dim / BLOCK]).to_f32();
                    *out = (f32::from(*quant) - 128.0) * scale;
                }
            }
        }
    }

    #[inline(always)]
    fn range(&self, is_value: bool, slot: u32) -> Range<usize> {
        assert!((slot as usize) < self.num_slots, "slot {slot} is outside of the KV's {} slots", self.num_slots);
        let offset = if is_value { self.strides.value } else { 0 };
        let start = self.base + offset + slot as usize * self.strides.slot;
        start..start + self.shape.row_bytes()
    }

    /// Elements `part` of a key or value row, widened.
    #[inline(always)]
    pub(crate) fn load<S: Simd>(&self, is_value: bool, slot: u32, part: Range<usize>, out: &mut [f32]) {
        let bytes = &self.bytes[self.range(is_value, slot)];
        match self.shape.dtype {
            KvDtype::F32 => out.copy_from_slice(&typed::<f32>(bytes)[part]),
            KvDtype::Bf16 => crate::ops::embed::widen::<S>(&typed::<u16>(bytes)[part], out),
            KvDtype::Q8_0 => {
                let (quants, scales) = bytes.split_at(self.shape.kv_dim.next_multiple_of(2));
                dequantise::<S>(quants, typed(scales), part, out);
            }
        }
    }

    /// Asks for elements `part` of a slot's key and value.
    #[inline(always)]
    pub(crate) fn prefetch<S: Simd>(&self, slot: u32, part: Range<usize>) {
        let (first, end) = match self.shape.dtype {
            KvDtype::F32 => (4 * part.start, 4 * part.end),
            KvDtype::Bf16 => (2 * part.start, 2 * part.end),
            KvDtype::Q8_0 => (part.start, part.end),
        };
        for is_value in [false, true] {
            let row = &self.bytes[self.range(is_value, slot)];
            for at in (first..end).step_by(64) {
                S::prefetch(row.as_ptr().wrapping_add(at));
            }
        }
    }
}

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
                assert_eq!(self.row.len(), to.len(), "a key or value row must be [kv_dim]");
                for (row, to) in self.row.chunks(LANES).zip(to.chunks_mut(LANES)) {
                    let mut bits = [0; LANES];
                    S::store_bf16(S::load(&padded(row, 0.0)), &mut bits);
                    to.copy_from_slice(&bits[..to.len()]);
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

/// Elements `part` of a row's int8, 16 at a time where they lie within a block of 32.
#[inline(always)]
fn dequantise<S: Simd>(quants: &[u8], scales: &[u16], part: Range<usize>, out: &mut [f32]) {
    let scale_of = |dim: usize| f16::from_bits(scales[dim / BLOCK]).to_f32();
    for (start, out) in part.step_by(LANES).zip(out.chunks_mut(LANES)) {
        match (start.is_multiple_of(LANES), <&mut [f32; LANES]>::try_from(&mut *out)) {
            (true, Ok(out)) => {
                let quants = quants[start..].first_chunk().expect("16 of them");
                let centred = S::sub(S::load_u8(quants), S::splat(128.0));
                S::store(S::mul(centred, S::splat(scale_of(start))), out);
            }
            _ => {
                for (dim, out) in (start..).zip(out) {
                    *out = (f32::from(quants[dim]) - 128.0) * scale_of(dim);
                }
            }
        }
    }
}
