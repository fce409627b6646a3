//! The plan of one step: rows, drafts, preemptions, admissions, in that order.
//!
//! Everything is given in *plan order*: running units by priority, then arrival, then waiting ones likewise. Each running
//! unit gets one row before any gets a second, drafts share evenly what that leaves (half of it while prompts wait, so
//! that decodes cannot keep prompts out), prompts take the rest, and whoever waits is admitted strictly in order. So the
//! first running unit advances in every step, nobody waits for a unit behind it, and among equal priorities the wait is
//! bounded by the work of those that came before. A unit waits and is never passed over because it is large (a long
//! prompt, or a pair where one place is left): that would use a step better, and starve it.

use foretoken_plugin_api::KvStats;

use crate::share::even_level;
use crate::unit::Unit;

/// Bits of a unit's place in the queue.
const PLACE_BITS: u32 = 31;

/// What a step may hold.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most sequences; at least 1.
    pub sequences: u32,
    /// Most rows; at least `sequences`.
    pub rows: u32,
    /// Whether prompts run in parts.
    pub chunked_prefill: bool,
    /// Most draft nodes of one sequence.
    pub draft: Option<u32>,
}

/// Plans steps; its buffers are reused.
pub struct Planner {
    limits: Limits,
    units: Vec<Unit>,
    /// Keys of the units' order, places in the lowest bits.
    order: Vec<u64>,
    rows_left: u32,
    slots_left: u32,
}

impl Planner {
    /// A planner within `limits`.
    pub fn new(limits: Limits) -> Self {
        Self { limits, units: Vec::new(), order: Vec::new(), rows_left: 0, slots_left: 0 }
    }

    /// What a step may hold.
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// Plans one step of all unfinished `units`, given in order of arrival: they come back in plan order, with rows, drafts
    /// and preemptions.
    ///
    /// Nothing planned although there are units means that the first of them cannot advance with all the slots there are.
    pub fn plan(&mut self, units: &[Unit], kv: &KvStats) -> &[Unit] {
        self.put_in_order(units);
        let running = self.units.partition_point(|unit| unit.running);
        self.rows_left = self.limits.rows;
        let kept = self.make_room(running, kv);
        let planned = self.give_first_rows(kept);
        let all_kept = kept == running;
        let has_place = self.fitting(self.units.len(), u64::from(self.limits.sequences)) > running;
        let admits = all_kept && has_place;
        self.give_drafts(planned, admits);
        self.extend_prompts(planned);
        if admits {
            self.admit(running);
        }
        &self.units
    }

    /// Running units by priority, then arrival, then waiting ones likewise. Small keys are sorted, not units.
    fn put_in_order(&mut self, units: &[Unit]) {
        // From the highest bit on: whether it waits, the priority upside down, the place.
        let key = |(place, unit): (usize, &Unit)| {
            let priority = !(unit.priority.cast_unsigned() ^ (1 << 31));
            u64::from(!unit.running) << 63 | u64::from(priority) << PLACE_BITS | place as u64
        };
        self.order.clear();
        self.order.extend(units.iter().enumerate().map(key));
        self.order.sort_unstable();
        self.units.clear();
        self.units.extend(self.order.iter().map(|key| units[(key & ((1 << PLACE_BITS) - 1)) as usize]));
    }

    /// Preempts from the end until the others can each have a row; returns how many are kept, the first at least.
    ///
    /// Of a preempted unit's slots others may hold some. All of them are counted to stop preempting, so that sharers are
    /// not preempted in a row, but only those certain to come back are given out in this step: of the `freed`, all but as
    /// many as are counted more than once in the whole queue. The next step sees what really came back.
    fn make_room(&mut self, running: usize, kv: &KvStats) -> usize {
        let available = u64::from(kv.free) + u64::from(kv.cached);
        let listed = self.units.iter().map(|unit| u64::from(unit.slots_held)).sum::<u64>();
        let shared = listed.saturating_sub(u64::from(kv.held));
        // While slots are shared one is held back: with none left, only preempting nearly everyone would be certain.
        let reserve = u64::from(shared > 0);
        let first = self.units.first().map_or(0, |unit| u64::from(unit.width));
        let (mut kept, mut freed) = (running, 0);
        let mut certain = available;
        while kept > 1 && (certain < first || available + freed < self.least_rows(kept) + reserve) {
            kept -= 1;
            let victim = &mut self.units[kept];
            victim.preempted = true;
            freed += u64::from(victim.slots_held);
            certain = available + freed.saturating_sub(shared);
        }
        let usable = if certain >= reserve + first { certain - reserve } else { certain };
        self.slots_left = u32::try_from(usable).unwrap_or(u32::MAX);
        kept
    }

