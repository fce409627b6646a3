//! Rotates q and k by their rows' positions and stores k and v in their rows' slots.
//!
//! The rotation pairs dimension i with i + head_dim / 2 (Hugging Face's `rotate_half`; RoPE is Su et al., 2104.09864).
//! Keys are rotated by position and stored rotated, never by slot: that is why a kept path of a tree needs no copy.
//! Threads share the stores by heads, so that two rows given one slot by mistake do not race.

mod cpu;
pub mod reference;
mod table;

pub use table::{RopeRows, RopeScaling, RopeTable, Yarn};

use crate::blocks::KvViewMut;
use crate::exec::Exec;
use crate::profile::Op;
use crate::shared::SharedMut;
use crate::simd::dispatch;

/// Rotates `q` (`[rows, heads * head_dim]`) and `k` (`[rows, kv_dim]`) in place, then stores `k` and `v`
/// (`[rows, kv_dim]`) in `layer` of `kv`, row r in `slots[r]`. `rope` holds the rotation of every row.
pub fn rope_kv(exec: &Exec, rope: &RopeRows, rows: RopeKvRows<'_>, kv: &mut KvViewMut<'_>, layer: usize) {
    let _timer = exec.time(Op::RopeKv);
    let RopeKvRows { q, k, v, slots } = rows;
    let (count, kv_dim) = (slots.len(), kv.shape().kv_dim());
    assert_eq!(rope.rows(), count, "rope must hold a rotation for each row");
    assert_eq!(k.len(), count * kv_dim, "k must be [rows, kv_dim]");
    assert_eq!(v.len(), count * kv_dim, "v must be [rows, kv_dim]");
    rotate(exec, rope, [q, k]);
    kv.write(exec, layer, slots, k, v);
}

/// The rows that [`rope_kv`] works on.
pub struct RopeKvRows<'a> {
    /// Queries, `[rows, heads * head_dim]`, or none.
    pub q: &'a mut [f32],
    /// Keys, `[rows, kv_dim]`.
    pub k: &'a mut [f32],
    /// Values, `[rows, kv_dim]`.
    pub v: &'a [f32],
    /// Slot of each row.
    pub slots: &'a [u32],
}

/// Rotates every head of each of `all` (`[rows, any number of heads * head_dim]`) by its row's position, in place and in one
/// parallel region.
pub fn rotate<const N: usize>(exec: &Exec, rope: &RopeRows, all: [&mut [f32]; N]) {
    let all = all.map(|x| {
        let width = x.len().checked_div(rope.rows()).unwrap_or(0);
        assert_eq!(x.len(), width * rope.rows(), "x must be [rows, heads * head_dim]");
        assert!(width.is_multiple_of(rope.head_dim()), "x must be [rows, heads * head_dim]: {width} values a row");
        (SharedMut::new(x), width)
    });
    exec.for_rows(rope.rows(), all.iter().map(|(_, width)| width).sum(), &|rows| {
        for (x, width) in all.iter().filter(|(_, width)| *width > 0) {
            // SAFETY: parts are disjoint ranges of rows.
            let x = unsafe { x.range(rows.start * width..rows.end * width) };
            dispatch(exec.simd(), cpu::Rotate { x, width: *width, rope, first: rows.start });
        }
    });
}
