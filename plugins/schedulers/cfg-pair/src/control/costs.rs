//! What a step costs: the pass by rows, with choosing and keeping tokens, and drafting by budget.
//!
//! The engine reports passes of a few sizes when it starts, and every step after that. Between sizes the cost is a line.
//! As texts grow and other processes come and go everything gets slower or faster together: that changes quickly, and each
//! pass tells it for all sizes and for drafting too. What sizes cost beside each other is the machine's, and is learned
//! slowly. Else a slow time would be taken for dear passes beside cheap drafts that were timed before.

use super::acceptance::{BUDGETS, level};

/// The sizes that are told apart: row counts. Some lie just above what matrix instructions take at once: a few rows more
/// than 16, 32 or 64 can cost a fifth.
const SIZES: [u32; 21] = [1, 2, 3, 4, 6, 8, 12, 16, 18, 24, 32, 36, 48, 64, 68, 96, 128, 192, 256, 384, 512];
/// Weight of the latest pass in all costs, once some were seen, and what more it has in its own size's, if such are seen
/// often or seldom.
const COMMON: f32 = 0.1;
const OWN: f32 = 0.03;
const SELDOM: f32 = 0.3;
/// The first steps, which are plain, tell what steps take more than what was measured before them.
const FIRST: u16 = 3;
/// Weight of the latest draft in its budget's cost.
const LATEST: f32 = 0.1;
/// A single pass more times slower than expected than this is a disturbance, and counts as this; so does a draft.
const DISTURBED: f32 = 2.0;
const DISTURBED_DRAFT: f32 = 4.0;
/// What a pass that is seldom made tells at most of its own size beside others: among drafts those are the plain steps, and
/// one disturbed one would make all drafts seem to pay for a long time.
const STRANGE: f32 = 1.1;

/// Tokens that a draft has to catch up on from which on that is what it costs: of all its sequences, and of each of many;
/// and the weight of the latest such draft.
const MANY: u32 = 32;
const MANY_EACH: u32 = 4;
const CAUGHT: f32 = 0.3;
/// Batches that are told apart when drafting is timed: by powers of two.
const BATCHES: usize = 10;

/// What a pass tells of those of its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told {
    /// What they take.
    Often,
    /// The same, where such passes are hardly made otherwise.
    Seldom,
    /// What they take at most: it found other data than its own in the caches.
    Most,
}

/// Costs in nanoseconds.
#[derive(Debug, Clone)]
pub struct Costs {
    passes: [f32; SIZES.len()],
    /// Passes of each size so far, and those that moved all costs.
    seen: [u16; SIZES.len()],
    moved: u16,
    drafts: [[f32; BUDGETS.len()]; BATCHES],
    /// Of a token that a proposer has to catch up on.
    missed: f32,
}

impl Default for Costs {
    fn default() -> Self {
        Self {
            passes: [0.0; SIZES.len()],
            seen: [0; SIZES.len()],
            moved: 0,
            drafts: [[0.0; BUDGETS.len()]; BATCHES],
            missed: 0.0,
        }
    }
}

impl Costs {
    /// Whether any pass has been seen.
    pub fn is_known(&self) -> bool {
        self.passes.iter().any(|cost| *cost > 0.0)
    }

    /// Whether steps have told what passes take in them.
    pub fn is_settled(&self) -> bool {
        self.moved >= FIRST
    }

    /// A pass of `rows` rows took `took` nanoseconds before there were any steps.
    pub fn set_pass(&mut self, rows: u32, took: f32) {
        let (place, expected) = (size(rows), self.pass(rows as f32));
        let share = if expected > 0.0 { self.pass(SIZES[place] as f32) / expected } else { 1.0 };
        self.passes[place] = took * share;
    }

    /// The pass of a step with `rows` rows took `took` nanoseconds.
    pub fn add_pass(&mut self, rows: u32, took: f32, told: Told) {
        let (place, expected) = (size(rows), self.pass(rows as f32));
        if told == Told::Most && self.passes[place] == 0.0 {
            return;
        }
        self.seen[place] = self.seen[place].saturating_add(1);
        if self.passes[place] == 0.0 {
            return self.set_pass(rows, took);
        }
        // A pass of another number of rows says what one of this size would have taken.
        let ratio = (took / expected).min(if told == Told::Most { 1.0 } else { DISTURBED });
        let own = (1.0 / f32::from(self.seen[place])).max(if told == Told::Seldom { SELDOM } else { OWN });
        // The first ones say what this engine's steps take beside the passes that were timed before it had any; later on a
        // size that has hardly been seen tells of itself.
        self.moved = self.moved.saturating_add(1);
        let common = if self.moved <= FIRST { 1.0 / f32::from(self.moved) } else { COMMON * (1.0 - own) };
        let moves = 1.0 + common * (ratio - 1.0);
        let costs = self.passes.iter_mut().chain(self.drafts.iter_mut().flatten());
        costs.chain([&mut self.missed]).for_each(|cost| *cost *= moves);
        let beside = ratio / moves;
        let beside = if told == Told::Seldom { beside.min(STRANGE) } else { beside };
        self.passes[place] *= 1.0 + own * (beside - 1.0);
    }

