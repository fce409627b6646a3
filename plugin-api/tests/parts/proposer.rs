//! A proposer with a draft model: the toy itself, its "KV" in a lane. Brings a sequence up lazily, drafts in scratch rows.

use std::collections::BTreeMap;

use foretoken_plugin_api::{
    CommitBatch, Drafts, Error, ForwardBatch, ForwardSequence, Host, LaneId, LaneNeed, LaneSource, LogitRows, Model,
    Needs, ProposeBatch, ProposeSequence, Proposer, Result, SeqId, Slot, Token,
};

use super::FaultOptions;

pub const DRAFT: usize = 3;

pub struct Drafter {
    options: FaultOptions,
    host: Host,
    model: Model,
    calls: usize,
    lens: BTreeMap<SeqId, usize>,
}

impl Drafter {
    fn is(&self, fault: &str) -> bool {
        self.options.is(fault)
    }

    /// The row of logits after the anchor, with the lane brought up to it.
    fn catch_up(&self, sequence: &ProposeSequence<'_>, logits: &mut [f32]) -> Result<()> {
        let (tokens, slots) = (sequence.tokens(), sequence.slots());
        let valid = sequence.valid_until(LaneId(0));
        let mut rows = slots[valid..].to_vec();
        rows.push(self.scratch(0));
        let context = if self.is("positions for slots") {
            (0..valid as u32).map(Slot).collect()
        } else {
            slots[..valid].to_vec()
        };
        let forward = ForwardSequence::chain(&tokens[valid..], &context, &rows, LogitRows::Last);
        self.model.forward(&ForwardBatch::new(LaneId(0), &[forward]), logits)?;
        self.host.lanes().mark(LaneId(0), &slots[valid..])
    }

    fn scratch(&self, row: usize) -> Slot {
        Slot((self.host.lanes().rows(LaneId(0)) - DRAFT + row) as u32)
    }

    fn draft(&self, index: usize, sequence: &ProposeSequence<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let vocab = self.host.target().vocab_size;
        let mut logits = vec![0.0; vocab];
        self.catch_up(sequence, &mut logits)?;
        let mut context = sequence.slots().to_vec();
        context.push(self.scratch(0));
        let mut parent = None;
        for depth in 1..=drafts.remaining(index).min(DRAFT) {
            let (node, token) = if self.is("bad token") {
                let token = vocab as Token;
                (drafts.push(index, parent, token)?, token)
            } else if self.is("pushes") {
                let token = foretoken_plugin_api::testkit::argmax(&logits);
                (drafts.push(index, parent, token)?, token)
            } else {
                drafts.draw(index, parent, &logits)?
            };
            parent = if self.is("branches") { None } else { Some(node) };
            if depth < DRAFT {
                let (tokens, slots) = ([token], [self.scratch(depth)]);
                let forward = [ForwardSequence::chain(&tokens, &context, &slots, LogitRows::Last)];
                self.model.forward(&ForwardBatch::new(LaneId(0), &forward), &mut logits)?;
                context.push(slots[0]);
            }
        }
        Ok(())
    }
}

impl Proposer for Drafter {
    type Options = FaultOptions;

    fn new(options: FaultOptions, host: Host) -> Result<Self> {
        if options.is("refuse") {
            return Err(Error::refused("this target has no heads"));
        }
        let model = host.load_model("draft", None)?;
        Ok(Self { options, host, model, calls: 0, lens: BTreeMap::new() })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        self.calls += 1;
        if self.is("first of a batch only") && batch.sequences().len() > 1 {
            return self.draft(0, &batch.sequences()[0], drafts);
        }
        for (index, sequence) in batch.sequences().iter().enumerate() {
            if self.is("lengths") && self.lens.get(&sequence.id).is_some_and(|&len| len > sequence.tokens().len()) {
                return Err(Error::failed("a sequence became shorter"));
            }
            if sequence.budget > 0 || self.is("ignores budget") {
                self.draft(index, sequence, drafts)?;
            }
            if self.is("ignores budget") {
                drafts.push(index, None, 0)?;
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let lane = LaneNeed {
            name: "kv".to_owned(),
            bytes_per_slot: self.model.facts().kv_bytes_per_slot,
            scratch_rows: DRAFT,
            source: LaneSource::Plugin,
        };
        let max_draft = if self.is("understates") { 1 } else { DRAFT };
        Needs { max_draft, draws: !self.is("hides draws"), lanes: vec![lane], ..Needs::default() }
    }

    fn commit(&mut self, batch: &CommitBatch<'_>) -> Result<()> {
        if self.is("empty batch") && batch.sequences().is_empty() {
            return Err(Error::failed("nothing to commit"));
        }
        for sequence in batch.sequences() {
            self.lens.insert(sequence.id, sequence.tokens().len());
        }
        Ok(())
    }

    fn finish(&mut self, sequence: SeqId) {
        let known = self.lens.remove(&sequence).is_some();
        assert!(known || !self.is("unknown finish"), "finish of an unknown sequence");
    }
}
