//! What crosses the border between engine and plugin.
//!
//! Two kinds of types, by how they may grow. *Hot* types ([`batch`], [`draft`], [`verdict`], [`plan`], [`tensor`]) are
//! `repr(C)` and **frozen** at API level 1: a later engine adds a function to a vtable, never a field here. *Cold* ones
//! ([`facts`]) cross once, at load, as JSON text, so that they may gain fields with defaults. Slices are abi_stable's
//! behind accessors, so authors see plain `&[T]`.

pub mod batch;
pub mod draft;
pub mod facts;
pub mod forward;
pub mod ids;
pub mod plan;
pub mod sampling;
pub mod tensor;
pub mod verdict;

pub use batch::{CommitBatch, CommitSequence, ProposeBatch, ProposeSequence, SequenceSlices};
pub use draft::{ChildMode, NO_PARENT, NodeId};
pub use facts::{
    Guarantees, KvFacts, KvStats, LaneNeed, LaneSource, ModelFacts, Needs, TargetFacts, TensorInfo, TokenText,
};
pub use forward::{ForwardBatch, ForwardSequence, LogitRows};
pub use ids::{LaneId, RequestId, SeqId, Slot, Token};
pub use plan::{Companion, QueueSequence, QueueView, SequenceReport, StepReport};
pub use sampling::{NoiseKey, Purpose, SamplingParams};
pub use tensor::{DType, TensorView};
pub use verdict::{DraftTree, Verdicts, VerifyBatch, VerifySequence};
