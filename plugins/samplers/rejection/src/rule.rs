//! The acceptance rule for the children of one node: recursive rejection sampling.
//!
//! Children are judged in drawing order against what is left of the target's row, the residual. Given the children
//! before it, the k-th one is a draw from a known distribution (draft_prob, or draft_prob without the earlier ones, or
//! one-hot), so a single accept-or-subtract step leaves "the output follows the residual" true, and by induction the
//! output follows the target. Sources: Leviathan et al. 2211.17192 for one child, SpecInfer 2305.09781 for several,
//! Jeon et al. 2402.14160 for draws without replacement.
//!
//! The residual is kept unnormalised with its mass beside it: one pass over the vocabulary per refused draw, and none
//! for a kept one.

use foretoken_plugin_api::{NodeId, Token};

/// What one parent's children were drawn from.
#[derive(Debug, Clone, Copy)]
pub enum Draft<'a> {
    /// Each child is certain: no draft_prob.
    OneHot,
    /// Independent draws from this draft_prob `[vocab]`. Equal siblings must both be nodes.
    WithReplacement(&'a [f32]),
    /// Draws from this draft_prob `[vocab]`, each renormalised without the earlier ones.
    WithoutReplacement(&'a [f32]),
}

impl Draft<'_> {
    /// The probability that a first draw is `token`.
    pub fn prob(&self, token: Token) -> f64 {
        match self {
            Self::OneHot => 1.0,
            Self::WithReplacement(draft_prob) | Self::WithoutReplacement(draft_prob) => at(draft_prob, token),
        }
    }

    /// `target_prob / draft_prob` of a first draw; 0 for a token that cannot have been drawn, so that it is refused.
    pub fn ratio(&self, target_prob: f64, token: Token) -> f64 {
        let draft_prob = self.prob(token);
        if draft_prob > 0.0 { target_prob / draft_prob } else { 0.0 }
    }
}

/// Judges `children` in order; `accept` is a coin of the given probability for a node.
///
/// `weights` `[vocab]` comes in as the target's row. Where no child is kept (or there is none), it goes out as what the
/// next token must be drawn from, unnormalised; its mass is positive.
pub fn judge(
    weights: &mut [f32],
    draft: Draft<'_>,
    children: impl Iterator<Item = (NodeId, Token)>,
    mut accept: impl FnMut(NodeId, f64) -> bool,
) -> Option<NodeId> {
    let mut residual = Residual { weights, mass: 1.0, draft_mass: 1.0, removed: 0.0 };
    for (node, token) in children {
        if accept(node, residual.acceptance(token, draft)) {
            return Some(node);
        }
        residual.reject(token, draft);
    }
    None
}

struct Residual<'a> {
    weights: &'a mut [f32],
    mass: f64,
    /// The part of draft_prob that the next child is drawn from.
    draft_mass: f64,
    /// The part that refused children took away.
    removed: f64,
}

impl Residual<'_> {
    fn acceptance(&self, token: Token, draft: Draft<'_>) -> f64 {
        draft.ratio(at(self.weights, token) / self.mass * self.draft_mass, token)
    }

    fn reject(&mut self, token: Token, draft: Draft<'_>) {
        match draft {
            Draft::OneHot => self.remove(token),
            Draft::WithReplacement(draft_prob) => self.subtract(draft_prob),
            Draft::WithoutReplacement(draft_prob) => {
                self.subtract(draft_prob);
                self.removed += at(draft_prob, token);
                // From the row itself, not from 1: what remains may be small, and then 1 is too coarse.
                self.draft_mass = sum(draft_prob) - self.removed;
            }
        }
    }

    fn remove(&mut self, token: Token) {
        let weight = std::mem::take(&mut self.weights[token as usize]);
        let mass = sum(self.weights);
        match mass > 0.0 {
            true => self.mass = mass,
            // Refusing the only token had probability 0 but for rounding: it stays.
            false => self.weights[token as usize] = weight,
        }
    }

    fn subtract(&mut self, draft_prob: &[f32]) {
        // No draft mass left: this child cannot have been drawn, and says nothing about the residual.
        if self.draft_mass > 0.0 {
            self.mass = subtract(self.weights, self.mass.recip(), draft_prob, self.draft_mass.recip());
        }
    }
}

/// `weights = max(scale * weights - draft_scale * draft_prob, 0)`; returns the new mass.
///
/// If nothing is left, `weights` stay as they were. That is safe: with both sides scaled to mass 1, one is nowhere
/// above the other only if they are equal, then every draw is accepted, and only rounding (some 1e-7) leads here. What
/// stays holds no token that the target forbids.
pub fn subtract(weights: &mut [f32], scale: f64, draft_prob: &[f32], draft_scale: f64) -> f64 {
    let mass = excess(weights, scale, draft_prob, draft_scale);
    if mass <= 0.0 {
        return sum(weights);
    }
    for (weight, draft_prob) in weights.iter_mut().zip(draft_prob) {
        *weight = over(*weight, scale, *draft_prob, draft_scale) as f32;
    }
    mass
}

