//! Two passes: the greatest value and whether a NaN is there, then the first place that has it.
//!
//! Comparisons are exact, so the level cannot change the answer; the second pass ends early.

use crate::simd::{Kernel, LANES, Simd, vectors};

pub(super) struct ArgMax<'a> {
    pub row: &'a [f32],
}

impl Kernel for ArgMax<'_> {
    type Output = Option<u32>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Option<u32> {
        let greatest = greatest::<S>(self.row)?;
        self.row.iter().position(|x| *x == greatest).map(|id| id as u32)
    }
}

/// The greatest value; `None` if the row is empty or has a NaN.
#[inline(always)]
pub(crate) fn greatest<S: Simd>(row: &[f32]) -> Option<f32> {
    let (chunks, rest) = vectors(row);
    let mut greatest = S::splat(f32::NEG_INFINITY);
    // x * 0 is NaN for a NaN and for infinities, which the slow path tells apart.
    let mut suspect = S::splat(0.0);
    for x in chunks {
        let x = S::load(x);
        greatest = S::max(x, greatest);
        suspect = S::fma(x, S::splat(0.0), suspect);
    }
    let mut lanes = [0.0; LANES];
    S::store(suspect, &mut lanes);
    let suspect = lanes.iter().any(|x| x.is_nan()) || rest.iter().any(|x| x.is_nan());
    if row.is_empty() || suspect && row.iter().any(|x| x.is_nan()) {
        return None;
    }
    Some(rest.iter().fold(S::greatest(greatest), |a, b| a.max(*b)))
}
