//! Guidance: three f32 roundings, and nothing fused.
//!
//! The second test computes the three roundings by hand, and first proves that its inputs could tell a fused
//! multiply-add from them.

use crate::support::{F32, assert_close, values};
use foretoken_kernels::ops::guide;
use foretoken_kernels::ops::guide::reference;

#[test]
fn agrees_with_the_reference() {
    let (cond, uncond) = (values(1, 100), values(2, 100));
    let mut out = cond.clone();
    guide(&mut out, &uncond, 1.7);
    assert_close(&out, &reference::guide(&cond, &uncond, 1.7), F32, "guide");
}

#[test]
fn rounds_three_times() {
    let (cond, uncond, scale) = (values(3, 4000), values(4, 4000), 1.3f32);
    let mut out = cond.clone();
    guide(&mut out, &uncond, scale);
    let mut fused = 0;
    for ((cond, uncond), out) in cond.iter().zip(&uncond).zip(out) {
        let difference = cond - uncond;
        let product = std::hint::black_box(scale * difference);
        assert_eq!(out.to_bits(), (uncond + product).to_bits());
        fused += usize::from(scale.mul_add(difference, *uncond) == out);
    }
    assert!(fused < 4000, "the inputs must be able to tell a fused multiply-add apart");
}
