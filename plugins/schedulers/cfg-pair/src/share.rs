//! An even split of one budget over several wants.
//!
//! Max-min fair: everyone gets the same level or all of what they want, whichever is less. The alternative, all that the
//! first in order wants, starves the drafts of later sequences when slots are short, and drafts lose value with depth:
//! the fifth node of one sequence is worth less than the first of another.

/// The largest level at which the sum of `min(want, level) * cost` over `(want, cost)` fits `budget`, and what the budget
/// has left then: too little for one more each, so it goes one each to the first who want more.
pub fn even_level(wants: impl Iterator<Item = (u32, u32)> + Clone, budget: u32) -> (u32, u32) {
    let price = |(want, cost): (u32, u32), level: u32| u64::from(want.min(level)) * u64::from(cost);
    let total = |level: u32| wants.clone().map(|want| price(want, level)).sum::<u64>();
    let most = wants.clone().map(|(want, _)| want).max().unwrap_or(0);
    let (mut fits, mut above) = (0, u64::from(most) + 1);
    while above - fits > 1 {
        let middle = fits.midpoint(above);
        if total(middle as u32) <= u64::from(budget) {
            fits = middle;
        } else {
            above = middle;
        }
    }
    (fits as u32, (u64::from(budget) - total(fits as u32)) as u32)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn small_wants_leave_more_for_the_others() {
        let level = |wants: &[u32], budget| even_level(wants.iter().map(|want| (*want, 1)), budget);
        assert_eq!(level(&[5, 1, 5], 9), (4, 0));
        assert_eq!(level(&[5, 1, 5], 8), (3, 1));
        assert_eq!(level(&[5, 1, 5], 20), (5, 9));
        assert_eq!(level(&[5, 5], 1), (0, 1));
        assert_eq!(level(&[], 3), (0, 3));
        assert_eq!(even_level([(5, 2), (5, 1)].into_iter(), 10), (3, 1), "a pair's node counts twice");
    }

    proptest! {
        #[test]
        fn the_level_fits_and_the_next_does_not(
            wants in prop::collection::vec((0u32..40, 1u32..3), 1..20), budget in 0u32..400
        ) {
            let (level, left) = even_level(wants.iter().copied(), budget);
            let total = |level: u32| wants.iter().map(|(want, cost)| want.min(&level) * cost).sum::<u32>();
            prop_assert_eq!(total(level) + left, budget);
            let most = wants.iter().map(|(want, _)| *want).max().unwrap_or(0);
            prop_assert!(level == most || total(level + 1) > budget);
        }
    }
}
