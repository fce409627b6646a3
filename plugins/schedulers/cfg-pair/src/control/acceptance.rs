//! What a budget of nodes gives: nodes drafted and nodes kept, by the budget allowed.
//!
//! Budgets and not draft lengths, because a proposer may draft less than it is allowed where it is unsure, and a budget
//! that leaves it that choice is worth more than one that cuts its best drafts. What a larger budget kept bounds what a
//! smaller one would have: of a chain its beginning is left, of a tree its best part. So a budget that was not tried is
//! taken for as good as that bound; trying it tells. What is beyond all that was tried is hoped for.

/// The budgets that are told apart.
pub const BUDGETS: [u32; 12] = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64];
/// Share of the first node's guesses that are right, before any is seen, and of each further one's.
const GUESSED: f32 = 0.7;
/// Steps after which a mean forgets.
const MEMORY: f32 = 96.0;
/// What is left of a budget's tries after a step with another one: so a few bad tries do not rule it out for ever.
const FADES: f32 = 0.99;
/// Tries after which a budget's own mean counts alone.
const ENOUGH: f32 = 16.0;
/// What other sequences tell of one with no tries of its own counts so much less.
const DIFFER: f32 = 0.25;

#[derive(Debug, Clone, Copy, Default)]
struct Mean {
    drafted: f32,
    kept: f32,
    weight: f32,
}

impl Mean {
    fn add(&mut self, drafted: f32, kept: f32) {
        self.weight = (self.weight + 1.0).min(MEMORY);
        self.drafted += (drafted - self.drafted) / self.weight;
        self.kept += (kept - self.kept) / self.weight;
    }

    /// How much it counts.
    fn share(&self) -> f32 {
        (self.weight / ENOUGH).min(1.0)
    }
}

/// Nodes that a budget is expected to draft and to keep.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Expected {
    /// Drafted.
    pub drafted: f32,
    /// Kept.
    pub kept: f32,
}

/// How often the last of some nodes is kept, and a further one if the last one is: beyond what was seen, guesses go on
/// being right as often, yet not more often than those of a chain would be of which as many were kept. What two budgets
/// kept is known by a few tries each, so what the larger one kept more says little by itself.
#[derive(Debug, Clone, Copy)]
struct Going {
    last: f32,
    on: f32,
}

impl Going {
    /// Nodes expected to be kept of the next `width`.
    fn sum(&self, width: f32) -> f32 {
        self.last * self.on * (1.0 - self.on.powf(width)) / (1.0 - self.on)
    }

    /// Moves behind the next `width` nodes, of which `sum` were kept; what was `seen` says how it goes on.
    fn follow(&mut self, sum: f32, width: f32, seen: bool) {
        if seen {
            let share = (sum.max(0.0) / width / self.last.max(1e-3)).min(0.98);
            self.on = if width > 1.0 { share.powf(2.0 / (width + 1.0)) } else { share };
        }
        self.last *= self.on.powf(width);
    }

    /// Bounds what is to come by a chain that kept as many.
    fn bound(&mut self, seen: Expected) {
        let (mut least, mut most) = (0.0, self.on);
        for _ in 0..8 {
            let on = f32::midpoint(least, most);
            let kept = on * (1.0 - on.powf(seen.drafted)) / (1.0 - on);
            *if kept < seen.kept { &mut least } else { &mut most } = on;
        }
        self.on = most;
    }
}

/// The place in [`BUDGETS`] of the least one that `budget` fits.
pub fn level(budget: u32) -> usize {
    BUDGETS.partition_point(|most| *most < budget).min(BUDGETS.len() - 1)
}

/// What was seen, by budget.
#[derive(Debug, Clone, Copy, Default)]
pub struct Acceptance {
    tried: [Mean; BUDGETS.len()],
    bound: [Mean; BUDGETS.len()],
}

impl Acceptance {
    /// A step that was allowed `budget` nodes, drafted some and kept some.
    pub fn add(&mut self, budget: u32, drafted: u32, kept: u32) {
        let own = level(budget);
        self.tried.iter_mut().chain(&mut self.bound).for_each(|mean| mean.weight *= FADES);
        self.tried[own].add(drafted as f32, kept as f32);
        for (place, most) in BUDGETS.iter().enumerate().take(own) {
            self.bound[place].add(drafted.min(*most) as f32, kept.min(*most) as f32);
        }
    }