    /// The cost of a pass of `rows` rows; 0 if none has been seen.
    pub fn pass(&self, rows: f32) -> f32 {
        let mut seen = SIZES.iter().zip(&self.passes).filter(|(_, cost)| **cost > 0.0);
        let Some((size, cost)) = seen.next() else { return 0.0 };
        let (mut before, mut at) = ((0.0, *cost * 0.9), (*size as f32, *cost));
        for (size, cost) in seen {
            if at.0 >= rows {
                break;
            }
            // More rows never take less.
            (before, at) = (at, (*size as f32, cost.max(at.1)));
        }
        let slope = if before.0 == 0.0 && rows <= at.0 { 0.0 } else { (at.1 - before.1) / (at.0 - before.0) };
        (at.1 + slope * (rows - at.0)).max(before.1)
    }

    /// Drafting for `batch` sequences with this budget took `took` nanoseconds, `missed` tokens that were written since
    /// their last drafts included; a cold one tells how long it takes at most.
    pub fn add_draft(&mut self, batch: usize, budget: u32, missed: u32, took: f32, is_cold: bool) {
        let known = self.draft(batch, budget);
        if catches_up(batch, missed) {
            // Most of it was catching up; all of it, where drafting itself is not known.
            let each = (took - known).max(0.0) / missed as f32;
            let latest = if self.missed == 0.0 { 1.0 } else { CAUGHT };
            self.missed += latest * (each - self.missed);
            return;
        }
        if is_cold && known == 0.0 {
            return;
        }
        let most = if is_cold { known } else { f32::INFINITY };
        let took = (took - self.catch_up(missed as f32)).max(1.0).min(most);
        let cost = &mut self.drafts[bucket(batch)][level(budget)];
        *cost = if *cost == 0.0 { took } else { *cost + LATEST * (took.min(DISTURBED_DRAFT * *cost) - *cost) };
    }

    /// What of `took` nanoseconds is due to a pass of so many rows, and not to what held it up.
    pub fn of_pass(&self, rows: f32, took: f32) -> f32 {
        took.min(DISTURBED * self.pass(rows))
    }

    /// What of `took` nanoseconds is due to drafting for `batch` sequences with this budget, `missed` tokens to catch up on:
    /// all of it, as long as what that takes is not known.
    pub fn of_draft(&self, batch: usize, budget: u32, missed: u32, took: f32) -> f32 {
        let known = self.draft(batch, budget);
        if known == 0.0 || (catches_up(batch, missed) && self.missed == 0.0) {
            return took;
        }
        took.min(DISTURBED_DRAFT * (known + self.catch_up(missed as f32)))
    }

    /// The cost of catching up on `missed` tokens.
    pub fn catch_up(&self, missed: f32) -> f32 {
        self.missed * missed
    }

    /// Whether drafting was ever timed.
    pub fn knows_drafting(&self) -> bool {
        self.missed > 0.0 || self.drafts.iter().flatten().any(|cost| *cost > 0.0)
    }

    /// The cost of drafting for `batch` sequences with this budget; where it was not seen, in proportion to the next
    /// budget or batch that was.
    pub fn draft(&self, batch: usize, budget: u32) -> f32 {
        let (row, place) = (bucket(batch), level(budget));
        let is_seen = |row: &usize, place: &usize| self.drafts[*row][*place] > 0.0;
        let in_row =
            |row: usize| nearest(place, BUDGETS.len()).find(|place| is_seen(&row, place)).map(|place| (row, place));
        let Some((known_row, known)) = nearest(row, BATCHES).find_map(in_row) else { return 0.0 };
        let share = BUDGETS[place] as f32 / BUDGETS[known] as f32;
        // Part of it does not depend on the budget: the rows of committed tokens.
        let cost = self.drafts[known_row][known] * (0.3 + 0.7 * share);
        cost * 2f32.powi(row as i32 - known_row as i32).max(1.0)
    }
}

/// The places below `count`, from one on to those that are farther and farther from it.
fn nearest(from: usize, count: usize) -> impl Iterator<Item = usize> {
    (0..count)
        .flat_map(move |far| [from.checked_sub(far), Some(from + far)])
        .flatten()
        .filter(move |place| *place < count)
}

/// Whether a draft for so many sequences that has to catch up on `missed` tokens is more that than drafting.
pub fn catches_up(batch: usize, missed: u32) -> bool {
    missed >= MANY.max(MANY_EACH * batch as u32)
}

/// The place in [`SIZES`] of the least one that `rows` fit.
fn size(rows: u32) -> usize {
    SIZES.partition_point(|size| *size < rows).min(SIZES.len() - 1)
}

