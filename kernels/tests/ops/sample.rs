//! The inverse distribution function: its law, its ends, and zeros.
//!
//! `u` runs over the ends of its interval and beyond, because a product of two roundings can reach 1.
//! Zeros stand before, between and after the positive tokens.

use crate::support::values;
use foretoken_kernels::ops::sample;
use foretoken_kernels::ops::sample::reference;

#[test]
fn agrees_with_the_reference() {
    let probs: Vec<f32> = values(1, 50).iter().map(|v| v.max(0.0)).collect();
    for i in 0..1000 {
        let u = (f64::from(i) + 0.5) / 1000.0;
        assert_eq!(Some(sample(&probs, u)), reference::sample(&probs, u), "{u}");
    }
}

#[test]
fn never_returns_a_token_without_probability() {
    let probs = [0.0, 0.25, 0.0, 0.25, 0.0];
    for u in [0.0, 1e-300, 0.499_999, 0.5, 0.999_999, 1.0 - f64::EPSILON / 2.0, 1.0] {
        assert!([1, 3].contains(&sample(&probs, u)), "{u}");
    }
    assert_eq!(sample(&[0.0, 1e-30, 0.0], 0.7), 1);
}

#[test]
#[should_panic(expected = "no probability is positive")]
fn a_distribution_of_zeros_panics() {
    sample(&[0.0; 3], 0.5);
}