    /// What each budget up to the one that fits `most` nodes is expected to give; `others`, what all sequences gave, counts
    /// as some tries of this one.
    pub fn expected(&self, others: Option<&Self>, most: u32) -> [Expected; BUDGETS.len()] {
        let mut expected = [Expected::default(); BUDGETS.len()];
        let (mut before, mut kept) = (Expected::default(), Going { last: 1.0, on: GUESSED });
        let counts = if others.is_some() { 1.0 - DIFFER * self.doubt(ENOUGH) } else { 0.0 };
        let others = others.unwrap_or(self);
        // How often the last node is drafted: a proposer may have less than it is allowed.
        let (mut drafts, mut was_seen) = (1.0, false);
        let last = level(most);
        for (place, budget) in BUDGETS.iter().enumerate().take(last + 1) {
            let width = *budget as f32 - if place > 0 { BUDGETS[place - 1] as f32 } else { 0.0 };
            let told = [others.bound[place], others.tried[place]].map(|mean| (mean, counts * mean.share()));
            let own = [self.bound[place], self.tried[place]].map(|mean| (mean, mean.share()));
            let seen = told.into_iter().chain(own);
            let doubt: f32 = seen.clone().map(|(_, share)| 1.0 - share).product();
            let is_seen = doubt < 0.5;
            // A proposer that drafts less than it may where it is unsure is right the more often where it does not.
            if was_seen && !is_seen && before.drafted > 0.9 * BUDGETS[place - 1] as f32 {
                kept.bound(before);
            }
            was_seen = is_seen;
            let mut mean = Expected { drafted: before.drafted + drafts * width, kept: before.kept + kept.sum(width) };
            for (seen, share) in seen {
                mean.drafted += share * (seen.drafted - mean.drafted);
                mean.kept += share * (seen.kept - mean.kept);
            }
            // A budget that was tried is known; of the others a larger one is worth a smaller one at least.
            let floor = if self.is_known(place) { Expected::default() } else { before };
            let now = Expected { drafted: mean.drafted.max(before.drafted), kept: mean.kept.max(floor.kept) };
            kept.follow(now.kept - before.kept, width, is_seen);
            drafts = (now.drafted - before.drafted) / width;
            expected[place] = now;
            before = now;
        }
        let mut bound = f32::INFINITY;
        for (place, expected) in expected[..=last].iter_mut().enumerate().rev() {
            expected.kept = expected.kept.min(bound);
            if self.is_known(place) {
                bound = expected.kept;
            }
        }
        expected
    }

    /// What is missing of as many tries as are enough to tell, as a share of them.
    pub fn doubt(&self, enough: f32) -> f32 {
        1.0 - self.tried.iter().map(|mean| mean.weight).sum::<f32>().min(enough) / enough
    }

    fn is_known(&self, place: usize) -> bool {
        self.tried[place].weight >= ENOUGH
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_larger_budget_bounds_a_smaller_one_and_its_own_tries_decide() {
        let mut seen = Acceptance::default();
        (0..40).for_each(|_| seen.add(24, 24, 2));
        let bound = seen.expected(None, 64);
        assert_eq!((bound[level(8)].kept, bound[level(8)].drafted), (2.0, 8.0), "at most what 24 kept");
        (0..20).for_each(|_| seen.add(8, 8, 1));
        assert_eq!(seen.expected(None, 64)[level(8)].kept, 1.0);
        assert_eq!(seen.expected(None, 64)[level(24)].kept, 2.0);
        assert_eq!(seen.expected(None, 64)[level(1)], Expected { drafted: 1.0, kept: 1.0 });
    }

    #[test]
    fn what_was_never_tried_is_hoped_for_and_others_tell() {
        let fresh = Acceptance::default().expected(None, 64);
        assert!(fresh[0].kept > 0.6 && fresh.windows(2).all(|pair| pair[1].kept >= pair[0].kept));
        let mut others = Acceptance::default();
        (0..50).for_each(|_| others.add(4, 4, 0));
        let mut own = Acceptance::default();
        let told = own.expected(Some(&others), 64);
        assert!(told[0].kept < 0.3 * fresh[0].kept && told[0].kept > 0.1, "{told:?}");
        (0..16).for_each(|_| own.add(1, 1, 0));
        let told = own.expected(Some(&others), 64);
        // Beyond the largest budget tried, its last nodes say what further ones are worth.
        assert!(told[level(4)].kept < 0.01 && told[level(16)].kept < 0.01, "{told:?}");
    }

    #[test]
    fn what_a_few_tries_kept_more_is_not_hoped_to_go_on() {
        let mut seen = Acceptance::default();
        (0..100).for_each(|step| seen.add(1, 1, step % 2));
        (0..14).for_each(|step| seen.add(2, 2, step % 2 * 2));
        let kept = seen.expected(None, 64).map(|expected| expected.kept);
        // Whenever the first node was kept the second was; but a chain that keeps 1 of 2 nodes has 0.62 a node, 1.6 in all.
        assert!(kept[level(2)] > 0.85 && kept[level(32)] < 2.0, "{kept:?}");
    }

    #[test]
    fn a_text_near_its_end_is_still_worth_smaller_budgets() {
        let mut seen = Acceptance::default();
        (0..40).for_each(|_| seen.add(16, 16, 6));
        let kept = seen.expected(None, 12).map(|expected| expected.kept);
        assert!(kept[level(12)] == 6.0 && kept[level(4)] == 4.0, "{kept:?}");
    }

    #[test]
    fn a_proposer_that_is_silent_costs_no_rows() {
        let mut seen = Acceptance::default();
        (0..50).for_each(|step| seen.add(8, if step % 5 == 0 { 8 } else { 0 }, if step % 5 == 0 { 6 } else { 0 }));
        let expected = seen.expected(None, 64)[level(8)];
        assert!((expected.drafted - 1.6).abs() < 0.3 && (expected.kept - 1.2).abs() < 0.3, "{expected:?}");
    }
}
