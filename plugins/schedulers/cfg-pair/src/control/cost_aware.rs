//! The `cost-aware` policy: as many nodes as make tokens come fastest, perhaps none.
//!
//! A step of n sequences with budgets k gives n + kept(k) tokens and takes pass(n + drafted(k)) + draft(k). Budgets are
//! handed out at one price for all: a sequence takes nodes as long as each is kept more often than the price, and of a
//! ladder of prices the one with most tokens a second is taken. So a sequence whose guesses are good drafts at the cost of
//! one whose are not, and beside many others, where rows are dear, all draft less.
//!
//! What is measured is noisy, so a change must pay: speculation starts only where it promises a few percent more than plain
//! decoding, and a price stays until another is better by more than noise. The first drafts are not judged by their luck:
//! the fewer there were, the more they may lose; nor by their time, which is that of cold caches. Where speculation has
//! stopped, a small draft is tried now and then, and everywhere the largest one, since a text that begins to repeat itself
//! is worth more than the last ones told: each so seldom that it costs a percent at most, and so as good as always where
//! rows are free. A try of which all was kept is followed by one twice as large.
//!
//! All of this is expectation, and a machine can be other than it seems. So there is an account of what came of drafting:
//! what its steps took, catching up on prompts and caches full of the draft's data included, but not what else held one up,
//! against what plain steps would have taken for the tokens that they gave. It is paid a percent of the time. Drafts begin
//! only where nothing is owed and end where too much is, so that however wrong expectations are, about that percent is lost.
//! What plain steps take is seen and not expected: the first steps are plain, and some among many drafts.

use foretoken_plugin_api::{QueueSequence, SequenceReport, StepReport};

use super::acceptance::{Acceptance, BUDGETS, Expected, level};
use super::costs::{Costs, Told, catches_up};
use super::remembered::Remembered;
use crate::unit::Unit;

/// Prices, in tokens a node: from none at all to all.
const PRICES: [f32; 12] = [2.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.12, 0.07, 0.03];
/// Speculation must promise this much over plain decoding, and a price over the last one.
const PAYS: f32 = 1.04;
const BETTER: f32 = 1.03;
/// What it may promise less than plain decoding without being stopped, before anything was tried, and the tries after which
/// it may no more.
const HASTY: f32 = 0.3;
const JUDGED: f32 = 48.0;
/// What tries may cost where nothing is drafted, as a share of the time, and largest drafts where something is. Small tries
/// that give back less than they cost are made less often, down to this part.
const TRIES: f32 = 0.005;
const LARGEST: f32 = 0.01;
const HOPELESS: f32 = 0.2;
/// Plans after which drafts begin although no steps of decoding have told what they take.
const LATE: usize = 16;
/// Plain steps in a row among drafts, of which the last tells what plain steps take: before it the caches are full of the
/// draft's data.
const WARM: f32 = 3.0;
/// What they may cost as a share of the time, and the fewest steps with drafts between them.
const PLAIN: f32 = 0.005;
const BETWEEN_PLAIN: f32 = 32.0;
/// What the account is paid, as a share of the time; the most it holds, and the most it may owe beside the catching up that
/// was foreseen, in plain steps.
const PAID: f32 = 0.01;
const HELD: f32 = 16.0;
const OWED: f32 = 8.0;
/// Steps within which catching up a proposer that has not drafted for a while must pay.
const SOON: f32 = 64.0;
/// The budget of a try where nothing is drafted, the sequences that try about, the steps for which they are the same ones,
/// and the fewest steps between two tries.
const TRY: u32 = 3;
const TRIERS: usize = 2;
const STAYS: usize = 128;
const BETWEEN_TRIES: f32 = 4.0;
/// Plain steps after which drafts are cold.
const PAUSE: f32 = 16.0;
/// Nanoseconds, about, of thinking about a step, and what they may be as a share of the time where nothing is drafted:
/// so many steps are not thought about if no try is due before, within these bounds.
const THINKING: f32 = 4000.0;
const THOUGHT: f32 = 0.001;
const QUIET: [f32; 2] = [4.0, 16.0];

/// Of many sequences not all are thought about in every step, so that a step of hundreds costs microseconds: a new outlook
/// for one in so many parts, and a lesson from one in so many, for itself and for all.
const OUTLOOKS: usize = 16;
const LESSONS: usize = 64;
const COMMON_LESSONS: usize = 16;

