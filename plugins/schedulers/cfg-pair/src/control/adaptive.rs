//! The `adaptive` policy: one node more where nearly all are kept, one less where hardly any are.

use foretoken_plugin_api::{QueueSequence, StepReport};

use super::remembered::Remembered;
use crate::unit::Unit;

/// Above this share of kept nodes a draft may grow, below the other it shrinks.
const GROWS: f32 = 0.85;
const SHRINKS: f32 = 0.55;
/// Weight of the latest step in a sequence's acceptance.
const LATEST: f32 = 0.3;

/// Each sequence's draft length and acceptance.
pub struct Adaptive {
    least: u32,
    sequences: Remembered<State>,
}

#[derive(Debug, Clone, Copy)]
struct State {
    /// Unknown before the first one.
    draft: Option<u32>,
    acceptance: f32,
}

impl Adaptive {
    /// Drafts of at least `least` nodes.
    pub fn new(least: u32) -> Self {
        Self { least, sequences: Remembered::default() }
    }

    /// Lowers `max_draft` to each sequence's length, which starts at what is allowed.
    pub fn limit(&mut self, units: &mut [Unit], sequences: &[QueueSequence]) {
        let acceptance = f32::midpoint(GROWS, SHRINKS);
        self.sequences.follow(sequences, |_| State { draft: None, acceptance });
        for unit in units.iter_mut().filter(|unit| unit.decodes() && unit.max_draft > 0) {
            let allowed = unit.max_draft;
            let draft = *self.sequences.at_mut(unit.arrival()).draft.get_or_insert(allowed);
            // Near the end of a text less is allowed; what was learned stays.
            unit.max_draft = draft.max(self.least).min(allowed);
        }
    }

    /// Takes in what was kept; a step without drafts says nothing.
    pub fn observe(&mut self, report: &StepReport<'_>) {
        for report in report.sequences().iter().filter(|report| report.drafted > 0) {
            let Some(state) = self.sequences.of(report.id) else { continue };
            let Some(draft) = &mut state.draft else { continue };
            let kept = report.accepted as f32 / report.drafted as f32;
            state.acceptance += LATEST * (kept - state.acceptance);
            if state.acceptance > GROWS {
                *draft = (*draft).max(report.drafted) + 1;
            } else if state.acceptance < SHRINKS {
                *draft = (*draft).min(report.drafted).saturating_sub(1).max(self.least);
            }
        }
    }
}
