//! Softmax against f64, and its edges.
//!
//! Logits span +-20, so most probabilities are tiny and relative error counts.
//! Rows without a distribution become NaN instead of something plausible.

use crate::support::{F32, assert_close, values};
use foretoken_kernels::ops::softmax;
use foretoken_kernels::ops::softmax::reference;

#[test]
fn agrees_with_the_reference() {
    for len in [1, 7, 16, 100, 5000] {
        let row: Vec<f32> = values(1, len).iter().map(|v| v * 20.0).collect();
        let mut out = row.clone();
        softmax(&mut out);
        assert_close(&out, &reference::softmax(&row), F32, &format!("{len}"));
    }
}

#[test]
fn edges() {
    let mut row = [f32::NEG_INFINITY, 1.0, f32::NEG_INFINITY];
    softmax(&mut row);
    assert_eq!(row, [0.0, 1.0, 0.0]);
    for mut broken in [[f32::NAN, 1.0], [f32::NEG_INFINITY; 2]] {
        softmax(&mut broken);
        assert!(broken.iter().all(|p| p.is_nan()));
    }
}
