//! One 16-lane sum of squares per row, then a scaled copy.

use crate::simd::{Kernel, LANES, Simd, padded, vectors};

pub(super) struct RmsNorm<'a> {
    pub x: &'a [f32],
    pub weight: &'a [f32],
    pub eps: f32,
    pub out: &'a mut [f32],
}

impl Kernel for RmsNorm<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.weight.len();
        for (x, out) in self.x.chunks_exact(width).zip(self.out.chunks_exact_mut(width)) {
            out.copy_from_slice(x);
            norm_row::<S>(out, self.weight, self.eps);
        }
    }
}

pub(super) struct RmsNormInPlace<'a> {
    pub x: &'a mut [f32],
    pub weight: &'a [f32],
    pub eps: f32,
}

impl Kernel for RmsNormInPlace<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        for x in self.x.chunks_exact_mut(self.weight.len()) {
            norm_row::<S>(x, self.weight, self.eps);
        }
    }
}

#[inline(always)]
fn norm_row<S: Simd>(row: &mut [f32], weight: &[f32], eps: f32) {
    let scale = 1.0 / (mean_square::<S>(row) + eps).sqrt();
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    let (weights, weights_rest) = vectors(weight);
    for (x, weight) in chunks.iter_mut().zip(weights) {
        S::store(S::mul(S::mul(S::load(x), S::splat(scale)), S::load(weight)), x);
    }
    for (x, weight) in rest.iter_mut().zip(weights_rest) {
        *x = *x * scale * weight;
    }
}

#[inline(always)]
fn mean_square<S: Simd>(row: &[f32]) -> f32 {
    let (chunks, rest) = vectors(row);
    let mut sum = S::splat(0.0);
    for x in chunks {
        let x = S::load(x);
        sum = S::fma(x, x, sum);
    }
    if !rest.is_empty() {
        let x = S::load(&padded(rest, 0.0));
        sum = S::fma(x, x, sum);
    }
    S::sum(sum) / row.len() as f32
}
