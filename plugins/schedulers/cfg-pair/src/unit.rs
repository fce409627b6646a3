//! What is planned as one.
//!
//! A unit is one sequence here. It carries what the planner weighs and what the planner decided, and says nothing of how
//! many sequences stand behind it: who gathers units names them in the plan again.

use foretoken_plugin_api::QueueSequence;

/// One sequence of the queue, and its part of the step.
#[derive(Debug, Clone, Copy)]
pub struct Unit {
    /// Its place in the queue.
    pub arrival: usize,
    /// Larger runs first.
    pub priority: i32,
    /// Rows without KV; 1 is a decode.
    pub uncomputed: u32,
    /// The largest draft allowed.
    pub max_draft: u32,
    /// Slots it holds, shared ones included.
    pub slots_held: u32,
    /// Whether it is admitted.
    pub running: bool,
    /// Planned: rows of this step.
    pub rows: u32,
    /// Planned: draft nodes of this step.
    pub draft: u32,
    /// Planned: whether it is preempted.
    pub preempted: bool,
}

impl Unit {
    /// The sequence at place `arrival` of the queue, nothing planned.
    pub fn new(arrival: usize, sequence: &QueueSequence) -> Self {
        let QueueSequence { priority, uncomputed, max_draft, slots_held, running, .. } = *sequence;
        Self { arrival, priority, uncomputed, max_draft, slots_held, running, rows: 0, draft: 0, preempted: false }
    }

    /// Whether only the anchor is uncomputed.
    pub fn decodes(&self) -> bool {
        self.uncomputed == 1
    }
}
