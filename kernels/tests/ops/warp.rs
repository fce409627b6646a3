//! The sampling order against a full sort in f64, and its edges.
//!
//! Where an f32 sum can put the crossing token on either side of a threshold, the threshold may move by that rounding;
//! the kept set must then match exactly.

use crate::support::{Tolerance, assert_close, values};
use foretoken_kernels::ops::warp::reference;
use foretoken_kernels::ops::{WarpError, WarpParams, WarpScratch, warp};
use proptest::prelude::*;

const PROB: Tolerance = Tolerance { abs: 1e-7, eps: 2e-6 };

fn run(logits: &[f32], params: &WarpParams) -> Result<Vec<f32>, WarpError> {
    let mut probs = vec![f32::NAN; logits.len()];
    warp(logits, params, &mut probs, &mut WarpScratch::new()).map(|()| probs)
}

fn kept(probs: &[f32]) -> Vec<bool> {
    probs.iter().map(|p| *p > 0.0).collect()
}

/// The reference whose kept set is `got`'s, moving a threshold by less than the rounding of f32 sums.
fn matching_reference(logits: &[f32], params: &WarpParams, got: &[f32]) -> Option<Vec<f64>> {
    let near = [0.0, -2e-6, 2e-6];
    let candidates = near.iter().flat_map(|p| near.map(|m| (params.top_p + p, params.min_p * (1.0 + m))));
    let mut wanted = candidates.map(|(top_p, min_p)| {
        let top_p = if params.top_p < 1.0 { top_p.min(1.0 - 1e-7) } else { 1.0 };
        reference::warp(logits, &WarpParams { top_p, min_p, ..*params })
    });
    // Below e^-87 the vectorised exponential is 0, by its documentation.
    let same = |want: &Vec<f64>| want.iter().zip(got).all(|(want, got)| (*want > 1e-30) == (*got > 1e-30));
    wanted.find(same)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]
    #[test]
    fn agrees_with_the_full_sort(
        (vocab, seed, scale, grid) in (1usize..700, 0u64..1000, 0.1f32..30.0, 0u32..3),
        temperature in prop_oneof![Just(0.0f32), 0.05f32..3.0],
        top_k in prop_oneof![Just(0u32), 1u32..80, 80u32..800],
        top_p in prop_oneof![Just(1.0f32), 0.01f32..0.999],
        min_p in prop_oneof![Just(0.0f32), 0.001f32..0.9],
        forbidden in 0usize..5,
    ) {
        // A grid makes ties.
        let snap = |v: f32| if grid == 0 { v * scale } else { (v * scale * grid as f32).round() / grid as f32 };
        let mut logits: Vec<f32> = values(seed, vocab).into_iter().map(snap).collect();
        for i in 0..forbidden.min(vocab - 1) {
            logits[i * 7919 % vocab] = f32::NEG_INFINITY;
        }
        prop_assume!(logits.iter().any(|l| l.is_finite()));
        let params = WarpParams { temperature, top_k, top_p, min_p };
        let got = run(&logits, &params).unwrap();
        let want = matching_reference(&logits, &params, &got);
        prop_assert!(want.is_some(), "another set is kept: {:?}", kept(&got));
        assert_close(&got, &want.unwrap(), PROB, "probabilities");
    }
}

#[test]
fn ties_are_kept_by_lowest_id() {
    let params = WarpParams { top_k: 3, ..WarpParams::default() };
    assert_eq!(kept(&run(&[1.0, 2.0, 1.0, 1.0, 1.0], &params).unwrap()), [true, true, true, false, false]);
    let params = WarpParams { top_p: 0.5, ..WarpParams::default() };
    assert_eq!(kept(&run(&[0.0; 4], &params).unwrap()), [true, true, false, false], "0.5 is reached, not exceeded");
    assert_eq!(kept(&run(&[-0.0, 0.0, 0.0], &WarpParams { top_k: 1, ..params }).unwrap()), [true, false, false]);
    let greedy = WarpParams { temperature: 0.0, ..params };
    assert_eq!(run(&[1.0, 3.0, 3.0], &greedy).unwrap(), [0.0, 1.0, 0.0]);
}

/// With thousands of light tokens the crossing one is a matter of rounding; what is kept must still be the greatest
/// tokens, and as many as reach the mass within that rounding.
#[test]
fn a_large_vocabulary_takes_the_same_path() {
    let logits: Vec<f32> = values(6, 50_000).iter().map(|v| v * 6.0).collect();
    for (top_k, top_p) in [(50, 1.0), (0, 0.9), (2000, 0.95), (0, 0.9999), (49_999, 1.0)] {
        let params = WarpParams { temperature: 0.8, top_k, top_p, min_p: 0.0 };
        let got = run(&logits, &params).unwrap();
        let full = reference::warp(&logits, &WarpParams { top_p: 1.0, ..params });
        let mut order: Vec<usize> = (0..logits.len()).collect();
        order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]).then(a.cmp(b)));
        let count = got.iter().filter(|p| **p > 0.0).count();
        assert!(order[..count].iter().all(|id| got[*id] > 0.0), "{params:?}: not the greatest tokens");
        let mass: f64 = order[..count].iter().map(|id| full[*id]).sum();
        let before = mass - full[order[count - 1]];
        let target = f64::from(top_p);
        assert!(mass > target - 2e-6 && before < target + 2e-6, "{params:?}: {count} tokens of mass {mass}");
        let want: Vec<f64> = (0..logits.len()).map(|id| if got[id] > 0.0 { full[id] / mass } else { 0.0 }).collect();
        assert_close(&got, &want, PROB, &format!("{params:?}"));
    }
}

#[test]
fn logits_without_a_distribution_are_errors() {
    let (inf, nan) = (f32::INFINITY, f32::NAN);
    let params = WarpParams::default();
    assert_eq!(run(&[], &params), Err(WarpError::Empty { vocab: 0 }));
    assert_eq!(run(&[-inf; 3], &params), Err(WarpError::Empty { vocab: 3 }));
    assert_eq!(run(&[0.0, nan], &params), Err(WarpError::NotANumber { vocab: 2 }));
    assert_eq!(run(&[0.0, inf], &params), Err(WarpError::Infinite { vocab: 2 }));
    assert_eq!(run(&[-inf, nan], &WarpParams { temperature: 0.0, ..params }), Err(WarpError::NotANumber { vocab: 2 }));
}
