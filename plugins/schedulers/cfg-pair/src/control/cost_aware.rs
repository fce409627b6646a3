//! The `cost-aware` policy: as many nodes as make tokens come fastest, perhaps none.
//!
//! A step of n sequences with budgets k gives n + kept(k) tokens and takes pass(n + drafted(k)) + draft(k). Budgets are
//! handed out at one price for all: a sequence takes nodes as long as each is kept more often than the price, and of a
//! ladder of prices the one with most tokens a second is taken. So a sequence whose guesses are good drafts at the cost of
//! one whose are not, and beside many others, where rows are dear, all draft less.
//!
//! What is measured is noisy, so a change must pay: speculation starts only where it promises a few percent more than plain
//! decoding, and a price stays until another is better by more than noise. Where it has stopped, a small draft is tried now
//! and then, and everywhere the largest one, since a text that begins to repeat itself is worth more than the last ones
//! told: each so seldom that it costs a percent, and so as good as always where rows are free.

use std::collections::HashMap;

use foretoken_plugin_api::{QueueSequence, SeqId, StepReport};

use super::acceptance::{Acceptance, BUDGETS, Expected, level};
use super::costs::Costs;
use super::{forget, leader};
use crate::unit::Unit;

/// Prices, in tokens a node: from none at all to all.
const PRICES: [f32; 12] = [2.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.07, 0.03];
/// Speculation must promise this much over plain decoding, and a price over the last one.
const PAYS: f32 = 1.04;
const BETTER: f32 = 1.03;
/// What tries may cost, as a share of the time.
const TRIES: f32 = 0.01;
/// Where speculation promises less than this over plain decoding, a step without it is taken now and then, since what
/// plain steps cost is else not seen.
const CLOSE: f32 = 1.15;
/// Steps between two of those.
const BETWEEN_PLAIN: f32 = 24.0;
/// Steps within which catching up a proposer that has not drafted for a while must pay.
const SOON: f32 = 64.0;
/// The budget of a try where nothing is drafted, and the fewest steps between two tries.
const TRY: u32 = 3;
const BETWEEN_TRIES: f32 = 4.0;

/// What has been learned.
#[derive(Default)]
pub struct CostAware {
    costs: Costs,
    all: Acceptance,
    sequences: HashMap<SeqId, State>,
    /// The price of the last step, as a place in [`PRICES`]; 0 is plain decoding.
    price: usize,
    /// Plain steps since the last draft, and steps with drafts since the last plain one.
    plain_steps: f32,
    drafting_steps: f32,
    /// Steps since every sequence was allowed all it may draft.
    short_steps: f32,
    curves: Vec<Curve>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    acceptance: Acceptance,
    /// What the plan allowed.
    budget: u32,
    /// Tokens there were when it last drafted, and those written since, when the plan was made.
    caught_up: u32,
    missed: u32,
}

/// What each budget of a unit is expected to give, the place of the unit, and its width.
#[derive(Debug, Clone, Copy)]
struct Curve {
    place: usize,
    width: u32,
    most: u32,
    /// Tokens written since it last drafted.
    missed: f32,
    expected: [Expected; BUDGETS.len()],
}

impl Curve {
    /// The budget at `price`, and what it gives.
    fn at(&self, price: f32) -> (u32, Expected) {
        let (mut budget, mut best) = (0, Expected::default());
        for (most, expected) in BUDGETS.iter().zip(&self.expected) {
            let nodes = expected.drafted - best.drafted;
            let pays = expected.kept - best.kept > price * nodes * self.width as f32 && nodes > 0.0;
            if pays {
                (budget, best) = ((*most).min(self.most), *expected);
            }
            if *most >= self.most {
                break;
            }
        }
        (budget, best)
    }
}

impl CostAware {
    /// Lowers `max_draft` to what pays.
    pub fn limit(&mut self, units: &mut [Unit], sequences: &[QueueSequence]) {
        forget(&mut self.sequences, sequences);
        self.curves.clear();
        let (mut rows, mut anchors) = (0.0, 0.0);
        for (place, unit) in units.iter().enumerate().filter(|(_, unit)| unit.decodes() && unit.running) {
            rows += unit.width as f32;
            anchors += 1.0;
            if unit.max_draft > 0 {
                let known = self.sequences.entry(leader(unit, sequences)).or_default();
                let expected = known.acceptance.expected(Some(&self.all), unit.max_draft);
                let missed = tokens(unit, sequences).saturating_sub(known.caught_up) as f32;
                self.curves.push(Curve { place, width: unit.width, most: unit.max_draft, missed, expected });
            }
        }
        if self.curves.is_empty() {
            return;
        }
        let is_close = self.settle_price(rows, anchors);
        // What drafting costs is not known before it was done, so the first drafts are small ones.
        let knows_drafting = self.costs.knows_drafting();
        let pauses = is_close && self.drafting_steps >= BETWEEN_PLAIN;
        let reaches = knows_drafting && !pauses && self.is_time_to_reach(rows);
        let tries = !knows_drafting || (self.price == 0 && self.is_time_to_try(rows));
        let price = PRICES[if pauses { 0 } else { self.price }];
        self.short_steps = if reaches { 0.0 } else { self.short_steps + 1.0 };
        for curve in &self.curves {
            units[curve.place].max_draft = match () {
                () if reaches => curve.most,
                () if tries => TRY.min(curve.most),
                () => curve.at(price).0,
            };
        }
    }

