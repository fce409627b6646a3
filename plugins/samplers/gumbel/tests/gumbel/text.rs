//! One seed, one text, whatever is drafted; and greedy text.

use foretoken_gumbel::Gumbel;
use foretoken_plugin_api::testkit::ToyModel;
use foretoken_plugin_api::{NoiseKey, SamplingParams, Token};

use crate::game::{DRAFTERS, Drafter, Game, sampled};

const LEN: usize = 3000;
const SAMPLED: [SamplingParams; 3] = [
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
    SamplingParams { temperature: 0.8, top_k: 5, top_p: 0.9, min_p: 0.02 },
    SamplingParams { temperature: 1.7, top_k: 0, top_p: 0.7, min_p: 0.0 },
];

#[test]
fn a_seed_has_one_text_under_every_drafter() {
    let toy = ToyModel::new(8, 3);
    for (seed, sampling) in (0..).zip(SAMPLED) {
        let noise = NoiseKey::new(seed, 1);
        let mut plain: Vec<Token> = Vec::new();
        (0..LEN).for_each(|_| plain.push(sampled(&toy, &plain, sampling, noise)));
        for drafter in DRAFTERS {
            let game = Game { toy: &toy, sampling, noise };
            let (text, steps) = game.decode(&mut Gumbel::default(), drafter, LEN);
            assert_eq!(text, plain, "{drafter:?}, {sampling:?}");
            let expected = match drafter {
                Drafter::None | Drafter::Wrong => LEN..=LEN,
                Drafter::Perfect => LEN / 5..=LEN / 5,
                Drafter::Poor | Drafter::Tree => LEN / 4..=LEN - 100,
            };
            assert!(expected.contains(&steps), "{drafter:?}: {steps} steps");
        }
    }
}

#[test]
fn another_seed_or_completion_has_another_text() {
    let toy = ToyModel::new(8, 3);
    let text = |noise| {
        let game = Game { toy: &toy, sampling: SamplingParams::default(), noise };
        game.decode(&mut Gumbel::default(), Drafter::Poor, 50).0
    };
    let base = text(NoiseKey::new(1, 0));
    assert!(base != text(NoiseKey::new(2, 0)) && base != text(NoiseKey::new(1, 1)));
}

#[test]
fn greedy_text_is_the_argmax_path_whatever_is_drafted() {
    let toy = ToyModel::new(8, 3);
    let plain = toy.greedy_continuation(&[], LEN);
    let game = Game { toy: &toy, sampling: SamplingParams::GREEDY, noise: NoiseKey::new(1, 0) };
    for drafter in DRAFTERS {
        assert_eq!(game.decode(&mut Gumbel::default(), drafter, LEN).0, plain, "{drafter:?}");
    }
}
