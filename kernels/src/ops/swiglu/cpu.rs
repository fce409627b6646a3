//! Sixteen elements at a time; the tail goes through the same vector code, padded.
//!
//! A scalar tail would use another exponential, and the bits of an element would depend on where it lies.

use crate::simd::{Kernel, LANES, Simd, padded, silu, unpadded};

pub(super) struct Swiglu<'a> {
    pub gate: &'a [f32],
    pub up: &'a [f32],
    pub out: &'a mut [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let inputs = self.gate.chunks(LANES).zip(self.up.chunks(LANES));
        for ((gate, up), out) in inputs.zip(self.out.chunks_mut(LANES)) {
            let (gate, up) = (S::load(&padded(gate, 0.0)), S::load(&padded(up, 0.0)));
            let mut lanes = [0.0; LANES];
            S::store(S::mul(silu::<S>(gate), up), &mut lanes);
            unpadded(&lanes, out);
        }
    }
}