/// The sum over the vocabulary of `max(scale * weights - draft_scale * draft_prob, 0)`.
pub fn excess(weights: &[f32], scale: f64, draft_prob: &[f32], draft_scale: f64) -> f64 {
    // Eight sums side by side: a single f64 sum waits for each addition before the next.
    let (weights, weights_rest) = weights.as_chunks::<8>();
    let (draft_prob, draft_rest) = draft_prob.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for (weights, draft_prob) in weights.iter().zip(draft_prob) {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += over(weights[lane], scale, draft_prob[lane], draft_scale);
        }
    }
    let rest = weights_rest.iter().zip(draft_rest).map(|(weight, draft)| over(*weight, scale, *draft, draft_scale));
    lanes.iter().sum::<f64>() + rest.sum::<f64>()
}

/// The mass of a row.
pub fn sum(row: &[f32]) -> f64 {
    let (chunks, rest) = row.as_chunks::<8>();
    let mut lanes = [0.0; 8];
    for chunk in chunks {
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += f64::from(chunk[lane]);
        }
    }
    lanes.iter().sum::<f64>() + rest.iter().map(|weight| f64::from(*weight)).sum::<f64>()
}

#[inline(always)]
fn over(weight: f32, scale: f64, draft_prob: f32, draft_scale: f64) -> f64 {
    (scale * f64::from(weight) - draft_scale * f64::from(draft_prob)).max(0.0)
}

/// One entry of a row.
pub fn at(row: &[f32], token: Token) -> f64 {
    f64::from(row[token as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEVER: fn(NodeId, f64) -> bool = |_, _| false;

    #[test]
    fn one_child_is_kept_with_the_ratio_and_leaves_the_normalised_difference() {
        let (mut weights, draft_prob) = ([0.5, 0.3, 0.2], [0.2, 0.6, 0.2]);
        let mut asked = Vec::new();
        let kept =
            judge(&mut weights, Draft::WithReplacement(&draft_prob), [(7, 1)].into_iter(), |node, probability| {
                asked.push((node, probability));
                false
            });
        assert_eq!(kept, None);
        assert!(asked[0].0 == 7 && (asked[0].1 - 0.5).abs() < 1e-7, "{asked:?}");
        assert_eq!(weights.map(|weight| (weight * 1e6).round()), [300_000.0, 0.0, 0.0]);
    }

    #[test]
    fn one_hot_children_take_only_themselves_away() {
        let mut weights = [0.5, 0.3, 0.2];
        let mut asked = Vec::new();
        judge(&mut weights, Draft::OneHot, [(0, 0), (1, 2)].into_iter(), |_, probability| {
            asked.push(probability);
            false
        });
        assert!((asked[0] - 0.5).abs() < 1e-7 && (asked[1] - 0.4).abs() < 1e-7, "{asked:?}");
        assert_eq!(weights, [0.0, 0.3, 0.0]);
    }

    #[test]
    fn without_replacement_the_second_draw_is_renormalised() {
        let mut weights = [0.1, 0.2, 0.7];
        let draft_prob = [0.5, 0.4, 0.1];
        let mut asked = Vec::new();
        judge(&mut weights, Draft::WithoutReplacement(&draft_prob), [(0, 0), (1, 1)].into_iter(), |_, probability| {
            asked.push(probability);
            false
        });
        // After token 0 the residual is one-hot at token 2, so token 1 cannot be kept.
        assert!((asked[0] - 0.2).abs() < 1e-7 && asked[1] == 0.0, "{asked:?}");
        assert!(weights[2] > 0.0 && weights[..2] == [0.0, 0.0]);
    }

    #[test]
    fn a_residual_that_only_rounding_empties_leaves_the_row() {
        let row = [0.25, 0.75, 0.0];
        for draft in [Draft::WithReplacement(&row), Draft::WithoutReplacement(&row)] {
            let mut weights = row;
            judge(&mut weights, draft, [(0, 1)].into_iter(), NEVER);
            assert_eq!(weights, row);
        }
        let mut certain = [0.0, 1.0, 0.0];
        judge(&mut certain, Draft::OneHot, [(0, 1)].into_iter(), NEVER);
        assert_eq!(certain, [0.0, 1.0, 0.0]);
    }

    #[test]
    fn an_impossible_sibling_makes_no_nan() {
        let mut weights = [0.5, 0.5, 0.0];
        let children = [(0, 2), (1, 2), (2, 0)];
        judge(&mut weights, Draft::WithoutReplacement(&[0.0, 0.0, 1.0]), children.into_iter(), NEVER);
        assert!(weights.iter().all(|weight| weight.is_finite()) && sum(&weights) > 0.0, "{weights:?}");
    }

    #[test]
    fn sums_see_every_lane_and_the_rest() {
        let row: Vec<f32> = (0..21).map(|i| i as f32).collect();
        assert_eq!(sum(&row), 210.0);
        assert_eq!(excess(&row, 2.0, &row, 1.0), 210.0);
    }
}
