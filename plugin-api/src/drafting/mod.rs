//! Drafting with a network that keeps keys and values in a lane: which rows run in which pass, for chains and trees.
//!
//! A draft model, an EAGLE head and a multi-token-prediction module differ in what a row reads and gives; what they share is
//! here. The first passes bring the lane up: committed rows that are not valid, then the anchor's, whose logits start the
//! draft. Each further pass runs the frontiers of all drafts together. Rows of the anchor and of drafted tokens go to scratch
//! rows of the lane and are computed again once committed: a few more rows cost little in a pass that reads the network's
//! weights anyway, and nothing has to be copied at commit.
//!
//! An author implements [`DraftNetwork`] and calls [`Drafting::run`] from `propose`. What other proposers with a network
//! need as well stands beside it: [`DraftShape`] (what drafts look like), [`Marginals`] (drafts of independent rows of
//! logits) and [`HiddenLane`] (the target's hidden rows).

mod draft;
mod hidden;
mod marginals;
mod pass;
mod shape;

pub use draft::Growth;
pub use hidden::HiddenLane;
pub use marginals::Marginals;
pub use pass::{DraftPass, Stretch};
pub use shape::DraftShape;

use draft::Draft;

use crate::author::{Drafts, Host};
use crate::error::{DraftError, Error, Result};
use crate::types::{LaneId, ProposeBatch, TargetFacts, Token};

/// What runs the rows.
pub trait DraftNetwork {
    /// Runs the rows of `pass` and puts the logits of its asked rows, `[asked, vocabulary]`, into `logits`.
    ///
    /// # Errors
    /// Any, which ends the call to `propose`.
    fn run(&mut self, pass: &DraftPass, batch: &ProposeBatch<'_>, logits: &mut Vec<f32>) -> Result<()>;

    /// Width of a row of logits.
    fn vocab_size(&self) -> usize;

    /// The target's token for each of the network's; empty where they are the same.
    fn targets(&self) -> &[Token] {
        &[]
    }
}

/// Most sequences that draft together.
const MAX_GROUP: usize = 64;

/// How many sequences draft together: all that can run, up to a bound on what scratch rows take.
pub fn group_len(target: &TargetFacts) -> usize {
    match target.max_sequences {
        0 => MAX_GROUP,
        most => most.min(MAX_GROUP),
    }
}

/// Where a network's rows lie, and how many run at once.
#[derive(Debug, Clone, Copy)]
pub struct DraftLane {
    /// The lane of keys and values.
    pub lane: LaneId,
    /// Leading tokens that have no row: 1 for a head that reads the hidden row before a token.
    pub skipped: usize,
    /// Scratch rows of one draft: the anchor's, and one for every node that runs.
    pub scratch_rows: usize,
    /// Most sequences that draft together.
    pub group_len: usize,
    /// Most rows of one pass while bringing up.
    pub max_rows: usize,
    /// The target's vocabulary.
    pub vocab_size: usize,
}

impl DraftLane {
    /// Scratch rows to ask of the lane.
    pub fn total_scratch(&self) -> usize {
        self.group_len * self.scratch_rows
    }
}

/// Runs drafts; buffers that are reused.
#[derive(Default)]
pub struct Drafting {
    pass: DraftPass,
    logits: Vec<f32>,
    full: Vec<f32>,
}

impl Drafting {
    /// Drafts for the batch's sequences `wanted`; `growth` says how the draft of one (its number, its remaining budget)
    /// grows.
    ///
    /// # Errors
    /// The network's, the lanes', and refused guesses other than for want of budget.
    pub fn run(
        &mut self,
        (host, lane): (&Host, DraftLane),
        network: &mut dyn DraftNetwork,
        (batch, wanted): (&ProposeBatch<'_>, &[usize]),
        drafts: &mut Drafts<'_>,
        growth: &dyn Fn(usize, usize) -> Growth,
    ) -> Result<()> {
        let (rows, needed) = (host.lanes().rows(lane.lane), lane.total_scratch());
        let short = || Error::failed(format!("lane {} of {rows} rows has no {needed} scratch rows", lane.lane.0));
        let first = rows.checked_sub(needed).ok_or_else(short)? as u32;
        self.full.resize(lane.vocab_size, 0.0);
        for group in wanted.chunks(lane.group_len.max(1)) {
            let block = lane.scratch_rows as u32;
            let start = |(place, &number): (u32, &usize)| {
                let scratch = first + place * block..first + (place + 1) * block;
                let growth = growth(number, drafts.remaining(number));
                Draft::new(number, &batch.sequences()[number], (growth, lane.skipped), scratch)
            };
            let mut growing: Vec<Draft> = (0..).zip(group).map(start).collect();
            self.bring_up((host, lane), network, batch, drafts, &mut growing)?;
            while growing.iter().any(|draft| !draft.frontier().is_empty()) {
                self.pass.fill_frontiers(&growing);
                self.step(network, batch, drafts, &mut growing)?;
            }
        }
        Ok(())
    }

    /// Runs the rows that are not valid, and the anchors'.
    fn bring_up(
        &mut self,
        (host, lane): (&Host, DraftLane),
        network: &mut dyn DraftNetwork,
        batch: &ProposeBatch<'_>,
        drafts: &mut Drafts<'_>,
        growing: &mut [Draft],
    ) -> Result<()> {
        let start = |draft: &Draft| {
            let sequence = &batch.sequences()[draft.number()];
            sequence.valid_until(lane.lane).clamp(lane.skipped, sequence.tokens().len() - 1)
        };
        let mut starts: Vec<usize> = growing.iter().map(start).collect();
        loop {
            let is_last = self.pass.fill_missing(batch, growing, lane, &mut starts);
            self.step(network, batch, drafts, growing)?;
            let marks = self.pass.committed(batch, growing, lane.skipped);
            host.lanes().mark(lane.lane, &marks)?;
            if is_last {
                return Ok(());
            }
        }
    }

    /// Runs the pass and grows the drafts by the logits of its asked rows.
    fn step(
        &mut self,
        network: &mut dyn DraftNetwork,
        batch: &ProposeBatch<'_>,
        drafts: &mut Drafts<'_>,
        growing: &mut [Draft],
    ) -> Result<()> {
        network.run(&self.pass, batch, &mut self.logits)?;
        let asked = &self.pass.asked;
        let rows: Vec<(usize, &[f32])> =
            asked.iter().map(|(_, row)| *row).zip(self.logits.chunks_exact(network.vocab_size())).collect();
        let mut start = 0;
        for chunk in asked.chunk_by(|a, b| a.0 == b.0) {
            let rows = &rows[start..start + chunk.len()];
            start += chunk.len();
            match growing[chunk[0].0].grow(rows, network.targets(), &mut self.full, drafts) {
                Ok(()) | Err(DraftError::BudgetExhausted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