    /// Sets the price of this step; whether speculation promises little more than plain decoding.
    fn settle_price(&mut self, rows: f32, anchors: f32) -> bool {
        let speed = |price: usize| self.speed(price, rows, anchors);
        let (plain, last) = (speed(0), speed(self.price));
        let best = (1..PRICES.len()).map(|price| (price, speed(price))).max_by(|a, b| a.1.total_cmp(&b.1));
        let (price, fastest) = best.unwrap_or((0, plain));
        let price = match () {
            () if !self.costs.is_known() => PRICES.len() / 2,
            () if fastest < plain * if self.price == 0 { PAYS } else { 1.0 } => 0,
            () if self.price > 0 && last >= plain && fastest < last * BETTER => self.price,
            () => price,
        };
        let drafts = self.curves.iter().any(|curve| curve.at(PRICES[price]).0 > 0);
        self.price = if drafts { price } else { 0 };
        drafts && fastest < plain * CLOSE
    }

    /// Tokens a nanosecond at a price.
    fn speed(&self, price: usize, rows: f32, anchors: f32) -> f32 {
        let (kept, took) = self.outcome(rows, SOON, |curve| curve.at(PRICES[price]));
        (anchors + kept) / took
    }

    /// Nodes kept, and nanoseconds, of a step with these budgets, if catching up pays within so many steps.
    fn outcome(&self, rows: f32, steps: f32, budget: impl Fn(&Curve) -> (u32, Expected)) -> (f32, f32) {
        let (mut kept, mut drafted, mut missed, mut largest, mut drafting) = (0.0, 0.0, 0.0, 0, 0);
        for curve in &self.curves {
            let (budget, expected) = budget(curve);
            kept += expected.kept;
            drafted += expected.drafted * curve.width as f32;
            largest = largest.max(budget);
            if budget > 0 {
                drafting += 1;
                missed += curve.missed;
            }
        }
        let draft = if drafting > 0 { self.costs.draft(drafting, largest) } else { 0.0 };
        (kept, self.costs.pass(rows + drafted) + draft + self.costs.catch_up(missed) / steps)
    }

    /// Whether to allow all that may be drafted: what the last nodes of it keep is else not seen.
    fn is_time_to_reach(&self, rows: f32) -> bool {
        let (_, took) = self.outcome(rows, 1.0, |curve| curve.at(PRICES[self.price]));
        let (_, most) = self.outcome(rows, 1.0, |curve| (curve.most, curve.expected[level(curve.most)]));
        self.short_steps >= BETWEEN_TRIES.max((most - took) / (TRIES * took))
    }

    fn is_time_to_try(&self, rows: f32) -> bool {
        let plain = self.costs.pass(rows);
        let (_, took) = self.outcome(rows, 1.0, |curve| {
            let budget = TRY.min(curve.most);
            (budget, curve.expected[level(budget)])
        });
        self.plain_steps >= BETWEEN_TRIES.max((took - plain) / (TRIES * plain))
    }

    /// Remembers what the planner allowed.
    pub fn planned(&mut self, units: &[Unit], sequences: &[QueueSequence]) {
        let mut drafts = false;
        for unit in units.iter().filter(|unit| unit.decodes() && unit.rows > 0) {
            if let Some(state) = self.sequences.get_mut(&leader(unit, sequences)) {
                state.budget = unit.draft;
                if unit.draft > 0 {
                    drafts = true;
                    let tokens = tokens(unit, sequences);
                    state.missed = tokens.saturating_sub(state.caught_up);
                    state.caught_up = tokens;
                }
            }
        }
        let count = |before: f32, counts: bool| if counts { before + 1.0 } else { 0.0 };
        self.plain_steps = count(self.plain_steps, !drafts);
        self.drafting_steps = count(self.drafting_steps, drafts);
    }

    /// Learns from a step; one that nobody had a part in is a measurement of the engine's.
    pub fn observe(&mut self, report: &StepReport<'_>) {
        let reports = report.sequences();
        let only_decodes = reports.iter().all(|report| report.rows == report.drafted + 1);
        if only_decodes && report.rows > 0 {
            self.costs.add_pass(report.rows, report.forward_ns as f32);
        }
        let (mut largest, mut drafting, mut missed) = (0, 0, 0);
        for report in reports {
            let Some(state) = self.sequences.get_mut(&report.id) else { continue };
            let budget = std::mem::take(&mut state.budget);
            if budget > 0 {
                state.acceptance.add(budget, report.drafted, report.accepted);
                self.all.add(budget, report.drafted, report.accepted);
                largest = largest.max(budget);
                drafting += 1;
                missed += state.missed;
            }
            if report.finished {
                self.sequences.remove(&report.id);
            }
        }
        if drafting > 0 {
            self.costs.add_draft(drafting, largest, missed as f32, report.draft_ns as f32);
        }
    }
}

/// Tokens of a unit's leader.
fn tokens(unit: &Unit, sequences: &[QueueSequence]) -> u32 {
    let leader = &sequences[unit.arrival()];
    leader.slots_held + leader.uncomputed
}
