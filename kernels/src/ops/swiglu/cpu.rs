//! Sixteen elements at a time; the tail goes through the same vector code, padded.
//!
//! A scalar tail would use another exponential, and the bits of an element would depend on where it lies.

use crate::simd::{Kernel, LANES, Simd, padded, silu, unpadded};

/// Elements ahead at which lines are asked for: other cores made some of them.
const AHEAD: usize = 32 * LANES;

pub(super) struct Swiglu<'a> {
    pub gate: &'a mut [f32],
    pub up: &'a [f32],
}

impl Kernel for Swiglu<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for (gate, up) in self.gate.chunks_mut(LANES).zip(self.up.chunks(LANES)) {
            S::prefetch_write(gate.as_ptr().wrapping_add(AHEAD).cast());
            S::prefetch(up.as_ptr().wrapping_add(AHEAD).cast());
            let mut lanes = [0.0; LANES];
            let up = S::load(&padded(up, 0.0));
            S::store(S::mul(silu::<S>(S::load(&padded(gate, 0.0))), up), &mut lanes);
            unpadded(&lanes, gate);
        }
    }
}
