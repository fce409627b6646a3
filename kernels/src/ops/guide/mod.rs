//! Classifier-free guidance of logits: `uncond + scale * (cond - uncond)` (Sanchez et al., 2306.17806).
//!
//! The three roundings of f32 are part of the definition: there is no fused multiply-add, so every machine and every
//! level gives the bits that a reader of the formula expects.

mod cpu;
pub mod cuda;
pub mod reference;

/// `cond = uncond + scale * (cond - uncond)`, in place; both `[vocab]` (or any equal length).
pub fn guide(cond: &mut [f32], uncond: &[f32], scale: f32) {
    assert_eq!(uncond.len(), cond.len(), "cond and uncond must have one length");
    cpu::guide(cond, uncond, scale);
}
