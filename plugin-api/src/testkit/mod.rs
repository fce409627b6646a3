//! What tests of plugins need: a fake host, a toy model, recorders, and a conformance suite per kind.
//!
//! A plugin is tested without the engine: [`FakeHost`] answers every service of [`HostApi`](crate::HostApi) from a
//! [`ToyModel`] whose rows can be enumerated, [`RecordingDrafts`] refuses what the engine refuses, [`Runner`] takes
//! the engine's steps, and [`conformance`] drives a whole part. The toy's KV lane holds plain tokens, so a plugin
//! that mixes up its slots gets wrong logits rather than silently plausible ones; a stub that ignores slots would
//! hide such bugs.

mod batch;
pub mod conformance;
mod drafts;
mod host;
mod lanes;
mod library;
mod noise;
mod pauses;
mod plan;
mod recorded;
mod report;
mod runner;
mod subject;
mod tensors;
mod toy;
mod warp;

pub use batch::{ProposeInput, Verdict, VerifyInput, with_propose_batch, with_verify_batch};
pub use drafts::{DrawNoise, RecordingDrafts, SinkRules, SinkSequence};
pub use host::{FakeHost, LogRecord};
pub use lanes::FakeLanes;
pub use library::{StaleLibrary, library};
pub use noise::uniform;
pub use pauses::{assert_a_pause_changes_no_draft, drafts_when_asked};
pub use plan::{PlanEntry, RecordingPlan};
pub use recorded::RecordedDraft;
pub use report::{Check, Outcome, Report};
pub use runner::Runner;
pub use subject::{KvSubject, ProposerSubject, SamplerSubject, SchedulerSubject};
pub use tensors::FakeTensors;
pub use toy::ToyModel;
pub use warp::{argmax, gumbel_draw, target_prob};
