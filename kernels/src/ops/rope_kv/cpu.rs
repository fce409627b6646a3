//! The rotation, sixteen pairs at a time, with two products and one sum each; rotated keys go to their slots at once.
//!
//! The second product is fused into the sum; a head whose half is no multiple of 16 ends in padded lanes, so an
//! element's bits do not depend on where in the head it lies.

use super::RopeRows;
use crate::blocks::kv_store::LayerMut;
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Simd, padded, unpadded};
use std::ops::Range;

/// Rows ahead at which lines are asked for: other cores made some of them, and one by one each would be waited for.
const AHEAD: usize = 2;

/// Some KV heads of all rows, and as many parts of the queries' heads.
pub(super) struct RotateHeads<'a> {
    pub rope: &'a RopeRows,
    pub q: &'a SharedMut<'a, f32>,
    pub q_dim: usize,
    pub k: &'a SharedMut<'a, f32>,
    pub v: &'a [f32],
    pub slots: &'a [u32],
    pub kv: &'a LayerMut<'a>,
    pub heads: Range<usize>,
    pub q_heads: Range<usize>,
}

impl Kernel for RotateHeads<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (head_dim, kv_dim) = (self.rope.head_dim(), self.kv.shape().kv_dim());
        let dims = |row: usize, width: usize, heads: &Range<usize>| {
            row * width + heads.start * head_dim..row * width + heads.end * head_dim
        };
        for (row, slot) in self.slots.iter().enumerate() {
            let (cos, sin) = self.rope.row(row);
            let keys = dims(row, kv_dim, &self.heads);
            for at in dims(row + AHEAD, self.q_dim, &self.q_heads).step_by(LANES) {
                S::prefetch_write(self.q.address(at).cast());
            }
            for at in dims(row + AHEAD, kv_dim, &self.heads).step_by(LANES) {
                S::prefetch_write(self.k.address(at).cast());
                S::prefetch(self.v.as_ptr().wrapping_add(at).cast());
            }
            // SAFETY (both): tasks have different heads.
            let q = unsafe { self.q.range(dims(row, self.q_dim, &self.q_heads)) };
            let k = unsafe { self.k.range(keys.clone()) };
            for head in q.chunks_exact_mut(head_dim).chain(k.chunks_exact_mut(head_dim)) {
                rotate_head::<S>(head, cos, sin);
            }
            // SAFETY: as above.
            unsafe { self.kv.store::<S>(*slot, self.heads.start, [k, &self.v[keys]]) };
        }
    }
}

#[inline(always)]
fn rotate_head<S: Simd>(head: &mut [f32], cos: &[f32], sin: &[f32]) {
    let (low, high) = head.split_at_mut(head.len() / 2);
    let angles = cos.chunks(LANES).zip(sin.chunks(LANES));
    for ((low, high), (cos, sin)) in low.chunks_mut(LANES).zip(high.chunks_mut(LANES)).zip(angles) {
        let (a, b) = (S::load(&padded(low, 0.0)), S::load(&padded(high, 0.0)));
        let (cos, sin) = (S::load(&padded(cos, 0.0)), S::load(&padded(sin, 0.0)));
        let minus_b = S::sub(S::splat(0.0), b);
        let (mut first, mut second) = ([0.0; LANES], [0.0; LANES]);
        S::store(S::fma(minus_b, sin, S::mul(a, cos)), &mut first);
        S::store(S::fma(a, sin, S::mul(b, cos)), &mut second);
        unpadded(&first, low);
        unpadded(&second, high);
    }
}