    /// How many of the first `units` have `most` sequences or fewer.
    fn fitting(&self, units: usize, most: u64) -> usize {
        let mut sequences = 0;
        let fits = |unit: &&Unit| {
            sequences += u64::from(unit.width);
            sequences <= most
        };
        self.units[..units].iter().take_while(fits).count()
    }

    /// The rows of a step in which those of the first `kept` that fit have one for each sequence.
    fn least_rows(&self, kept: usize) -> u64 {
        let in_step = self.fitting(kept, u64::from(self.limits.sequences));
        self.units[..in_step].iter().map(|unit| u64::from(unit.width)).sum()
    }

    /// One row for each sequence of the first `kept`, as far as slots go; returns how many have them.
    fn give_first_rows(&mut self, kept: usize) -> usize {
        let planned = self.fitting(kept, u64::from(self.limits.sequences.min(self.slots_left)));
        for unit in &mut self.units[..planned] {
            unit.rows = unit.width;
            self.rows_left -= unit.width;
            self.slots_left -= unit.width;
        }
        planned
    }

    fn give_drafts(&mut self, planned: usize, admits: bool) {
        let units = &mut self.units[..planned];
        let prompts_wait = admits || units.iter().any(|unit| !unit.decodes());
        let rows = if prompts_wait { self.rows_left / 2 } else { self.rows_left };
        let most = self.limits.draft.unwrap_or(u32::MAX);
        let want = |unit: &Unit| if unit.decodes() { unit.max_draft.min(most) } else { 0 };
        let wants = units.iter().map(|unit| (want(unit), unit.width));
        let (level, mut extra) = even_level(wants, rows.min(self.slots_left));
        for unit in units {
            let want = want(unit);
            unit.draft = want.min(level);
            if want > level && extra >= unit.width {
                unit.draft += 1;
                extra -= unit.width;
            }
            self.rows_left -= unit.draft * unit.width;
            self.slots_left -= unit.draft * unit.width;
        }
    }

    fn extend_prompts(&mut self, planned: usize) {
        for unit in &mut self.units[..planned] {
            let more = (unit.uncomputed() - unit.rows).min(self.rows_left).min(self.slots_left);
            unit.rows += more;
            self.rows_left -= more;
            self.slots_left -= more;
        }
    }

    /// Admits in order, until one does not fit: a place, rows, slots for all of it (not only its first part), and one
    /// more for each running sequence. The last are what keeps it from being preempted again at once; a unit that is
    /// alone needs only its own. Prompts begun earlier owe nothing here: they took their rows first, so rows are left
    /// only where all of them are complete.
    fn admit(&mut self, running: usize) {
        let end = self.fitting(self.units.len(), u64::from(self.limits.sequences));
        let mut beside: u64 = self.units[..running].iter().map(|unit| u64::from(unit.width)).sum();
        for place in running..end {
            let unit = &self.units[place];
            let rows = self.first_chunk(unit.uncomputed());
            beside += u64::from(unit.width);
            let reserve = if place == 0 { 0 } else { beside };
            if rows < unit.width || u64::from(unit.uncomputed()) + reserve > u64::from(self.slots_left) {
                break;
            }
            self.units[place].rows = rows;
            self.rows_left -= rows;
            self.slots_left -= rows;
        }
    }

    fn first_chunk(&self, uncomputed: u32) -> u32 {
        let nothing_planned = self.rows_left == self.limits.rows;
        if self.limits.chunked_prefill || uncomputed <= self.rows_left || nothing_planned {
            uncomputed.min(self.rows_left)
        } else {
            0
        }
    }
}
