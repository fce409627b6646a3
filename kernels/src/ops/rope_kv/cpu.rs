//! The rotation, sixteen pairs at a time, with two products and one sum each.
//!
//! The second product is fused into the sum; a head whose half is no multiple of 16 ends in padded lanes, so an
//! element's bits do not depend on where in the head it lies.

use super::RopeRows;
use crate::simd::{Kernel, LANES, Simd, padded, unpadded};

pub(super) struct Rotate<'a> {
    pub x: &'a mut [f32],
    pub width: usize,
    pub rope: &'a RopeRows,
    pub first: usize,
}

impl Kernel for Rotate<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let head_dim = self.rope.head_dim();
        for (row, x) in self.x.chunks_exact_mut(self.width).enumerate() {
            let (cos, sin) = self.rope.row(self.first + row);
            for head in x.chunks_exact_mut(head_dim) {
                let (low, high) = head.split_at_mut(head_dim / 2);
                rotate_head::<S>(low, high, cos, sin);
            }
        }
    }
}

#[inline(always)]
fn rotate_head<S: Simd>(low: &mut [f32], high: &mut [f32], cos: &[f32], sin: &[f32]) {
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