/// What has been learned.
#[derive(Default)]
pub struct CostAware {
    costs: Costs,
    all: Acceptance,
    sequences: Remembered<State>,
    /// Plans made, and steps that taught what drafts give.
    turn: usize,
    lessons: u32,
    /// The price of the last step, as a place in [`PRICES`]; 0 is plain decoding.
    price: usize,
    /// Plain steps since the last draft, and steps with drafts since the last plain one.
    plain_steps: f32,
    drafting_steps: f32,
    /// Whether this step finds other data than its own in the caches: its drafts and the pass after them, or a plain pass.
    is_cold: bool,
    /// What speculation is expected to be over plain decoding.
    promise: f32,
    /// What drafting has saved, in nanoseconds, and what it may have lost before it ends.
    account: f32,
    owed: f32,
    /// Steps since every sequence was allowed all it may draft.
    short_steps: f32,
    /// Steps to come that need not be thought about.
    quiet: f32,
    /// Places of the units that may draft in this step.
    drafters: Vec<usize>,
}

#[derive(Debug, Clone, Copy, Default)]
struct State {
    acceptance: Acceptance,
    /// What to expect, after so many lessons.
    outlook: Outlook,
    lessons: u32,
    /// What the plan allowed.
    budget: u32,
    /// Twice that, if all of it was kept: it goes on so although nothing is worth drafting by the outlook.
    reach: u32,
    /// Tokens there were when it last drafted, and those written since.
    caught_up: u32,
    missed: u32,
}

/// The drafts of a step: how many sequences', with which budget at most, and behind how many tokens to catch up on.
#[derive(Debug, Clone, Copy, Default)]
struct Drafts {
    batch: usize,
    budget: u32,
    missed: u32,
}

/// What each budget is expected to give.
#[derive(Debug, Clone, Copy, Default)]
struct Outlook {
    /// For budgets up to the one at this place of [`BUDGETS`], and for one sequence or a pair.
    last: usize,
    width: u32,
    expected: [Expected; BUDGETS.len()],
    /// How many of [`BUDGETS`] are worth each of [`PRICES`]: none, or up to one's place and itself.
    worth: [u8; PRICES.len()],
}

impl Outlook {
    fn new(acceptance: &Acceptance, all: &Acceptance, unit: &Unit) -> Self {
        let (last, width) = (level(unit.max_draft), unit.width);
        let expected = acceptance.expected(Some(all), unit.max_draft);
        let worth = PRICES.map(|price| {
            let (mut budgets, mut best) = (0, Expected::default());
            for (place, expected) in expected[..=last].iter().enumerate() {
                let nodes = expected.drafted - best.drafted;
                if nodes > 0.0 && expected.kept - best.kept > price * nodes * width as f32 {
                    (budgets, best) = (place as u8 + 1, *expected);
                }
            }
            budgets
        });
        Self { last, width, expected, worth }
    }

    /// Whether it was made for such a unit.
    fn is_of(&self, unit: &Unit) -> bool {
        self.width == unit.width && self.last == level(unit.max_draft)
    }

    /// What the largest of so many budgets gives.
    fn gives(&self, budgets: u8) -> Expected {
        budgets.checked_sub(1).map_or_else(Expected::default, |place| self.expected[usize::from(place)])
    }

    /// The largest of so many budgets.
    fn budget(&self, budgets: u8, unit: &Unit) -> u32 {
        budgets.checked_sub(1).map_or(0, |place| BUDGETS[usize::from(place)].min(unit.max_draft))
    }
}

/// What a step is expected to give and to take.
#[derive(Debug, Clone, Copy, Default)]
struct Outcome {
    kept: f32,
    drafted: f32,
    /// Tokens to catch up on.
    missed: f32,
    drafting: usize,
    largest: u32,
}

impl Outcome {
    /// A unit drafts with the largest of `budgets` budgets instead of with that of `before` budgets.
    fn add(&mut self, state: &State, unit: &Unit, before: u8, budgets: u8) {
        let outlook = &state.outlook;
        let (was, is) = (outlook.gives(before), outlook.gives(budgets));
        self.kept += is.kept - was.kept;
        self.drafted += (is.drafted - was.drafted) * unit.width as f32;
        if before == 0 {
            self.missed += state.missed as f32;
            self.drafting += 1;
        }
        self.largest = self.largest.max(outlook.budget(budgets, unit));
    }

