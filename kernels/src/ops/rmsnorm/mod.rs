//! Root-mean-square norm (Zhang and Sennrich, 1910.07467).
//!
//! `width` is the length of `weight`, so the same op norms whole rows and, with a weight of head_dim, every head of q
//! and k (Qwen3). The sum of squares is one 16-lane sum; rows never share one.

mod cpu;
pub mod reference;

use crate::exec::Exec;
use crate::profile::Op;
use crate::shared::SharedMut;
use crate::simd::dispatch;

/// `out = x / sqrt(mean(x^2) + eps) * weight` per row; `x` and `out` are `[rows, width]`, `weight` is `[width]`.
pub fn rmsnorm(exec: &Exec, x: &[f32], weight: &[f32], eps: f32, out: &mut [f32]) {
    let _timer = exec.time(Op::RmsNorm);
    let width = check(x.len(), weight, out.len());
    let out = SharedMut::new(out);
    exec.for_rows(x.len() / width, width, &|rows| {
        let range = rows.start * width..rows.end * width;
        // SAFETY: parts are disjoint ranges of rows.
        let out = unsafe { out.range(range.clone()) };
        dispatch(exec.simd(), cpu::RmsNorm { x: &x[range], weight, eps, out });
    });
}

/// The norm of every row of `x`, in place.
pub fn rmsnorm_in_place(exec: &Exec, x: &mut [f32], weight: &[f32], eps: f32) {
    let _timer = exec.time(Op::RmsNorm);
    let width = check(x.len(), weight, x.len());
    let rows = x.len() / width;
    let x = SharedMut::new(x);
    exec.for_rows(rows, width, &|rows| {
        // SAFETY: parts are disjoint ranges of rows.
        let x = unsafe { x.range(rows.start * width..rows.end * width) };
        dispatch(exec.simd(), cpu::RmsNormInPlace { x, weight, eps });
    });
}

fn check(x_len: usize, weight: &[f32], out_len: usize) -> usize {
    let width = weight.len();
    assert!(width > 0 && x_len.is_multiple_of(width), "x must be [rows, width]: {x_len} values, width {width}");
    assert_eq!(out_len, x_len, "out must be [rows, width] like x");
    width
}
