//! Block verification a second time, in f64, with mistakes; and what it is worth.

use foretoken_kernels::ops::warp::reference;
use foretoken_plugin_api::types::sampling::Purpose;
use foretoken_plugin_api::{ChildMode, NO_PARENT, NodeId, Token, VerifyBatch};
use foretoken_rejection::chance::{Chance, Philox};

use crate::enumerate::{deviation, law_of};
use crate::laws::{EXACT, block_rule, rejection_rule};
use crate::play::{CHAINS, Rule, Shape, play};
use crate::script::Script;
use crate::world::{Relation, World};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// The next token comes from the plain difference of the rows, as one large engine shipped it.
    WeightForgottenInResidual,
    WeightNotCapped,
    /// A prefix is kept with its weight, whatever the row after it.
    KeptWithWeightAlone,
    /// The first refused prefix ends the draft.
    FirstRefusalEnds,
}

/// Algorithm 2 of 2403.10444 for the batch's only sequence: a drawn chain.
fn algorithm_2(batch: &VerifyBatch<'_>, chance: &mut dyn Chance, mistake: Mistake) -> (Vec<NodeId>, Token) {
    let sequence = &batch.sequences()[0];
    let tokens = sequence.tokens();
    let len = tokens.len();
    let after = |index: usize| index.checked_sub(1).map(|node| node as NodeId);
    let target = |i: usize| reference::warp(batch.logits(sequence, after(i)), &sequence.sampling.into());
    let draft = |i: usize| batch.draft_prob(sequence, after(i)).expect("recorded");
    let excess = |i: usize, weight: f64| -> Vec<f64> {
        target(i).iter().zip(draft(i)).map(|(t, d)| (weight * t - f64::from(*d)).max(0.0)).collect()
    };
    let (mut keep_len, mut weight, mut kept_weight) = (0, 1.0f64, 1.0);
    for i in 1..=len {
        let token = tokens[i - 1] as usize;
        weight *= target(i - 1)[token] / f64::from(draft(i - 1)[token]);
        if mistake != Mistake::WeightNotCapped {
            weight = weight.min(1.0);
        }
        let mass = if i < len { excess(i, weight).iter().sum() } else { 0.0 };
        let keep_probability = match i < len && mistake != Mistake::KeptWithWeightAlone {
            true if mass + 1.0 - weight > 1e-12 => mass / (mass + 1.0 - weight),
            _ => weight,
        };
        let key = sequence.noise.for_node(sequence.output_index, i as u32, Purpose::Accept);
        if weight > 0.0 && chance.coin(key, keep_probability) {
            (keep_len, kept_weight) = (i, weight);
        } else if weight <= 0.0 || mistake == Mistake::FirstRefusalEnds {
            break;
        }
    }
    let scale = if mistake == Mistake::WeightForgottenInResidual { 1.0 } else { kept_weight };
    let left = if keep_len < len { excess(keep_len, scale) } else { target(keep_len) };
    let from = if left.iter().sum::<f64>() > 1e-6 { left } else { target(keep_len) };
    let weights: Vec<f32> = from.iter().map(|weight| *weight as f32).collect();
    let key = sequence.noise.for_node(sequence.output_index, keep_len as u32, Purpose::Residual);
    ((0..keep_len as NodeId).collect(), chance.draw(key, &weights))
}

/// The deviation over chains of two, for two tokens.
fn worst(mistake: Mistake) -> f64 {
    let shape = Shape::new(CHAINS[2], ChildMode::WithReplacement);
    let rule = &mut |batch: &VerifyBatch<'_>, chance: &mut dyn Chance| algorithm_2(batch, chance, mistake);
    let worlds = (0..4).map(|seed| World::new(5, seed, Relation::Random));
    let found = worlds.map(|world| deviation(&world, &shape, 2, rule)).fold(0.0, f64::max);
    println!("block, {mistake:?}: {found:.1e} off");
    found
}

#[test]
fn algorithm_2_is_exact_and_each_mistake_in_it_is_caught() {
    assert!(worst(Mistake::None) < EXACT);
    for mistake in [
        Mistake::WeightForgottenInResidual,
        Mistake::WeightNotCapped,
        Mistake::KeptWithWeightAlone,
        Mistake::FirstRefusalEnds,
    ] {
        assert!(worst(mistake) > 1000.0 * EXACT, "{mistake:?}");
    }
}

#[test]
fn the_rule_decides_as_algorithm_2() {
    let mut rule = block_rule();
    let mut compared = 0;
    let shape = Shape::new(CHAINS[3], ChildMode::WithReplacement);
    law_of(&World::new(3, 2, Relation::Random), &shape, 1, &mut |batch, chance| {
        let mut script = Script::Record(chance, Vec::new());
        let decided = rule(batch, &mut script);
        assert_eq!(algorithm_2(batch, &mut script.replay(), Mistake::None), decided);
        compared += 1;
        decided
    });
    assert!(compared > 20, "{compared}");
}

/// The mean number of kept nodes of the first step.
fn kept(world: &World, shape: &Shape, rule: &mut Rule<'_>) -> f64 {
    let mut kept = 0;
    for seed in 0..20_000 {
        play(world, shape, 1, seed, &mut Philox, &mut |batch, chance| {
            let verdict = rule(batch, chance);
            kept += verdict.0.len();
            verdict
        });
    }
    kept as f64 / 20_000.0
}

#[test]
fn block_keeps_more_than_rejection_over_chains() {
    static CHAIN: [NodeId; 6] = [NO_PARENT, 0, 1, 2, 3, 4];
    let shape = Shape::new(&CHAIN, ChildMode::WithReplacement);
    let (mut rejection, mut block) = (0.0, 0.0);
    for seed in 0..8 {
        let world = World::new(6, seed, Relation::Random);
        rejection += kept(&world, &shape, &mut rejection_rule()) / 8.0;
        block += kept(&world, &shape, &mut block_rule()) / 8.0;
    }
    println!("kept of 6: rejection {rejection:.3}, block {block:.3}");
    assert!(block > 1.02 * rejection, "{block} against {rejection}");
}

#[test]
fn an_identical_proposer_is_always_believed() {
    for rule in [&mut rejection_rule() as &mut Rule<'_>, &mut block_rule()] {
        let world = World::new(6, 5, Relation::Identical);
        let found = kept(&world, &Shape::new(CHAINS[3], ChildMode::WithReplacement), rule);
        assert!(found > 2.999, "{found}");
    }
}