    /// What it is beyond another one, with that one.
    fn after(self, other: Self) -> Self {
        Self {
            kept: self.kept + other.kept,
            drafted: self.drafted + other.drafted,
            missed: self.missed + other.missed,
            drafting: self.drafting + other.drafting,
            largest: self.largest.max(other.largest),
        }
    }

    /// Nanoseconds beside `rows` rows, if catching up pays within so many steps.
    fn took(&self, costs: &Costs, rows: f32, steps: f32) -> f32 {
        let draft = if self.drafting > 0 { costs.draft(self.drafting, self.largest) } else { 0.0 };
        costs.pass(rows + self.drafted) + draft + costs.catch_up(self.missed) / steps
    }
}

/// What a step is expected to be at each of [`PRICES`], with all that is allowed, and with a try.
#[derive(Default)]
struct Outlooks {
    by_price: [Outcome; PRICES.len()],
    most: Outcome,
    tried: Outcome,
}

impl CostAware {
    /// Lowers `max_draft` to what pays.
    pub fn limit(&mut self, units: &mut [Unit], sequences: &[QueueSequence]) {
        self.sequences.follow(sequences, |_| State::default());
        self.drafters.clear();
        self.turn += 1;
        // At first every step teaches much.
        let parts = units.len().div_ceil(OUTLOOKS).min(1 + self.turn / OUTLOOKS);
        let (mut rows, mut anchors) = (0.0, 0.0);
        for (place, unit) in units.iter().enumerate().filter(|(_, unit)| unit.decodes() && unit.running) {
            rows += unit.width as f32;
            anchors += 1.0;
            if unit.max_draft > 0 {
                let state = self.sequences.at_mut(unit.arrival());
                let is_due = (place + self.turn).is_multiple_of(parts) && state.lessons != self.lessons;
                if is_due || !state.outlook.is_of(unit) {
                    state.outlook = Outlook::new(&state.acceptance, &self.all, unit);
                    state.lessons = self.lessons;
                }
                state.missed = tokens(unit, sequences).saturating_sub(state.caught_up);
                self.drafters.push(place);
            }
        }
        if self.drafters.is_empty() {
            return;
        }
        if self.quiet >= 1.0 {
            self.quiet -= 1.0;
            self.short_steps += 1.0;
            self.drafters.iter().for_each(|place| units[*place].max_draft = 0);
            return;
        }
        let outlooks = self.look(units);
        self.settle_price(&outlooks.by_price, rows, anchors);
        // What drafting costs is not known before it was done, so the first drafts are small ones.
        let knows_drafting = self.costs.knows_drafting();
        let between_plain = BETWEEN_PLAIN.max(WARM / PLAIN * (1.0 - 1.0 / self.promise));
        let pauses = self.drafting_steps >= between_plain;
        let is_free = !pauses && (self.price > 0 || self.may_begin());
        let price = if pauses { 0 } else { self.price };
        // What the last nodes of a large draft keep is seen by drafting them.
        let now = outlooks.by_price[price];
        let took_now = now.took(&self.costs, rows, 1.0);
        let costs = |outcome: Outcome| outcome.took(&self.costs, rows, 1.0) - took_now;
        let due = |share: f32, outcome: Outcome| {
            let gives = (outcome.kept - now.kept) * took_now / (anchors + now.kept);
            let least = HOPELESS.max(self.all.doubt(JUDGED));
            let hope = if price == 0 { (gives / costs(outcome).max(1.0)).clamp(least, 1.0) } else { 1.0 };
            BETWEEN_TRIES.max(costs(outcome) / (hope * share * took_now))
        };
        let until_largest = due(if price == 0 { TRIES } else { LARGEST }, outlooks.most) - self.short_steps;
        let until_try = due(TRIES, outlooks.tried) - self.plain_steps;
        // What is dear has to be saved for.
        let has = |outcome: Outcome| self.account >= costs(outcome).min(HELD * took_now);
        let begins = price > 0 && self.plain_steps > 0.0;
        let reaches = is_free && knows_drafting && !begins && until_largest <= 0.0 && has(outlooks.most);
        let tries = is_free && (!knows_drafting || (price == 0 && until_try <= 0.0 && has(outlooks.tried)));
        self.short_steps = if reaches { 0.0 } else { self.short_steps + 1.0 };
        let is_new = self.is_new();
        for (number, place) in self.drafters.iter().enumerate() {
            let unit = &mut units[*place];
            let State { outlook, reach, .. } = self.sequences.at(unit.arrival());
            unit.max_draft = match outlook.budget(outlook.worth[price], unit) {
                _ if reaches => unit.max_draft,
                budget if *reach > budget && is_free && (budget == 0 || is_new) => unit.max_draft.min(*reach),
                _ if tries && self.is_trier(number) => unit.max_draft.min(TRY),
                _ if tries => 0,
                budget => budget,
            };
        }
        let drafts = self.drafters.iter().any(|place| units[*place].max_draft > 0);
        let unthought = (THINKING / (THOUGHT * took_now)).clamp(QUIET[0], QUIET[1]);
        self.quiet = match () {
            () if pauses => WARM - 1.0,
            () if drafts || self.price > 0 => 0.0,
            () => until_largest.min(until_try).clamp(0.0, unthought),
        };
    }

