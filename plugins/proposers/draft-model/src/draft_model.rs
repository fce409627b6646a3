//! The proposer: a model of the target's vocabulary, run a few tokens ahead.
//!
//! Its KV follows the target's slots in a lane, so commit, rollback, forks and prefix hits need no word from here. What is
//! computed while drafting has no slots yet and goes to scratch rows after the lane's last slot: a block per sequence,
//! copied to the slots of the kept path at commit (`keep_and_rollback`) or left to be overwritten (`discard`). Writing it
//! to the reserved slots instead would save the copy, but slots are reserved after drafting, when the tree is known.
//! Scratch is bounded: a batch of more sequences drafts in groups, and only the last group's blocks outlive the call.

use std::collections::HashMap;

use foretoken_plugin_api::drafting::group_len;
use foretoken_plugin_api::{
    CommitBatch, DraftSampling, Drafts, Error, Host, LaneNeed, LaneSource, ModelFacts, Needs, ProposeBatch,
    ProposeSequence, Proposer, Result, SeqId, Slot,
};

use crate::passes::{LANE, Passes, Scratch, Wanted};
use crate::{DraftModelOptions, KvStrategy, drafter};

/// Drafts with a smaller model.
pub struct DraftModel {
    host: Host,
    facts: ModelFacts,
    max_draft: usize,
    group_len: usize,
    kv_strategy: KvStrategy,
    sampling: DraftSampling,
    passes: Passes,
    wanted: Vec<Wanted>,
    /// Which chain of the last group a sequence has, until the step is committed.
    kept: HashMap<SeqId, usize>,
    from: Vec<Slot>,
    to: Vec<Slot>,
}

impl Proposer for DraftModel {
    type Options = DraftModelOptions;

    fn new(options: DraftModelOptions, host: Host) -> Result<Self> {
        if options.num_speculative_tokens == 0 {
            return Err(Error::options(
                "draft-model: num_speculative_tokens is 0, expected at least 1 (leave out [proposer] for plain decoding)",
            ));
        }
        if !(0.0..=1.0).contains(&options.min_draft_prob) {
            let got = options.min_draft_prob;
            return Err(Error::options(format!("draft-model: min_draft_prob is {got}, expected 0 to 1")));
        }
        let source = (options.model.as_deref(), options.quantize, options.dtype.as_deref());
        let (model, facts) = drafter::load("draft-model", source, options.vocabulary, &host)?;
        let group_len = group_len(&host.target());
        Ok(Self {
            passes: Passes::new(
                host.clone(),
                (model, facts.vocab_size),
                options.draft_sampling,
                options.min_draft_prob,
            ),
            host,
            facts,
            max_draft: options.num_speculative_tokens,
            group_len,
            kv_strategy: options.kv_strategy,
            sampling: options.draft_sampling,
            wanted: Vec::new(),
            kept: HashMap::new(),
            from: Vec::new(),
            to: Vec::new(),
        })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        // A draft of a step that nobody committed (a fault elsewhere) is void: its scratch is about to be written over.
        self.kept.clear();
        self.passes.begin();
        self.wanted.clear();
        for (number, sequence) in batch.sequences().iter().enumerate() {
            let draft_len = self.draft_len(sequence).min(drafts.remaining(number));
            self.wanted.extend((draft_len > 0).then_some(Wanted { number, draft_len }));
        }
        let scratch = self.scratch()?;
        // The short group goes first, so that the group that keeps its scratch is a full one.
        let (short, full) = self.wanted.split_at(self.wanted.len() % self.group_len);
        for group in std::iter::once(short).chain(full.chunks(self.group_len)) {
            if !group.is_empty() {
                self.passes.draft(batch, drafts, group, scratch)?;
            }
        }
        if self.kv_strategy == KvStrategy::KeepAndRollback {
            let ids = self.passes.chains().iter().map(|chain| batch.sequences()[chain.number].id);
            self.kept.extend(ids.zip(0..));
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let lane = LaneNeed {
            name: "draft-kv".to_owned(),
            bytes_per_slot: self.facts.kv_bytes_per_slot,
            scratch_rows: self.scratch_rows(),
            source: LaneSource::Plugin,
        };
        let draws = self.sampling == DraftSampling::Drawn;
        Needs { max_draft: self.max_draft, draws, lanes: vec![lane], ..Needs::default() }
    }

    fn commit(&mut self, batch: &CommitBatch<'_>) -> Result<()> {
        self.from.clear();
        self.to.clear();
        for sequence in batch.sequences() {
            let Some(index) = self.kept.remove(&sequence.id) else { continue };
            let (chain, base) = (&self.passes.chains()[index], sequence.base_len as usize);
            if chain.anchor != base {
                continue;
            }
            let from = chain.scratch_of(sequence.tokens().get(base..).unwrap_or_default());
            let to = sequence.slots().get(base..).unwrap_or_default();
            let keep_len = from.len().min(to.len());
            self.from.extend_from_slice(&from[..keep_len]);
            self.to.extend_from_slice(&to[..keep_len]);
        }
        if self.to.is_empty() {
            return Ok(());
        }
        self.host.lanes().copy(LANE, &self.from, &self.to)?;
        self.host.lanes().mark(LANE, &self.to)
    }

    fn finish(&mut self, sequence: SeqId) {
        self.kept.remove(&sequence);
    }
}

impl DraftModel {
    /// How long a draft this sequence can have: the last token of a draft is never run, all before it need a position.
    fn draft_len(&self, sequence: &ProposeSequence<'_>) -> usize {
        let anchor = sequence.tokens().len().saturating_sub(1);
        self.max_draft.min(sequence.budget as usize).min(self.facts.max_positions.saturating_sub(anchor))
    }

    fn scratch_rows(&self) -> usize {
        self.group_len * self.max_draft
    }

    /// A block holds the anchor and all drafted tokens but the last.
    fn scratch(&self) -> Result<Scratch> {
        let rows = self.host.lanes().rows(LANE);
        let needed = self.scratch_rows();
        let short = || Error::failed(format!("draft-model: a lane of {rows} rows has no {needed} scratch rows"));
        let first_row = rows.checked_sub(needed).ok_or_else(short)? as u32;
        Ok(Scratch { first_row, block_len: self.max_draft as u32 })
    }
}
