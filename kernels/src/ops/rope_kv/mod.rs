//! Rotates q and k by their rows' positions and stores k and v in their rows' slots.
//!
//! The rotation pairs dimension i with i + head_dim / 2 (Hugging Face's `rotate_half`; RoPE is Su et al., 2104.09864).
//! Keys are rotated by position and stored rotated, never by slot: that is why a kept path of a tree needs no copy.
//! Threads share the rows by heads, so that two rows given one slot by mistake do not race, and each thread has at hand what
//! it rotated, to store, and what it stored, to attend to.

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
    let (heads, head_dim) = (kv.shape().heads, kv.shape().head_dim);
    assert_eq!(rope.rows(), count, "rope must hold a rotation for each row");
    assert!(heads > 0 && rope.head_dim() == head_dim, "rope must rotate the heads of the KV");
    assert_eq!(k.len(), count * kv_dim, "k must be [rows, kv_dim]");
    assert_eq!(v.len(), count * kv_dim, "v must be [rows, kv_dim]");
    let q_heads = q.len().checked_div(count * head_dim).unwrap_or(0);
    let q_dim = q_heads * head_dim;
    assert_eq!(q.len(), count * q_dim, "q must be [rows, heads * head_dim]");
    let (q, k, kv) = (&SharedMut::new(q), &SharedMut::new(k), &kv.layer_mut(layer));
    exec.for_rows(heads, count * (q_dim + 2 * kv_dim) / heads, &|part| {
        let q_heads = part.start * q_heads / heads..part.end * q_heads / heads;
        dispatch(exec.simd(), cpu::RotateHeads { rope, q, q_dim, k, v, slots, kv, heads: part, q_heads });
    });
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