    /// Whether drafts may begin: nothing is owed, and plain steps have told what they take.
    fn may_begin(&self) -> bool {
        self.account >= 0.0 && (self.costs.is_settled() || self.turn > LATE)
    }

    /// Whether too few drafts were tried to judge them.
    fn is_new(&self) -> bool {
        self.all.doubt(JUDGED) > 0.0
    }

    /// Whether catching up on so many tokens is much beside a pass of so many rows.
    fn is_much(&self, missed: f32, rows: f32) -> bool {
        self.costs.catch_up(missed) > OWED * self.costs.pass(rows)
    }

    /// Whether one of the drafters tries in this step: of many, others after a while, since each must catch up first.
    fn is_trier(&self, number: usize) -> bool {
        (number + self.turn / STAYS).is_multiple_of(self.drafters.len().div_ceil(TRIERS))
    }

    /// What can be expected of this step.
    fn look(&self, units: &[Unit]) -> Outlooks {
        let mut outlooks = Outlooks::default();
        for (number, place) in self.drafters.iter().enumerate() {
            let unit = &units[*place];
            let state = self.sequences.at(unit.arrival());
            let mut before = 0;
            for (outcome, budgets) in outlooks.by_price.iter_mut().zip(state.outlook.worth) {
                if budgets != before {
                    outcome.add(state, unit, before, budgets);
                    before = budgets;
                }
            }
            let last = state.outlook.last;
            outlooks.most.add(state, unit, 0, last as u8 + 1);
            if self.is_trier(number) {
                outlooks.tried.add(state, unit, 0, level(TRY).min(last) as u8 + 1);
            }
        }
        // So far each has what it is beyond the one before.
        for price in 1..PRICES.len() {
            outlooks.by_price[price] = outlooks.by_price[price].after(outlooks.by_price[price - 1]);
        }
        outlooks
    }

    /// Sets the price of this step.
    fn settle_price(&mut self, outcomes: &[Outcome; PRICES.len()], rows: f32, anchors: f32) {
        let speeds = outcomes.map(|outcome| (anchors + outcome.kept) / outcome.took(&self.costs, rows, SOON));
        let (plain, last) = (speeds[0], speeds[self.price]);
        let drafting = (1..PRICES.len()).filter(|price| outcomes[*price].drafting > 0);
        let best = drafting.max_by(|a, b| speeds[*a].total_cmp(&speeds[*b])).unwrap_or(0);
        let fastest = speeds[best];
        let price = match () {
            () if self.price == 0 && !self.may_begin() => 0,
            () if self.price > 0 && self.account < -self.owed => 0,
            () if !self.costs.is_known() => PRICES.len() / 2,
            // A few can be tried first.
            () if self.is_new() && self.drafters.len() > TRIERS && self.is_much(outcomes[best].missed, rows) => 0,
            () if fastest < plain * if self.price == 0 { PAYS } else { 1.0 - HASTY * self.all.doubt(JUDGED) } => 0,
            () if outcomes[self.price].drafting > 0 && last >= plain && fastest < last * BETTER => self.price,
            () => best,
        };
        if self.price == 0 {
            self.owed = OWED * self.costs.pass(rows) + self.costs.catch_up(outcomes[price].missed);
        }
        self.price = if outcomes[price].drafting > 0 { price } else { 0 };
        self.promise = (fastest / plain).max(1.0);
    }