fn bucket(batch: usize) -> usize {
    (usize::BITS - batch.leading_zeros()).saturating_sub(1).min(BATCHES as u32 - 1) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passes_lie_on_lines_between_what_was_seen_and_move_together() {
        let mut costs = Costs::default();
        assert!(!costs.is_known() && costs.pass(3.0) == 0.0);
        [(1, 100.0), (4, 130.0), (8, 210.0)].into_iter().for_each(|(rows, took)| costs.set_pass(rows, took));
        let near = |rows: f32, cost: f32| {
            let found = costs.pass(rows);
            assert!((found - cost).abs() < 1.0, "{rows} rows: {found}, expected {cost}");
        };
        near(1.0, costs.passes[0]);
        near(6.0, f32::midpoint(costs.pass(4.0), costs.pass(8.0)));
        near(12.0, 2.0 * costs.pass(8.0) - costs.pass(4.0));
        let before = costs.pass(1.0);
        (0..20).for_each(|_| costs.add_pass(8, 210.0, Told::Often));
        (0..200).for_each(|_| costs.add_pass(8, 420.0, Told::Often));
        assert!((costs.pass(8.0) - 420.0).abs() < 2.0);
        assert!(costs.pass(1.0) > 1.2 * before, "all passes got slower");
    }

    #[test]
    fn a_pass_between_two_sizes_is_not_taken_for_the_larger_one() {
        let mut costs = Costs::default();
        [(32, 3200.0), (64, 6400.0), (76, 7600.0)].into_iter().for_each(|(rows, took)| costs.set_pass(rows, took));
        assert!((costs.pass(76.0) - 7600.0).abs() < 1.0 && (costs.pass(96.0) - 9600.0).abs() < 1.0);
    }

    #[test]
    fn drafting_is_in_proportion_to_what_was_seen() {
        let mut costs = Costs::default();
        assert_eq!(costs.draft(1, 8), 0.0);
        costs.add_draft(1, 8, 0, 800.0, false);
        assert_eq!(costs.draft(1, 8), 800.0);
        assert!((300.0..800.0).contains(&costs.draft(1, 2)));
        assert!(costs.draft(4, 8) > 2.0 * costs.draft(1, 8));
    }

    #[test]
    fn catching_up_is_told_from_drafting() {
        let mut costs = Costs::default();
        costs.add_draft(1, 3, 300, 30_000.0, false);
        assert!(costs.knows_drafting() && costs.catch_up(300.0) == 30_000.0);
        (0..40).for_each(|_| costs.add_draft(1, 3, 2, 1200.0, false));
        assert!((costs.draft(1, 3) - 1000.0).abs() < 1.0);
        (0..40).for_each(|_| costs.add_draft(1, 3, 300, 31_000.0, false));
        assert!((costs.catch_up(300.0) - 30_000.0).abs() < 10.0);
    }

    #[test]
    fn what_is_cold_bounds_what_is_warm() {
        let mut costs = Costs::default();
        costs.add_draft(1, 4, 1, 900.0, true);
        assert!(!costs.knows_drafting(), "nothing to bound yet");
        [(1, 100.0), (4, 130.0)].into_iter().for_each(|(rows, took)| costs.set_pass(rows, took));
        costs.add_draft(1, 4, 1, 400.0, false);
        for _ in 0..50 {
            costs.add_pass(4, 260.0, Told::Most);
            costs.add_pass(3, 260.0, Told::Most);
            costs.add_draft(1, 4, 1, 900.0, true);
        }
        assert_eq!((costs.pass(4.0), costs.pass(3.0), costs.draft(1, 4)), (130.0, 120.0, 400.0));
        (0..80).for_each(|_| costs.add_pass(4, 110.0, Told::Most));
        (0..80).for_each(|_| costs.add_draft(1, 4, 1, 300.0, true));
        assert!((costs.pass(4.0) - 110.0).abs() < 2.0 && (costs.draft(1, 4) - 300.0).abs() < 2.0);
    }

    #[test]
    fn a_disturbed_plain_step_among_drafts_says_little_of_its_size() {
        let mut costs = Costs::default();
        [(64, 4500.0), (96, 6000.0)].into_iter().for_each(|(rows, took)| costs.set_pass(rows, took));
        for _ in 0..20 {
            costs.add_pass(64, 4500.0, Told::Seldom);
            costs.add_pass(96, 6000.0, Told::Often);
        }
        costs.add_pass(64, 9100.0, Told::Seldom);
        let beside = costs.pass(64.0) / costs.pass(96.0);
        assert!((0.75..0.78).contains(&beside), "{beside}");
        for _ in 0..20 {
            costs.add_pass(64, 5500.0, Told::Seldom);
            costs.add_pass(96, 6000.0, Told::Often);
        }
        assert!(costs.pass(64.0) / costs.pass(96.0) > 0.9, "what stays is believed");
    }

    #[test]
    fn many_sequences_that_each_wrote_a_few_tokens_have_not_to_catch_up() {
        assert!(catches_up(1, 32) && !catches_up(1, 31) && !catches_up(64, 128) && catches_up(64, 256));
    }
}
