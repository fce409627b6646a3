//! The norm against f64, the fused form against the separate one, and rows against their batch.
//!
//! Five hundred rows cross the threshold above which rows are shared between threads.
//! Fused, in-place and separate forms must agree as bits.

use crate::support::{F32, assert_close, bits, levels, levels_and_threads, values};
use foretoken_kernels::ops::rmsnorm::{reference, rmsnorm_in_place};
use foretoken_kernels::ops::{add, add_rmsnorm, rmsnorm};

const EPS: f32 = 1e-5;

#[test]
fn agrees_with_the_reference() {
    for width in [1, 16, 40, 384] {
        let (x, weight) = (values(1, 3 * width), values(2, width));
        let want = reference::rmsnorm(&x, &weight, EPS);
        for exec in levels() {
            let mut out = vec![0.0; x.len()];
            rmsnorm(&exec, &x, &weight, EPS, &mut out);
            assert_close(&out, &want, F32, &format!("{exec:?} {width}"));
        }
    }
}

#[test]
fn fused_and_in_place_forms_give_the_same_bits() {
    let (residual, delta, weight) = (values(1, 500 * 72), values(2, 500 * 72), values(3, 72));
    for exec in levels_and_threads() {
        let sum: Vec<f32> = residual.iter().zip(&delta).map(|(a, b)| a + b).collect();
        let mut want = vec![0.0; sum.len()];
        for (sum, want) in sum.chunks(72).zip(want.chunks_mut(72)) {
            rmsnorm(&exec, sum, &weight, EPS, want);
        }
        let mut added = residual.clone();
        add(&exec, &mut added, &delta, 72);
        assert_eq!(bits(&added), bits(&sum), "{exec:?}");
        let (mut fused, mut out) = (residual.clone(), vec![0.0; sum.len()]);
        add_rmsnorm(&exec, &mut fused, &delta, &weight, EPS, &mut out);
        assert_eq!((bits(&fused), bits(&out)), (bits(&sum), bits(&want)), "{exec:?}");
        rmsnorm_in_place(&exec, &mut fused, &weight, EPS);
        assert_eq!(bits(&fused), bits(&want), "{exec:?}");
    }
}
