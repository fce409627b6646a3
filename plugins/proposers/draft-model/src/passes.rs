//! Which rows of the draft model run, in which passes.
//!
//! The first passes of a step bring every sequence up: the committed rows whose KV is not valid, then the anchor, which
//! gives the first guess. Each further pass runs one row of every sequence that wants another guess. Passes are cut at
//! [`MAX_ROWS`], so a long prompt's catch-up needs no large activations. Sequences that share slots (forks of one prompt) run
//! a shared row once: the later ones wait for the pass that writes it, instead of computing the prompt once each.

use std::collections::HashMap;

use foretoken_plugin_api::{
    DraftError, DraftSampling, Drafts, ForwardBatch, ForwardSequence, Host, LaneId, Model, ProposeBatch, Result, Slot,
};

use foretoken_plugin_api::guess::most_probable;

use crate::chain::{Chain, Segment};

/// The one lane: the draft model's KV.
pub const LANE: LaneId = LaneId(0);

/// Most rows of one pass.
pub const MAX_ROWS: usize = 512;

/// A sequence to draft for.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    /// Its index in the batch.
    pub number: usize,
    /// How long its draft is to be; at least 1.
    pub draft_len: usize,
}

/// The lane's rows for work not yet committed, a block per sequence of a group.
#[derive(Debug, Clone, Copy)]
pub struct Scratch {
    /// The first of them.
    pub first_row: u32,
    /// Rows of a block.
    pub block_len: u32,
}

/// Runs the draft model over groups of sequences.
pub struct Passes {
    host: Host,
    model: Model,
    vocab_size: usize,
    sampling: DraftSampling,
    min_draft_prob: f32,
    chains: Vec<Chain>,
    live: usize,
    segments: Vec<Segment>,
    /// Committed slots of this step's passes, and which pass writes each.
    written_in: HashMap<Slot, u64>,
    pass: u64,
    marks: Vec<Slot>,
    logits: Vec<f32>,
}

impl Passes {
    /// Passes of `model`, whose logits are `vocab_size` wide; a chain ends where the likeliest token has less than
    /// `min_draft_prob`.
    pub fn new(host: Host, (model, vocab_size): (Model, usize), sampling: DraftSampling, min_draft_prob: f32) -> Self {
        Self {
            host,
            model,
            vocab_size,
            sampling,
            min_draft_prob,
            chains: Vec::new(),
            live: 0,
            segments: Vec::new(),
            written_in: HashMap::new(),
            pass: 0,
            marks: Vec::new(),
            logits: Vec::new(),
        }
    }

    /// Starts a step.
    pub fn begin(&mut self) {
        self.live = 0;
        self.written_in.clear();
        self.segments.clear();
    }

    /// The chains of the group drafted last, in its order.
    pub fn chains(&self) -> &[Chain] {
        &self.chains[..self.live]
    }

    /// Drafts for one group; its `i`-th sequence takes the `i`-th block of `scratch`.
    ///
    /// # Errors
    /// The model's, the lanes', and refused guesses other than for want of budget.
    pub fn draft(
        &mut self,
        batch: &ProposeBatch<'_>,
        drafts: &mut Drafts<'_>,
        group: &[Wanted],
        scratch: Scratch,
    ) -> Result<()> {
        self.live = group.len();
        self.chains.resize_with(self.chains.len().max(self.live), Chain::default);
        let blocks = (scratch.first_row..).step_by(scratch.block_len as usize);
        for ((chain, wanted), block) in self.chains.iter_mut().zip(group).zip(blocks) {
            let sequence = &batch.sequences()[wanted.number];
            chain.start(*wanted, sequence, block..block + scratch.block_len);
        }
        self.bring_up(batch, drafts)?;
        loop {
            let next = |(chain, state): (usize, &Chain)| Some(Segment { chain, rows: state.next_row()? });
            self.segments.extend(self.chains[..self.live].iter().enumerate().filter_map(next));
            if self.segments.is_empty() {
                return Ok(());
            }
            self.run(batch, drafts)?;
        }
    }

    fn bring_up(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let mut rows = 0;
        for index in 0..self.live {
            let (mut start, shares_pending) = self.first_missing(index, batch);
            if shares_pending {
                self.run(batch, drafts)?;
                rows = 0;
            }
            let end = self.chains[index].anchor + 1;
            while start < end {
                let segment = Segment { chain: index, rows: start..end.min(start + MAX_ROWS - rows) };
                (start, rows) = (segment.rows.end, rows + segment.rows.len());
                let slots = self.chains[index].committed_slots(&segment.rows);
                self.written_in.extend(slots.iter().map(|&slot| (slot, self.pass)));
                self.segments.push(segment);
                if rows == MAX_ROWS {
                    self.run(batch, drafts)?;
                    rows = 0;
                }
            }
        }
        if self.segments.is_empty() { Ok(()) } else { self.run(batch, drafts) }
    }

    /// The first row of a chain that neither earlier steps nor this step's passes compute, and whether it follows rows
    /// of the pass being put together.
    fn first_missing(&self, index: usize, batch: &ProposeBatch<'_>) -> (usize, bool) {
        let chain = &self.chains[index];
        let valid = batch.sequences()[chain.number].valid_until(LANE).min(chain.anchor);
        let shared = chain.path[valid..chain.anchor].iter().map_while(|slot| self.written_in.get(slot));
        let (shared, pending) = shared.fold((0, false), |(n, pending), &pass| (n + 1, pending || pass == self.pass));
        (valid + shared, pending)
    }

    /// Runs the segments put together so far, and takes a guess for each that asks.
    fn run(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let Self { chains, segments, .. } = self;
        let committed = |chain: &Chain| batch.sequences()[chain.number].tokens();
        let rows = |segment: &Segment| {
            let chain = &chains[segment.chain];
            chain.rows(&segment.rows, committed(chain))
        };
        let sequences: Vec<ForwardSequence<'_>> = segments.iter().map(rows).collect();
        let asked: usize = sequences.iter().map(ForwardSequence::logit_rows).sum();
        self.logits.resize(self.logits.len().max(asked * self.vocab_size), 0.0);
        self.model.forward(&ForwardBatch::new(LANE, &sequences), &mut self.logits[..asked * self.vocab_size])?;
        self.host.metric("draft_passes", 1.0);
        self.host.metric("draft_rows", segments.iter().map(|segment| segment.rows.len()).sum::<usize>() as f64);

        self.marks.clear();
        self.marks.extend(segments.iter().flat_map(|it| chains[it.chain].committed_slots(&it.rows)));
        if !self.marks.is_empty() {
            self.host.lanes().mark(LANE, &self.marks)?;
        }
        self.guess(drafts)?;
        self.segments.clear();
        self.pass += 1;
        Ok(())
    }

    fn guess(&mut self, drafts: &mut Drafts<'_>) -> Result<()> {
        let mut logits = self.logits.chunks_exact(self.vocab_size);
        for segment in &self.segments {
            let chain = &mut self.chains[segment.chain];
            if !chain.asks(&segment.rows) {
                continue;
            }
            let row = logits.next().expect("one row of logits per segment that asks");
            // Decided before a token is drawn, so that what is kept does not depend on it.
            let is_unsure = || most_probable(row, 1).next().is_some_and(|(_, most)| most < self.min_draft_prob);
            if self.min_draft_prob > 0.0 && is_unsure() {
                chain.stop();
                continue;
            }
            match self.sampling.guess(drafts, chain.number, chain.last, row) {
                Ok((node, token)) => chain.push(node, token),
                Err(DraftError::BudgetExhausted) => chain.stop(),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}
