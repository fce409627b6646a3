//! The law test can fail: it refuses each mistake that [`reference`](crate::reference) can make.

use foretoken_plugin_api::VerifyBatch;
use foretoken_rejection::chance::Chance;

use crate::enumerate::{deviation, law_of};
use crate::laws::{EXACT, rejection_rule};
use crate::play::{CHAINS, MODES, Shape, TREES};
use crate::reference::{Mistake, reference};
use crate::script::Script;
use crate::world::{Relation, World};

/// A mistake counts as caught where it shifts some output's probability by a thousand times the tolerance.
const CAUGHT: f64 = 1000.0 * EXACT;

fn world(relation: Relation) -> World {
    World::new(3, 2, relation)
}

/// The worst deviation over a chain and a tree, drawn in each way, one and two tokens.
fn worst(mistake: Mistake) -> f64 {
    let shapes = [CHAINS[2], TREES[0]].into_iter().flat_map(|parents| MODES.map(|mode| Shape::new(parents, mode)));
    let mut worst = 0.0f64;
    for shape in shapes {
        for horizon in [1, 2] {
            let rule = &mut |batch: &VerifyBatch<'_>, chance: &mut dyn Chance| reference(batch, chance, mistake);
            worst = worst.max(deviation(&world(Relation::Random), &shape, horizon, rule));
        }
    }
    worst
}

macro_rules! caught {
    ($($name:ident: $mistake:ident),+ $(,)?) => {$(
        #[test]
        fn $name() {
            let found = worst(Mistake::$mistake);
            println!("{:?}: {found:.1e} off", Mistake::$mistake);
            assert!(found > CAUGHT, "{found:.1e}");
        }
    )+};
}

caught! {
    a_missing_clamp_is_caught: NoClamp,
    a_residual_not_renormalised_is_caught: ResidualNotRenormalised,
    a_draft_prob_not_renormalised_is_caught: DraftNotRenormalised,
    target_and_draft_swapped_are_caught: TargetAndDraftSwapped,
    a_draft_prob_ignored_in_the_residual_is_caught: DraftIgnoredInResidual,
    a_draft_prob_ignored_in_acceptance_is_caught: DraftIgnoredInAcceptance,
    noise_reused_for_the_residual_is_caught: NoiseReusedForResidual,
    noise_reused_between_nodes_is_caught: NoiseReusedBetweenNodes,
    a_bonus_from_the_wrong_row_is_caught: RowOfTheParent,
}

#[test]
fn the_reference_without_a_mistake_is_exact() {
    let found = worst(Mistake::None);
    assert!(found < EXACT, "{found:.1e}");
}

/// Not only the law: kept path and next token agree, for every combination of answers.
#[test]
fn the_rule_decides_as_the_reference() {
    for (parents, mode) in [CHAINS[3], TREES[2]].into_iter().flat_map(|parents| MODES.map(|mode| (parents, mode))) {
        let mut rule = rejection_rule();
        let mut compared = 0;
        law_of(&world(Relation::Random), &Shape::new(parents, mode), 1, &mut |batch, chance| {
            let mut script = Script::Record(chance, Vec::new());
            let decided = rule(batch, &mut script);
            assert_eq!(reference(batch, &mut script.replay(), Mistake::None), decided);
            compared += 1;
            decided
        });
        assert!(compared >= 8, "{compared}");
    }
}
