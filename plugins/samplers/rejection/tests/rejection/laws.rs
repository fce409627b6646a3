//! The output's law equals the target's: exactly, and with the noise that runs in production.

use std::collections::HashMap;

use foretoken_plugin_api::{ChildMode, NodeId, Sampler, SamplingParams, Token, VerifyBatch};
use foretoken_rejection::block::block;
use foretoken_rejection::chance::{Chance, Philox};
use foretoken_rejection::rows::Rows;
use foretoken_rejection::walk::recursive;
use foretoken_rejection::{Block, Rejection};

use crate::enumerate::deviation;
use crate::play::{CHAINS, MODES, Rule, Shape, TREES, Through, play, verdict};
use crate::world::{RELATIONS, Relation, World};

/// Rows are f32: probabilities are off by some 1e-7.
pub const EXACT: f64 = 1e-6;

pub fn rejection_rule() -> impl FnMut(&VerifyBatch<'_>, &mut dyn Chance) -> (Vec<NodeId>, Token) {
    let mut rows = Rows::default();
    move |batch, chance| {
        let mut keep = Vec::new();
        let sequence = &batch.sequences()[0];
        let token = recursive(&mut rows, batch, sequence, &mut Through(chance), |node| keep.push(node));
        (keep, token.expect("rows are distributions"))
    }
}

pub fn block_rule() -> impl FnMut(&VerifyBatch<'_>, &mut dyn Chance) -> (Vec<NodeId>, Token) {
    let mut rows = Rows::default();
    move |batch, chance| {
        let mut keep = Vec::new();
        let sequence = &batch.sequences()[0];
        let token = block(&mut rows, batch, sequence, &mut Through(chance), |node| keep.push(node));
        (keep, token.expect("rows are distributions"))
    }
}

/// The worst deviation of both rules over all relations, modes and some seeds.
fn assert_exact(parents: &'static [NodeId], vocab: usize, horizon: usize, seeds: u64) {
    let mut worst = [0.0f64; 2];
    for (relation, mode) in RELATIONS.into_iter().flat_map(|relation| MODES.map(|mode| (relation, mode))) {
        for seed in 0..seeds {
            let (world, shape) = (World::new(vocab, seed, relation), Shape::new(parents, mode));
            let found = [
                deviation(&world, &shape, horizon, &mut rejection_rule()),
                deviation(&world, &shape, horizon, &mut block_rule()),
            ];
            assert!(found.iter().all(|found| *found < EXACT), "{found:?}: {world:?}, {shape:?}");
            worst = [worst[0].max(found[0]), worst[1].max(found[1])];
        }
    }
    let [rejection, block] = worst;
    let parents: Vec<i32> = parents.iter().map(|parent| *parent as i32).collect();
    println!("{parents:?}, vocab {vocab}, horizon {horizon}: {rejection:.1e} and {block:.1e} off (rejection, block)");
}

#[test]
fn the_law_of_one_token_is_exact_for_chains() {
    CHAINS.into_iter().for_each(|parents| assert_exact(parents, 4, 1, 4));
}

#[test]
fn the_joint_law_of_two_tokens_is_exact_for_chains() {
    CHAINS.into_iter().for_each(|parents| assert_exact(parents, 3, 2, 3));
}

#[test]
fn the_joint_law_of_four_tokens_is_exact_for_a_chain_of_two() {
    assert_exact(CHAINS[2], 3, 4, 1);
}

#[test]
fn the_law_of_one_token_is_exact_for_trees() {
    TREES[..3].iter().for_each(|parents| assert_exact(parents, 4, 1, 2));
    assert_exact(TREES[3], 3, 1, 2);
}

#[test]
fn the_joint_law_of_two_tokens_is_exact_for_trees() {
    TREES[..3].iter().for_each(|parents| assert_exact(parents, 3, 2, 1));
}

#[test]
fn the_law_is_exact_over_eight_tokens() {
    assert_exact(CHAINS[2], 8, 1, 1);
    assert_exact(TREES[0], 8, 1, 1);
}

#[test]
fn the_law_is_exact_under_truncation_and_temperature() {
    let sampling = SamplingParams { temperature: 0.7, top_k: 3, top_p: 0.9, min_p: 0.05 };
    for parents in [CHAINS[2], TREES[2]] {
        for mode in MODES {
            let world = World { sampling, ..World::new(5, 11, Relation::Random) };
            for rule in [&mut rejection_rule() as &mut Rule<'_>, &mut block_rule()] {
                let found = deviation(&world, &Shape::new(parents, mode), 1, rule);
                assert!(found < EXACT, "{found:.1e}: {parents:?}, {mode:?}");
            }
        }
    }
}

#[test]
fn the_law_is_exact_where_chains_end_early_by_their_distribution() {
    for seed in 0..4 {
        let shape = Shape { stop_below: 0.45, ..Shape::new(CHAINS[3], ChildMode::WithReplacement) };
        let world = World::new(3, seed, Relation::Random);
        for rule in [&mut rejection_rule() as &mut Rule<'_>, &mut block_rule()] {
            let found = deviation(&world, &shape, 2, rule);
            assert!(found < EXACT, "{found:.1e}: seed {seed}");
        }
    }
}

/// The largest distance of observed from expected shares, in standard errors.
fn standard_errors(world: &World, shape: &Shape, samples: u64, sampler: &mut impl Sampler) -> f64 {
    let mut counts: HashMap<Vec<Token>, u64> = HashMap::new();
    for seed in 0..samples {
        let output = play(world, shape, 2, seed, &mut Philox, &mut |batch, _| verdict(sampler, batch));
        *counts.entry(output).or_insert(0) += 1;
    }
    let law = world.law(2);
    assert_eq!(counts.keys().filter(|output| !law.iter().any(|(o, mass)| o == *output && *mass > 0.0)).count(), 0);
    let samples = samples as f64;
    let distance = |(output, mass): &(Vec<Token>, f64)| {
        let share = counts.get(output).map_or(0.0, |count| *count as f64 / samples);
        if *mass > 0.0 { (share - mass).abs() / (mass * (1.0 - mass) / samples).sqrt() } else { 0.0 }
    };
    law.iter().map(distance).fold(0.0, f64::max)
}

#[test]
fn histograms_of_two_tokens_agree_within_standard_errors() {
    for (parents, mode) in [
        (CHAINS[2], ChildMode::WithReplacement),
        (CHAINS[2], ChildMode::Deterministic),
        (TREES[3], ChildMode::WithReplacement),
        (TREES[3], ChildMode::WithoutReplacement),
        (TREES[2], ChildMode::Deterministic),
    ] {
        let (world, shape) = (World::new(5, 3, Relation::Random), Shape::new(parents, mode));
        let rejection = standard_errors(&world, &shape, 200_000, &mut Rejection::default());
        let block = standard_errors(&world, &shape, 200_000, &mut Block::default());
        println!("{parents:?}, {mode:?}: {rejection:.2} and {block:.2} standard errors (rejection, block)");
        assert!(rejection < 4.5 && block < 4.5, "{rejection}, {block}: {parents:?}, {mode:?}");
    }
}
