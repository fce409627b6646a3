//! The KV manager: where keys and values live.

use super::{Host, PartOptions};
use crate::error::Result;
use crate::types::{KvFacts, KvStats, SeqId, Slot, Token};

/// Hands out slots. It moves no data: keys are rotated by position, so a kept path's slots are simply appended.
pub trait KvManager: Send + Sized + 'static {
    /// Its options table.
    type Options: PartOptions;

    /// Makes an instance that manages slots `0..facts.num_slots`.
    ///
    /// # Errors
    /// With the reason if it cannot serve.
    fn new(options: Self::Options, facts: KvFacts, host: Host) -> Result<Self>;

    /// Takes a sequence in and returns how many leading tokens it already has slots for (a prefix hit; at most
    /// `tokens.len() - 1`).
    ///
    /// # Errors
    /// If the sequence is already there.
    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize>;

    /// Appends `count` reserved slots to the sequence's list.
    ///
    /// # Errors
    /// [`Error::out_of_slots`](crate::Error::out_of_slots), changing nothing, if there are too few.
    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()>;

    /// The committed slots in position order, then the reserved ones.
    fn slots(&self, sequence: SeqId) -> &[Slot];

    /// Keeps the reserved slots named by `keep` (ascending indices into the reservation), in order, and frees the rest;
    /// `tokens` are the tokens those slots hold.
    ///
    /// # Errors
    /// If nothing is reserved or an index is out of range.
    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()>;

    /// Frees the reserved slots.
    fn rollback(&mut self, sequence: SeqId);

    /// Makes `child` a sequence with the parent's committed slots, shared.
    ///
    /// # Errors
    /// If the parent is not there or the child is.
    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()>;

    /// Lets a sequence go; its slots become free, or cached.
    fn free(&mut self, sequence: SeqId);

    /// Whether reserved slots can be given back with nothing kept of them. A manager of state that only moves forward (a
    /// recurrence, a ring that overwrites) says no, upon which the engine refuses proposers.
    fn can_rollback(&self) -> bool {
        true
    }

    /// The balance.
    fn stats(&self) -> KvStats;

    /// Recounts everything; the engine calls this after every step when `checks = true`.
    ///
    /// # Errors
    /// What does not balance.
    fn check(&self) -> Result<()> {
        Ok(())
    }
}
