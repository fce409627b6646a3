//! What a scheduler sees: the queue before a step, and what the step did.

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use super::{KvStats, RequestId, SeqId};

/// One unfinished sequence as a scheduler sees it. Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct QueueSequence {
    /// Which sequence.
    pub id: SeqId,
    /// Its request.
    pub request: RequestId,
    /// The other sequence of a pair; both are planned or neither.
    pub companion: Companion,
    /// Larger runs first.
    pub priority: i32,
    /// Rows whose KV is not yet computed; 1 is a decoding sequence with its anchor.
    pub uncomputed: u32,
    /// The largest draft that the proposer and the request allow.
    pub max_draft: u32,
    /// Slots it holds, shared ones included.
    pub slots_held: u32,
    /// Whether it is admitted: holds slots or has run since it was last preempted.
    pub running: bool,
}

/// Whether a sequence is half of a pair. Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct Companion {
    present: bool,
    id: SeqId,
}

impl Companion {
    /// No pair.
    pub const NONE: Self = Self { present: false, id: SeqId(0) };

    /// Half of a pair with `id`.
    pub fn of(id: SeqId) -> Self {
        Self { present: true, id }
    }

    /// The other half.
    pub fn get(self) -> Option<SeqId> {
        self.present.then_some(self.id)
    }
}

/// All unfinished sequences, oldest request first. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct QueueView<'a> {
    sequences: RSlice<'a, QueueSequence>,
    /// The KV manager's slots.
    pub kv: KvStats,
}

impl<'a> QueueView<'a> {
    /// A view of these sequences.
    pub fn new(sequences: &'a [QueueSequence], kv: KvStats) -> Self {
        Self { sequences: RSlice::from_slice(sequences), kv }
    }

    /// The sequences, in order of arrival.
    pub fn sequences(&self) -> &'a [QueueSequence] {
        self.sequences.as_slice()
    }
}

/// What one sequence did in a step. Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy)]
pub struct SequenceReport {
    /// Which sequence.
    pub id: SeqId,
    /// Rows it had in the pass.
    pub rows: u32,
    /// Nodes drafted.
    pub drafted: u32,
    /// Nodes kept.
    pub accepted: u32,
    /// Whether it is finished.
    pub finished: bool,
}

/// What a step did, and what it cost. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct StepReport<'a> {
    sequences: RSlice<'a, SequenceReport>,
    /// Rows of the whole pass.
    pub rows: u32,
    /// Nanoseconds spent in proposers.
    pub draft_ns: u64,
    /// Nanoseconds of the rest of the step: the target's pass, choosing among its tokens and keeping them.
    pub forward_ns: u64,
}

impl<'a> StepReport<'a> {
    /// A report of these sequences.
    pub fn new(sequences: &'a [SequenceReport], rows: u32, draft_ns: u64, forward_ns: u64) -> Self {
        Self { sequences: RSlice::from_slice(sequences), rows, draft_ns, forward_ns }
    }

    /// The sequences that ran.
    pub fn sequences(&self) -> &'a [SequenceReport] {
        self.sequences.as_slice()
    }
}
