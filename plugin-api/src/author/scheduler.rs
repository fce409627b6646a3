//! The scheduler: who runs, with how many prompt tokens and how large a draft.

use super::{Host, PartOptions};
use crate::abi::plan::PlanObject;
use crate::error::Result;
use crate::types::{QueueView, SeqId, StepReport};

/// Plans steps.
pub trait Scheduler: Send + Sized + 'static {
    /// Its options table.
    type Options: PartOptions;

    /// Makes an instance.
    ///
    /// # Errors
    /// With the reason if it cannot serve.
    fn new(options: Self::Options, host: Host) -> Result<Self>;

    /// Plans one step. Sequences not named wait; slots must suffice for what is named, after the preemptions named.
    ///
    /// # Errors
    /// Ends all requests with this error.
    fn schedule(&mut self, queue: &QueueView<'_>, plan: &mut Plan<'_>) -> Result<()>;

    /// Learns what the step did and cost. Before the first request come reports without sequences: passes of a few sizes
    /// that the engine has timed.
    fn observe(&mut self, report: &StepReport<'_>) {
        let _ = report;
    }

    /// Whether it plans both sequences of a pair together.
    fn supports_pairs(&self) -> bool {
        false
    }
}

/// Takes a plan; the engine's side of [`Plan`].
pub trait PlanSink {
    /// See [`Plan::run`].
    fn run(&mut self, sequence: SeqId, rows: u32, draft_budget: u32);
    /// See [`Plan::preempt`].
    fn preempt(&mut self, sequence: SeqId);
}

/// The plan of one step, being made.
pub struct Plan<'a> {
    object: PlanObject<'a>,
}

impl<'a> Plan<'a> {
    /// A plan that goes to `sink`.
    pub fn new<S: PlanSink>(sink: &'a mut S) -> Self {
        Self { object: PlanObject::new(sink) }
    }

    pub(crate) fn from_object(object: PlanObject<'a>) -> Self {
        Self { object }
    }

    pub(crate) fn object(&mut self) -> PlanObject<'_> {
        self.object.reborrow()
    }

    /// Runs `sequence` with `rows` of its uncomputed rows (at least 1) and at most `draft_budget` draft nodes; a draft
    /// needs `rows` to reach the anchor.
    pub fn run(&mut self, sequence: SeqId, rows: u32, draft_budget: u32) {
        self.object.run(sequence, rows, draft_budget);
    }

    /// Takes the slots of `sequence` back before anything runs; it is recomputed later, losing no token.
    pub fn preempt(&mut self, sequence: SeqId) {
        self.object.preempt(sequence);
    }
}
