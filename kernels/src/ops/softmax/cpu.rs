//! Maximum, exponentials with their sum, division: three passes over one row.
//!
//! An online form would save one pass over memory, but a row of logits was just written and is cached.

use crate::ops::argmax::greatest;
use crate::simd::{Kernel, LANES, Simd, exp, padded, unpadded, vectors};

/// Values whose sum f32 holds well enough.
const SUM_BLOCK: usize = 1024;

pub(super) struct Softmax<'a> {
    pub row: &'a mut [f32],
}

impl Kernel for Softmax<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let Some(greatest) = greatest::<S>(self.row).filter(|g| g.is_finite()) else {
            return self.row.fill(f32::NAN);
        };
        shifted_exp::<S>(self.row, greatest, 1.0);
        let total = sum::<S>(self.row);
        divide::<S>(self.row, total as f32);
    }
}

/// `row = exp((row - shift) / temperature)`.
#[inline(always)]
pub(crate) fn shifted_exp<S: Simd>(row: &mut [f32], shift: f32, temperature: f32) {
    for row in row.chunks_mut(LANES) {
        let x = S::sub(S::load(&padded(row, 0.0)), S::splat(shift));
        let mut lanes = [0.0; LANES];
        S::store(exp::<S>(S::div(x, S::splat(temperature))), &mut lanes);
        unpadded(&lanes, row);
    }
}

/// The sum of a row: 16-lane sums of blocks, added in f64 so that a large vocabulary loses nothing of its tail.
#[inline(always)]
pub(crate) fn sum<S: Simd>(row: &[f32]) -> f64 {
    let mut total = 0.0;
    for block in row.chunks(SUM_BLOCK) {
        let (chunks, rest) = vectors(block);
        let mut sum = S::load(&padded(rest, 0.0));
        for x in chunks {
            sum = S::add(sum, S::load(x));
        }
        total += f64::from(S::sum(sum));
    }
    total
}

/// `row /= by`.
#[inline(always)]
pub(crate) fn divide<S: Simd>(row: &mut [f32], by: f32) {
    let (chunks, rest) = row.as_chunks_mut::<LANES>();
    for x in chunks {
        S::store(S::div(S::load(x), S::splat(by)), x);
    }
    for x in rest {
        *x /= by;
    }
}