    /// Remembers what the planner allowed.
    pub fn planned(&mut self, units: &[Unit], sequences: &[QueueSequence]) {
        let (mut drafting, mut missed) = (0, 0);
        for unit in units.iter().filter(|unit| unit.decodes() && unit.rows > 0) {
            let state = self.sequences.at_mut(unit.arrival());
            state.budget = unit.draft;
            if unit.draft > 0 {
                drafting += 1;
                missed += state.missed;
                state.caught_up = tokens(unit, sequences);
            }
        }
        let count = |before: f32, counts: bool| if counts { before + 1.0 } else { 0.0 };
        let drafts = drafting > 0;
        self.is_cold = match () {
            () if drafts => self.lessons == 0 || self.plain_steps >= PAUSE || catches_up(drafting, missed),
            () => self.lessons > 0 && self.plain_steps + 1.0 < WARM,
        };
        self.plain_steps = count(self.plain_steps, !drafts);
        self.drafting_steps = count(self.drafting_steps, drafts);
    }

    /// Enters what a step took beyond plain ones that give as many tokens, but not what held it up.
    fn keep_account(&mut self, report: &StepReport<'_>, only_decodes: bool, drafts: Drafts) {
        let decoding = report.sequences().iter().filter(|report| report.rows == report.drafted + 1);
        let [rows, drafted, kept] = decoding.fold([0, 0, 0], |[rows, drafted, kept], report| {
            [rows + 1, drafted + report.drafted, kept + report.accepted]
        });
        if rows == 0 {
            return;
        }
        let plain = self.costs.pass(rows as f32);
        let more = match () {
            () if drafted == 0 && !self.is_cold => 0.0,
            () if only_decodes => self.costs.of_pass((rows + drafted) as f32, report.forward_ns as f32) - plain,
            // Beside prompts what drafts take of the pass is not seen.
            () => self.costs.pass((rows + drafted) as f32) - plain,
        };
        let draft = self.costs.of_draft(drafts.batch, drafts.budget, drafts.missed, report.draft_ns as f32);
        let saved = kept as f32 / rows as f32 * plain - more - draft;
        self.account = (self.account + saved + PAID * plain).clamp(-self.owed - HELD * plain, HELD * plain);
    }

    /// Learns from a step; one that nobody had a part in is a measurement of the engine's.
    pub fn observe(&mut self, report: &StepReport<'_>) {
        let reports = report.sequences();
        let only_decodes = reports.iter().all(|report| report.rows == report.drafted + 1);
        let took = report.forward_ns as f32;
        let drafts = self.learn_acceptance(reports);
        self.keep_account(report, only_decodes, drafts);
        if reports.is_empty() && report.rows > 0 {
            self.costs.set_pass(report.rows, took);
        } else if only_decodes && report.rows > 0 {
            let told = match () {
                () if self.is_cold => Told::Most,
                () if self.lessons > 0 && self.plain_steps == WARM => Told::Seldom,
                () => Told::Often,
            };
            self.costs.add_pass(report.rows, took, told);
        }
        if drafts.batch > 0 {
            self.lessons = self.lessons.wrapping_add(1);
            self.costs.add_draft(drafts.batch, drafts.budget, drafts.missed, report.draft_ns as f32, self.is_cold);
        }
    }

    /// Learns what was kept of a step's drafts, and returns what they were.
    fn learn_acceptance(&mut self, reports: &[SequenceReport]) -> Drafts {
        let mut drafts = Drafts::default();
        // What has no drafts teaches nothing more.
        if self.drafting_steps == 0.0 {
            return drafts;
        }
        let (parts, common_parts) = (reports.len().div_ceil(LESSONS), reports.len().div_ceil(COMMON_LESSONS));
        for (place, report) in reports.iter().enumerate() {
            let Some(state) = self.sequences.of(report.id) else { continue };
            let budget = std::mem::take(&mut state.budget);
            if budget > 0 {
                state.reach = if (1..=report.accepted).contains(&report.drafted) { 2 * budget } else { 0 };
                if (place + self.turn).is_multiple_of(parts) {
                    state.acceptance.add(budget, report.drafted, report.accepted);
                }
                if (place + self.turn).is_multiple_of(common_parts) {
                    self.all.add(budget, report.drafted, report.accepted);
                }
                drafts.budget = drafts.budget.max(budget);
                drafts.batch += 1;
                drafts.missed += state.missed;
            }
        }
        drafts
    }
}

/// Tokens of a unit's leader.
fn tokens(unit: &Unit, sequences: &[QueueSequence]) -> u32 {
    let leader = &sequences[unit.arrival()];
    leader.slots_held + leader.uncomputed
}
