//! What a proposer sees: sequences to draft for, and what became of the drafts.

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use super::{NodeId, SamplingParams, SeqId, Slot, Token};

/// One decoding sequence to draft for. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ProposeSequence<'a> {
    /// Which sequence.
    pub id: SeqId,
    /// How many tokens the completion already has.
    pub output_index: u32,
    /// How many nodes its draft may have; 0 asks for none, but state may be brought up.
    pub budget: u32,
    /// The request's sampling parameters.
    pub sampling: SamplingParams,
    tokens: RSlice<'a, Token>,
    slots: RSlice<'a, Slot>,
    valid_until: RSlice<'a, u32>,
}

/// The fields of a [`ProposeSequence`] that are slices.
#[derive(Clone, Copy)]
pub struct SequenceSlices<'a> {
    /// All committed tokens; the last one is the anchor.
    pub tokens: &'a [Token],
    /// The slots of all tokens but the anchor.
    pub slots: &'a [Slot],
    /// Per lane: how many leading slots hold valid state.
    pub valid_until: &'a [u32],
}

impl<'a> ProposeSequence<'a> {
    /// A sequence to draft for.
    pub fn new(
        id: SeqId,
        output_index: u32,
        budget: u32,
        sampling: SamplingParams,
        slices: SequenceSlices<'a>,
    ) -> Self {
        Self {
            id,
            output_index,
            budget,
            sampling,
            tokens: RSlice::from_slice(slices.tokens),
            slots: RSlice::from_slice(slices.slots),
            valid_until: RSlice::from_slice(slices.valid_until),
        }
    }

    /// All committed tokens, prompt included; the last one is the anchor.
    pub fn tokens(&self) -> &'a [Token] {
        self.tokens.as_slice()
    }

    /// The slots of all tokens but the anchor, in position order.
    pub fn slots(&self) -> &'a [Slot] {
        self.slots.as_slice()
    }

    /// How many leading slots hold valid state of this lane (an index into the proposer's `Needs::lanes`).
    pub fn valid_until(&self, lane: super::LaneId) -> usize {
        self.valid_until.get(lane.0 as usize).map_or(0, |&valid| valid as usize)
    }
}

/// The sequences of one propose call. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ProposeBatch<'a> {
    sequences: RSlice<'a, ProposeSequence<'a>>,
}

impl<'a> ProposeBatch<'a> {
    /// A batch of these sequences; their order is the index that `Drafts` takes.
    pub fn new(sequences: &'a [ProposeSequence<'a>]) -> Self {
        Self { sequences: RSlice::from_slice(sequences) }
    }

    /// The sequences, in the order that `Drafts` counts them.
    pub fn sequences(&self) -> &'a [ProposeSequence<'a>] {
        self.sequences.as_slice()
    }
}

/// One sequence whose tokens were committed in this step, prefill included. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct CommitSequence<'a> {
    /// Which sequence.
    pub id: SeqId,
    /// How many slots the sequence had before this step.
    pub base_len: u32,
    kept: RSlice<'a, NodeId>,
    tokens: RSlice<'a, Token>,
    slots: RSlice<'a, Slot>,
}

impl<'a> CommitSequence<'a> {
    /// A committed sequence; `kept` is the kept path through this step's draft.
    pub fn new(id: SeqId, base_len: u32, kept: &'a [NodeId], tokens: &'a [Token], slots: &'a [Slot]) -> Self {
        let (kept, tokens) = (RSlice::from_slice(kept), RSlice::from_slice(tokens));
        Self { id, base_len, kept, tokens, slots: RSlice::from_slice(slots) }
    }

    /// The kept path as node indices of this step's draft, root to leaf.
    pub fn kept(&self) -> &'a [NodeId] {
        self.kept.as_slice()
    }

    /// All committed tokens, the new anchor included.
    pub fn tokens(&self) -> &'a [Token] {
        self.tokens.as_slice()
    }

    /// The committed slots. Those from `base_len` on are new: the old anchor's first, then one per kept node (in a
    /// prefill step: one per prompt token computed).
    pub fn slots(&self) -> &'a [Slot] {
        self.slots.as_slice()
    }
}

/// What became of the step. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct CommitBatch<'a> {
    sequences: RSlice<'a, CommitSequence<'a>>,
}

impl<'a> CommitBatch<'a> {
    /// A batch of these sequences.
    pub fn new(sequences: &'a [CommitSequence<'a>]) -> Self {
        Self { sequences: RSlice::from_slice(sequences) }
    }

    /// Every sequence that committed rows in this step.
    pub fn sequences(&self) -> &'a [CommitSequence<'a>] {
        self.sequences.as_slice()
    }
}
