//! A plan sink that records.

use crate::author::PlanSink;
use crate::types::SeqId;

/// One entry of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanEntry {
    /// `Plan::run`.
    Run {
        /// Which sequence.
        id: SeqId,
        /// Rows to compute.
        rows: u32,
        /// Draft nodes it may have.
        draft_budget: u32,
    },
    /// `Plan::preempt`.
    Preempt(SeqId),
}

/// Records a plan in the order it was made.
#[derive(Debug, Clone, Default)]
pub struct RecordingPlan {
    /// The entries.
    pub entries: Vec<PlanEntry>,
}

impl RecordingPlan {
    /// The sequences that run: id, rows, draft budget.
    pub fn runs(&self) -> impl Iterator<Item = (SeqId, u32, u32)> + '_ {
        self.entries.iter().filter_map(|entry| match *entry {
            PlanEntry::Run { id, rows, draft_budget } => Some((id, rows, draft_budget)),
            PlanEntry::Preempt(_) => None,
        })
    }

    /// The sequences preempted.
    pub fn preempted(&self) -> impl Iterator<Item = SeqId> + '_ {
        self.entries.iter().filter_map(|entry| match *entry {
            PlanEntry::Preempt(id) => Some(id),
            PlanEntry::Run { .. } => None,
        })
    }
}

impl PlanSink for RecordingPlan {
    fn run(&mut self, id: SeqId, rows: u32, draft_budget: u32) {
        self.entries.push(PlanEntry::Run { id, rows, draft_budget });
    }

    fn preempt(&mut self, id: SeqId) {
        self.entries.push(PlanEntry::Preempt(id));
    }
}
