//! The norm against f64, and rows against their batch and in place.
//!
//! Five hundred rows cross the threshold above which rows are shared between threads.
//! In-place and separate forms must agree as bits.

use crate::support::{F32, assert_close, bits, levels, levels_and_threads, values};
use foretoken_kernels::ops::rmsnorm;
use foretoken_kernels::ops::rmsnorm::{reference, rmsnorm_in_place};

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
fn rows_by_themselves_and_in_place_give_the_same_bits() {
    let (x, weight) = (values(1, 500 * 72), values(3, 72));
    for exec in levels_and_threads() {
        let (mut want, mut out) = (vec![0.0; x.len()], vec![0.0; x.len()]);
        for (x, want) in x.chunks(72).zip(want.chunks_mut(72)) {
            rmsnorm(&exec, x, &weight, EPS, want);
        }
        rmsnorm(&exec, &x, &weight, EPS, &mut out);
        assert_eq!(bits(&out), bits(&want), "{exec:?}");
        let mut in_place = x.clone();
        rmsnorm_in_place(&exec, &mut in_place, &weight, EPS);
        assert_eq!(bits(&in_place), bits(&want), "{exec:?}");
    }
}
