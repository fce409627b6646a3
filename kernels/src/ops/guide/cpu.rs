//! A plain loop, which the compiler vectorises for the baseline target.
//!
//! Rust never contracts a product and a sum into a fused multiply-add, which is what the definition forbids; code in
//! terms of the level's vectors would gain nothing on one pass over memory.

pub(super) fn guide(cond: &mut [f32], uncond: &[f32], scale: f32) {
    for (cond, uncond) in cond.iter_mut().zip(uncond) {
        *cond = *uncond + scale * (*cond - *uncond);
    }
}
