//! The `adaptive` policy: one node more where nearly all are kept, one less where hardly any are.

use std::collections::HashMap;

use foretoken_plugin_api::{QueueSequence, SeqId, StepReport};

use super::{forget, leader};
use crate::unit::Unit;

/// Above this share of kept nodes a draft may grow, below the other it shrinks.
const GROWS: f32 = 0.85;
const SHRINKS: f32 = 0.55;
/// Weight of the latest step in a sequence's acceptance.
const LATEST: f32 = 0.3;

/// Each sequence's draft length and acceptance.
pub struct Adaptive {
    least: u32,
    sequences: HashMap<SeqId, State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    draft: u32,
    acceptance: f32,
}

impl Adaptive {
    /// Drafts of at least `least` nodes.
    pub fn new(least: u32) -> Self {
        Self { least, sequences: HashMap::new() }
    }

    /// Lowers `max_draft` to each sequence's length, which starts at what is allowed.
    pub fn limit(&mut self, units: &mut [Unit], sequences: &[QueueSequence]) {
        forget(&mut self.sequences, sequences);
        for unit in units.iter_mut().filter(|unit| unit.decodes() && unit.max_draft > 0) {
            let allowed = unit.max_draft;
            let fresh = State { draft: allowed, acceptance: f32::midpoint(GROWS, SHRINKS) };
            let state = self.sequences.entry(leader(unit, sequences)).or_insert(fresh);
            // Near the end of a text less is allowed; what was learned stays.
            unit.max_draft = state.draft.max(self.least).min(allowed);
        }
    }

    /// Takes in what was kept; a step without drafts says nothing.
    pub fn observe(&mut self, report: &StepReport<'_>) {
        for report in report.sequences().iter().filter(|report| report.drafted > 0) {
            let Some(state) = self.sequences.get_mut(&report.id) else { continue };
            let kept = report.accepted as f32 / report.drafted as f32;
            state.acceptance += LATEST * (kept - state.acceptance);
            if state.acceptance > GROWS {
                state.draft = state.draft.max(report.drafted) + 1;
            } else if state.acceptance < SHRINKS {
                state.draft = state.draft.min(report.drafted).saturating_sub(1).max(self.least);
            }
        }
    }
}
