//! Identifiers. Newtypes, so that a slot is never taken for a token; never reused within one engine.

use abi_stable::StableAbi;

/// A vocabulary id.
pub type Token = u32;

/// One token stream with its own KV.
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SeqId(pub u64);

/// What a user asked for; its `n` completions are `n` sequences.
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);

/// Room for one token in every layer's K and V, and in every lane.
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub u32);

impl Slot {
    /// The slot as an index into a lane or a KV store.
    pub fn index(self) -> usize {
        self.0 as usize
    }

    /// The same slots as plain numbers, as kernels take them.
    pub fn as_u32s(slots: &[Slot]) -> &[u32] {
        crate::abi::slots_as_u32s(slots)
    }
}

/// A proposer's state that follows tokens; the index into its own `Needs::lanes`.
#[repr(transparent)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct LaneId(pub u32);
