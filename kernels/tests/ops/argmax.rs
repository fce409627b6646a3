//! The greedy token: ties, NaN and infinities, at every length around a vector.
//!
//! Inputs are rounded to a coarse grid, so that ties occur at every length.
//! NaN is placed beside infinities, which is where a vectorised check is tempted to cheat.

use crate::support::values;
use foretoken_kernels::ops::argmax;
use foretoken_kernels::ops::argmax::reference;

#[test]
fn agrees_with_the_reference() {
    for len in (0..70).chain([1000]) {
        let row: Vec<f32> = values(len as u64, len).iter().map(|v| (v * 8.0).round()).collect();
        assert_eq!(argmax(&row), reference::argmax(&row), "{row:?}");
    }
}

#[test]
fn edges() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    assert_eq!(argmax(&[]), None);
    assert_eq!(argmax(&[2.0, 5.0, 5.0]), Some(1), "the lowest id wins a tie");
    assert_eq!(argmax(&[-0.0, 0.0]), Some(0), "zeros tie");
    assert_eq!(argmax(&[-inf; 40]), Some(0));
    assert_eq!(argmax(&[1.0, inf, inf]), Some(1));
    for at in [0, 15, 16, 39] {
        let mut row = vec![inf; 40];
        row[at] = nan;
        assert_eq!(argmax(&row), None, "NaN at {at}");
    }
}
