//! The gate of a gated MLP: `silu(gate) * up` (Shazeer, 2002.05202).
//!
//! Element-wise, so nothing can depend on the batch; the exponential is the shared polynomial of `simd::math`.

mod cpu;
pub mod reference;

use crate::exec::Exec;
use crate::profile::Op;
use crate::shared::SharedMut;
use crate::simd::dispatch;

/// Elements that a task takes at a time.
const BLOCK: usize = 256;

/// `out = gate / (1 + exp(-gate)) * up`, all of one length.
pub fn swiglu(exec: &Exec, gate: &[f32], up: &[f32], out: &mut [f32]) {
    let _timer = exec.time(Op::SwiGlu);
    assert_eq!(up.len(), gate.len(), "up must be as long as gate");
    assert_eq!(out.len(), gate.len(), "out must be as long as gate");
    let len = out.len();
    let out = SharedMut::new(out);
    exec.for_rows(len.div_ceil(BLOCK), BLOCK * 4, &|blocks| {
        let range = blocks.start * BLOCK..len.min(blocks.end * BLOCK);
        // SAFETY: parts are disjoint ranges of blocks.
        let out = unsafe { out.range(range.clone()) };
        dispatch(exec.simd(), cpu::Swiglu { gate: &gate[range.clone()], up: &up[range], out });
    });
}
