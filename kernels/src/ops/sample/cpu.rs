//! Two passes of f64 sums in id order: the total, then the search.
//!
//! Both add the same numbers in the same order, so the search always reaches the total.

pub(super) fn sample(probs: &[f32], u: f64) -> Option<u32> {
    let total = probs.iter().filter(|p| **p > 0.0).fold(0.0, |sum, p| sum + f64::from(*p));
    let (target, mut sum, mut last) = (u * total, 0.0, None);
    for (id, prob) in (0..).zip(probs) {
        if *prob > 0.0 {
            sum += f64::from(*prob);
            last = Some(id);
            if sum > target {
                break;
            }
        }
    }
    last
}
