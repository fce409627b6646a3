//! The exact law of a game of chance: it is played again and again, once for every combination of answers.
//!
//! Each noise key stands for one uniform number, of which the answers so far leave an interval. A key asked twice is
//! therefore answered from what is left of it: noise that a rule reuses is seen as the dependence it is.

use std::collections::HashMap;

use foretoken_plugin_api::{NoiseKey, Token};
use foretoken_rejection::chance::Chance;

use crate::play::{Rule, Shape, play};
use crate::world::World;

#[derive(Default)]
struct Enumerator {
    /// Per question: the answer to give, and how many there are.
    script: Vec<(usize, usize)>,
    asked: usize,
    intervals: HashMap<u64, (f64, f64)>,
    weight: f64,
}

impl Enumerator {
    /// Answers with one of the segments that `cuts` (ascending, from 0 to 1) make, as far as `key` still allows it.
    fn choose(&mut self, key: NoiseKey, cuts: &[f64]) -> usize {
        let (low, high) = *self.intervals.get(&key.stream).unwrap_or(&(0.0, 1.0));
        let inside = |segment: &usize| (cuts[*segment].max(low), cuts[segment + 1].min(high));
        let possible: Vec<usize> = (0..cuts.len() - 1).filter(|s| inside(s).1 > inside(s).0).collect();
        if self.asked == self.script.len() {
            self.script.push((0, possible.len()));
        }
        let answer = possible[self.script[self.asked].0];
        self.asked += 1;
        let left = inside(&answer);
        self.weight *= (left.1 - left.0) / (high - low);
        self.intervals.insert(key.stream, left);
        answer
    }

    /// The next combination; false after the last.
    fn advance(&mut self) -> bool {
        while let Some((answer, answers)) = self.script.pop() {
            if answer + 1 < answers {
                self.script.push((answer + 1, answers));
                return true;
            }
        }
        false
    }
}

impl Chance for Enumerator {
    fn coin(&mut self, key: NoiseKey, probability: f64) -> bool {
        let probability = if probability > 0.0 { probability.min(1.0) } else { 0.0 };
        self.choose(key, &[0.0, probability, 1.0]) == 0
    }

    fn draw(&mut self, key: NoiseKey, weights: &[f32]) -> Token {
        let total: f64 = weights.iter().map(|weight| f64::from(weight.max(0.0))).sum();
        let mut cuts = vec![0.0];
        for weight in weights {
            cuts.push(cuts.last().expect("starts with 0") + f64::from(weight.max(0.0)) / total);
        }
        *cuts.last_mut().expect("starts with 0") = 1.0;
        self.choose(key, &cuts) as Token
    }
}

/// The law of the first `horizon` tokens under `rule`.
pub fn law_of(world: &World, shape: &Shape, horizon: usize, rule: &mut Rule<'_>) -> HashMap<Vec<Token>, f64> {
    let mut law = HashMap::new();
    let mut chance = Enumerator::default();
    loop {
        (chance.asked, chance.weight) = (0, 1.0);
        chance.intervals.clear();
        let output = play(world, shape, horizon, 0, &mut chance, rule);
        *law.entry(output).or_insert(0.0) += chance.weight;
        if !chance.advance() {
            return law;
        }
    }
}

/// How far the law under `rule` is from the target's, at the worst output.
pub fn deviation(world: &World, shape: &Shape, horizon: usize, rule: &mut Rule<'_>) -> f64 {
    let mut law = law_of(world, shape, horizon, rule);
    let missing = |(output, mass): (Vec<Token>, f64)| (mass - law.remove(&output).unwrap_or(0.0)).abs();
    let worst = world.law(horizon).into_iter().map(missing).fold(0.0, f64::max);
    law.into_values().fold(worst, f64::max)
}
