//! Draft control: how many nodes a sequence may have in the next step.
//!
//! A policy lowers what units may draft before the planner shares rows and slots, and learns from what became of it. It
//! never changes a token under a drafter-invariant sampler, only how many passes they take.

mod acceptance;
mod adaptive;
mod cost_aware;
mod costs;
mod remembered;

use foretoken_plugin_api::{QueueSequence, StepReport};

pub use acceptance::Acceptance;
pub use adaptive::Adaptive;
pub use cost_aware::CostAware;
pub use costs::Costs;

use crate::unit::Unit;

/// The policy of a scheduler, with what it has learned.
pub enum Control {
    /// As large as allowed.
    Fixed,
    /// By each sequence's own acceptance.
    Adaptive(Adaptive),
    /// By what a step is expected to give and to take.
    CostAware(Box<CostAware>),
}

impl Control {
    /// Lowers `max_draft` of the units that decode.
    pub fn limit(&mut self, units: &mut [Unit], sequences: &[QueueSequence]) {
        match self {
            Self::Fixed => {}
            Self::Adaptive(adaptive) => adaptive.limit(units, sequences),
            Self::CostAware(cost_aware) => cost_aware.limit(units, sequences),
        }
    }

    /// Learns what the planner made of it.
    pub fn planned(&mut self, units: &[Unit], sequences: &[QueueSequence]) {
        if let Self::CostAware(cost_aware) = self {
            cost_aware.planned(units, sequences);
        }
    }

    /// Learns what the step did and cost.
    pub fn observe(&mut self, report: &StepReport<'_>) {
        match self {
            Self::Fixed => {}
            Self::Adaptive(adaptive) => adaptive.observe(report),
            Self::CostAware(cost_aware) => cost_aware.observe(report),
        }
    }
}
