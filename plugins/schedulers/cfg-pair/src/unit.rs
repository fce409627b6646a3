//! What is planned as one: a sequence, or both of a pair.
//!
//! A unit carries what the planner weighs and what the planner decided. Rows are counted over both halves of a pair, drafts
//! are not: a draft is made once and verified in each half, so it costs `width` rows a node.

use foretoken_plugin_api::QueueSequence;

/// One sequence of the queue or a pair, and its part of the step.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Places in the queue; of a pair both, the older first.
    places: [usize; 2],
    /// Rows without KV of each.
    halves: [u32; 2],
    /// Sequences: 1 or 2.
    pub width: u32,
    /// Larger runs first.
    pub priority: i32,
    /// The largest draft allowed.
    pub max_draft: u32,
    /// Slots it holds, shared ones included.
    pub slots_held: u32,
    /// Whether it is admitted.
    pub running: bool,
    /// Planned: rows of this step, `width` at least or none.
    pub rows: u32,
    /// Planned: draft nodes of this step.
    pub draft: u32,
    /// Planned: whether it is preempted.
    pub preempted: bool,
}

impl Unit {
    /// The sequence at `place` of the queue, nothing planned.
    pub fn single(place: usize, sequence: &QueueSequence) -> Self {
        let QueueSequence { priority, uncomputed, max_draft, slots_held, running, .. } = *sequence;
        let (rows, draft, preempted) = (0, 0, false);
        let (places, halves) = ([place; 2], [uncomputed, 0]);
        Self { places, halves, width: 1, priority, max_draft, slots_held, running, rows, draft, preempted }
    }

    /// The pair of the sequences at `places`, nothing planned.
    pub fn pair(places: [usize; 2], sequences: [&QueueSequence; 2]) -> Self {
        let [one, other] = sequences;
        Self {
            places,
            halves: [one.uncomputed, other.uncomputed],
            width: 2,
            priority: one.priority.max(other.priority),
            max_draft: one.max_draft.min(other.max_draft),
            slots_held: one.slots_held + other.slots_held,
            running: one.running || other.running,
            ..Self::single(places[0], one)
        }
    }

    /// Its first sequence's place in the queue.
    pub fn arrival(&self) -> usize {
        self.places[0]
    }

    /// Places of its sequences in the queue.
    pub fn places(&self) -> &[usize] {
        &self.places[..self.width as usize]
    }

    /// Rows without KV; `width` is a decode.
    pub fn uncomputed(&self) -> u32 {
        self.halves[0] + self.halves[1]
    }

    /// Whether only anchors are uncomputed.
    pub fn decodes(&self) -> bool {
        self.uncomputed() == self.width
    }

    /// The planned rows of each sequence: at least one each, the first one's before the second's.
    pub fn split(&self) -> [u32; 2] {
        match self.width {
            1 => [self.rows, 0],
            _ => {
                let first = self.halves[0].min(self.rows - 1).max(self.rows.saturating_sub(self.halves[1]));
                [first, self.rows - first]
            }
        }
    }
}
