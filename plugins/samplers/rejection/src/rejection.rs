//! The sampler part `rejection`: the recursive rule over every sequence of the batch.
//!
//! Lossless for chains, trees and any draft_prob that the engine recorded; at temperature 0 it compares with the argmax.

use foretoken_plugin_api::{Guarantees, Host, NoOptions, Result, Sampler, Verdicts, VerifyBatch};

use crate::chance::Philox;
use crate::rows::Rows;
use crate::walk::recursive;

/// What both parts of this library promise.
pub(crate) const GUARANTEES: Guarantees =
    Guarantees { lossless: true, drafter_invariant: false, greedy_exact: true, needs_draft_prob: true };

/// The recursive rule with reused scratch.
#[derive(Debug, Default)]
pub struct Rejection {
    rows: Rows,
}

impl Sampler for Rejection {
    type Options = NoOptions;

    fn new(_options: NoOptions, _host: Host) -> Result<Self> {
        Ok(Self::default())
    }

    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let keep = |node| verdicts.keep(index, node);
            let next_token = recursive(&mut self.rows, batch, sequence, &mut Philox, keep)?;
            verdicts.next(index, next_token);
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }
}
