//! What a budget of nodes gives: nodes drafted and nodes kept, by the budget allowed.
//!
//! Budgets and not draft lengths, because a proposer may draft less than it is allowed where it is unsure, and a budget
//! that leaves it that choice is worth more than one that cuts its best drafts. What a larger budget kept bounds what a
//! smaller one would have: of a chain its beginning is left, of a tree its best part. So a budget that was not tried is
//! taken for as good as that bound; trying it tells.

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
/// being right as often.
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
        // How often the last node is drafted: a proposer may have less than it is allowed.
        let mut drafts = 1.0;
        for (place, budget) in BUDGETS.iter().enumerate().take(level(most) + 1) {
            let width = *budget as f32 - if place > 0 { BUDGETS[place - 1] as f32 } else { 0.0 };
            let hoped = Expected { drafted: before.drafted + drafts * width, kept: before.kept + kept.sum(width) };
            let (mut mean, mut doubt) = (hoped, 1.0);
            for one in others.into_iter().chain([self]) {
                for seen in [&one.bound[place], &one.tried[place]] {
                    let share = (seen.weight / ENOUGH).min(1.0);
                    doubt *= 1.0 - share;
                    mean.drafted += share * (seen.drafted - mean.drafted);
                    mean.kept += share * (seen.kept - mean.kept);
                }
            }
            // A budget that was tried is known; of the others a larger one is worth a smaller one at least.
            let floor = if self.is_known(place) { Expected::default() } else { before };
            let now = Expected { drafted: mean.drafted.max(before.drafted), kept: mean.kept.max(floor.kept) };
            kept.follow(now.kept - before.kept, width, doubt < 0.5);
            drafts = (now.drafted - before.drafted) / width;
            expected[place] = now;
            before = now;
        }
        let mut most = f32::INFINITY;
        for (place, expected) in expected.iter_mut().enumerate().rev() {
            expected.kept = expected.kept.min(most);
            if self.is_known(place) {
                most = expected.kept;
            }
        }
        expected
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
        assert!(Acceptance::default().expected(Some(&others), 64)[level(4)].kept < 0.01);
        // Beyond the largest budget tried, its last nodes say what further ones are worth.
        assert!(Acceptance::default().expected(Some(&others), 64)[level(16)].kept < 0.01);
    }

    #[test]
    fn a_proposer_that_is_silent_costs_no_rows() {
        let mut seen = Acceptance::default();
        (0..50).for_each(|step| seen.add(8, if step % 5 == 0 { 8 } else { 0 }, if step % 5 == 0 { 6 } else { 0 }));
        let expected = seen.expected(None, 64)[level(8)];
        assert!((expected.drafted - 1.6).abs() < 0.3 && (expected.kept - 1.2).abs() < 0.3, "{expected:?}");
    }
}
