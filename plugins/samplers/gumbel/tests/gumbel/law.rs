//! The text's law over seeds is the target's, and shared noise makes drafts agree.

use foretoken_gumbel::Gumbel;
use foretoken_kernels::ops::{WarpParams, gumbel_argmax, sample, warp::reference};
use foretoken_kernels::{NoiseKey as KernelKey, noise};
use foretoken_plugin_api::testkit::ToyModel;
use foretoken_plugin_api::{NoiseKey, SamplingParams, Token};

use crate::game::{Drafter, Game};

/// The largest distance of observed from expected shares of two tokens, in standard errors.
fn standard_errors(toy: &ToyModel, sampling: SamplingParams, drafter: Drafter, samples: u64) -> f64 {
    let (vocab, mut sampler) = (toy.vocab_size(), Gumbel::default());
    let mut counts = vec![0u64; vocab * vocab];
    for seed in 0..samples {
        let game = Game { toy, sampling, noise: NoiseKey::new(seed, 0) };
        let (text, _) = game.decode(&mut sampler, drafter, 2);
        counts[text[0] as usize * vocab + text[1] as usize] += 1;
    }
    let row = |context: &[Token]| reference::warp(&toy.logits(context), &WarpParams::from(sampling));
    let (first, samples) = (row(&[]), samples as f64);
    let distance = |(cell, count): (usize, &u64)| {
        let mass = first[cell / vocab] * row(&[(cell / vocab) as Token])[cell % vocab];
        assert!(mass > 0.0 || *count == 0, "cell {cell} has probability 0");
        let error = (mass * (1.0 - mass) / samples).sqrt();
        if mass > 0.0 { (*count as f64 / samples - mass).abs() / error } else { 0.0 }
    };
    counts.iter().enumerate().map(distance).fold(0.0, f64::max)
}

#[test]
fn the_joint_law_of_two_tokens_is_the_targets() {
    let toy = ToyModel::new(5, 9);
    let truncated = SamplingParams { temperature: 0.7, top_k: 3, top_p: 1.0, min_p: 0.0 };
    for (sampling, drafter) in [
        (SamplingParams::default(), Drafter::Poor),
        (SamplingParams::default(), Drafter::Tree),
        (truncated, Drafter::Tree),
    ] {
        let found = standard_errors(&toy, sampling, drafter, 200_000);
        println!("{drafter:?}, {sampling:?}: {found:.2} standard errors");
        assert!(found < 4.5, "{found}");
    }
}

/// Two rows of probability `[vocab]` that differ.
fn two_rows(seed: u64) -> [Vec<f32>; 2] {
    [seed, seed + 1000].map(|seed| {
        let row = reference::warp(&ToyModel::new(16, seed).logits(&[]), &WarpParams::default());
        row.into_iter().map(|prob| prob as f32).collect()
    })
}

#[test]
fn a_draft_drawn_with_the_same_noise_matches_more_often_than_an_independent_one() {
    let (mut shared, mut independent, mut bound, mut maximal) = (0.0, 0.0, 0.0, 0.0);
    for world in 0..20 {
        let [target_prob, draft_prob] = two_rows(world);
        for index in 0..5000 {
            let key = KernelKey { seed: world, completion: 0, stream: index };
            let token = gumbel_argmax(&target_prob, key);
            shared += f64::from(u8::from(gumbel_argmax(&draft_prob, key) == token)) / 1e5;
            let other = noise::uniform(KernelKey { stream: index | 1 << 56, ..key }, 0);
            independent += f64::from(u8::from(sample(&draft_prob, other) == token)) / 1e5;
        }
        let overlap: f32 = target_prob.iter().zip(&draft_prob).map(|(a, b)| a.min(*b)).sum();
        let overlap = f64::from(overlap);
        maximal += overlap / 20.0;
        // With the distance D = 1 - overlap, shared noise matches at least (1 - D) / (1 + D) of the time.
        bound += overlap / (2.0 - overlap) / 20.0;
    }
    println!("matches: shared noise {shared:.3}, independent {independent:.3}; bound {bound:.3}, maximal {maximal:.3}");
    assert!(shared > 2.0 * independent && shared > bound - 0.01 && shared < maximal + 0.01);
}
