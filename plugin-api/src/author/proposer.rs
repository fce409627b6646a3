//! The proposer: what to guess.

use super::{Drafts, Host, PartOptions};
use crate::error::Result;
use crate::types::{CommitBatch, Needs, ProposeBatch, SeqId};

/// Guesses tokens. Whatever it does, the output stays the model's: a wrong guess costs time only.
pub trait Proposer: Send + Sized + 'static {
    /// Its options table.
    type Options: PartOptions;

    /// Makes an instance.
    ///
    /// # Errors
    /// [`Error::refused`](crate::Error::refused) with the reason if it cannot serve this target.
    fn new(options: Self::Options, host: Host) -> Result<Self>;

    /// Drafts for each sequence of the batch, within its budget. Nothing pushed is plain decoding.
    ///
    /// # Errors
    /// Any error drops the drafts of this call and counts as a fault; after `max_faults` the proposer is quarantined.
    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()>;

    /// What it asks of the engine, once, after `new`.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Learns what became of the step: the place to keep state in lanes.
    ///
    /// # Errors
    /// Counts as a fault.
    fn commit(&mut self, batch: &CommitBatch<'_>) -> Result<()> {
        let _ = batch;
        Ok(())
    }

    /// A sequence is gone: finished, aborted, or preempted (then it may come back from its first token).
    fn finish(&mut self, sequence: SeqId) {
        let _ = sequence;
    }
}
