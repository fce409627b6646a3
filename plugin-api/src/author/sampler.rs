//! The sampler: what to keep.

use super::{Host, PartOptions};
use crate::error::Result;
use crate::types::{Guarantees, Verdicts, VerifyBatch};

/// Verifies drafts against the target's rows and chooses the next token.
pub trait Sampler: Send + Sized + 'static {
    /// Its options table.
    type Options: PartOptions;

    /// Makes an instance.
    ///
    /// # Errors
    /// With the reason if it cannot serve.
    fn new(options: Self::Options, host: Host) -> Result<Self>;

    /// For each sequence: `Verdicts::keep` along one path from the anchor, then `Verdicts::next`.
    ///
    /// # Errors
    /// Ends the sequences of the batch with this error; what they have so far is delivered.
    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()>;

    /// What it promises; the default promises nothing.
    fn guarantees(&self) -> Guarantees {
        Guarantees::default()
    }
}
