//! The exponential race: equal to the one without pruning, and distributed as its probabilities.
//!
//! Equality with the unpruned race is exact, over vocabularies around the block size of 64.
//! The law is tested with a tolerance computed from the number of draws.

use crate::support::values;
use foretoken_kernels::NoiseKey;
use foretoken_kernels::ops::gumbel::reference;
use foretoken_kernels::ops::gumbel_argmax;

fn key(stream: u64) -> NoiseKey {
    NoiseKey { seed: 42, completion: 1, stream }
}

#[test]
fn pruning_changes_nothing() {
    for len in [1, 3, 63, 64, 65, 500] {
        let probs: Vec<f32> = values(len as u64, len).iter().map(|v| (v - 0.3).max(0.0).powi(4) + 1e-9).collect();
        for stream in 0..300 {
            let (got, want) = (gumbel_argmax(&probs, key(stream)), reference::gumbel_argmax(&probs, key(stream)));
            assert_eq!(Some(got), want, "{len} tokens, stream {stream}");
        }
    }
}

#[test]
fn the_law_is_that_of_the_probabilities() {
    let (probs, draws) = ([0.5, 0.0, 0.25, 0.05, 0.2], 200_000);
    let mut counts = [0u32; 5];
    for stream in 0..draws {
        counts[gumbel_argmax(&probs, key(stream)) as usize] += 1;
    }
    for (count, prob) in counts.iter().zip(probs) {
        let (n, p) = (draws as f64, f64::from(prob));
        let error = (f64::from(*count) / n - p).abs();
        // 4.5 standard errors of a share.
        assert!(error <= 4.5 * (p * (1.0 - p) / n).sqrt(), "{counts:?}");
    }
}

#[test]
fn tokens_without_probability_never_win() {
    let mut probs = vec![0.0; 300];
    probs[200] = 1e-35;
    for stream in 0..50 {
        assert_eq!(gumbel_argmax(&probs, key(stream)), 200);
    }
}
