//! The mirror that crosses the border: vtables, objects and conversions. Nothing outside this folder sees an
//! abi_stable type in a signature, and `unsafe` lives nowhere else in this crate.
//!
//! Every vtable is a *prefix type*: a later engine of API level 1 appends functions, and a plugin built today still
//! passes the layout check. Every other struct that crosses is frozen. A call is one indirect `extern "C"` call; the
//! side that owns the callee catches its panics, because unwinding into another copy of std aborts.
#![allow(unsafe_code)]
// The derive of abi_stable 0.11.3 predates these lints.
#![allow(non_local_definitions, clippy::ptr_as_ptr)]
// `|part| Ok(part.free(id))` reads as what it forwards.
#![allow(clippy::unit_arg)]

pub mod drafts;
mod guard;
pub mod header;
pub mod host;
pub mod kv;
pub mod model;
pub mod module;
pub mod plan;
pub mod proposer;
pub mod sampler;
pub mod scheduler;
pub mod tensors;
pub mod trace;

pub use guard::RError;

use crate::types::Slot;

/// `Slot` is `repr(transparent)` over `u32`.
pub(crate) fn slots_as_u32s(slots: &[Slot]) -> &[u32] {
    // SAFETY: `Slot` is repr(transparent) over u32, so length, size and alignment agree.
    unsafe { std::slice::from_raw_parts(slots.as_ptr().cast(), slots.len()) }
}

/// Bytes `[offset, offset + len)` behind a view's pointer.
pub(crate) fn view_bytes<'a>(data: *const u8, offset: usize, len: usize) -> &'a [u8] {
    // SAFETY: a `TensorView` is only made from a slice that outlives it, and the caller has checked the row.
    unsafe { std::slice::from_raw_parts(data.add(offset), len) }
}

/// A view's bytes as f32; alignment was checked when the view was made.
pub(crate) fn bytes_as_f32(bytes: &[u8]) -> &[f32] {
    debug_assert!((bytes.as_ptr() as usize).is_multiple_of(4));
    // SAFETY: every bit pattern is an f32, the view's constructor checked the alignment, and the length is floored.
    unsafe { std::slice::from_raw_parts(bytes.as_ptr().cast(), bytes.len() / 4) }
}
