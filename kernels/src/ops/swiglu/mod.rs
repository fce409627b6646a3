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

/// `gate = gate / (1 + exp(-gate)) * up`, both of one length. In place: the lines of another buffer would have to come from
/// memory, since all weights of a model were read after they were last used.
pub fn swiglu(exec: &Exec, gate: &mut [f32], up: &[f32]) {
    let _timer = exec.time(Op::SwiGlu);
    assert_eq!(up.len(), gate.len(), "up must be as long as gate");
    let (len, gate) = (gate.len(), SharedMut::new(gate));
    exec.for_rows(len.div_ceil(BLOCK), BLOCK * 4, &|blocks| {
        let range = blocks.start * BLOCK..len.min(blocks.end * BLOCK);
        // SAFETY: parts are disjoint ranges of blocks.
        let gate = unsafe { gate.range(range.clone()) };
        dispatch(exec.simd(), cpu::Swiglu { gate, up: &up[range] });
    });
}
