//! The engine's steps on the toy model, for one proposer: prefill, propose, verify, commit, preempt.
//!
//! The runner decodes with the rule of the default sampler (a draft is kept while it equals the target's own token),
//! so its text never depends on the proposer and a check can assert that. Slots are handed out in a scrambled order:
//! a proposer that takes a position for a slot goes wrong here, as it would after some minutes of serving.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::batch::{ProposeInput, with_propose_batch};
use super::drafts::{DrawNoise, RecordingDrafts, SinkRules, SinkSequence, target_token};
use super::host::FakeHost;
use super::recorded::RecordedDraft;
use super::subject::ProposerSubject;
use crate::author::Drafts;
use crate::error::Result;
use crate::types::{
    CommitBatch, CommitSequence, LaneId, LaneSource, Needs, NodeId, NoiseKey, SamplingParams, SeqId, Slot, Token,
};

struct Live {
    tokens: Vec<Token>,
    slots: Vec<Slot>,
    prompt_len: usize,
}

/// Drives one proposer over the toy model.
pub struct Runner {
    host: Arc<FakeHost>,
    needs: Needs,
    sampling: SamplingParams,
    live: BTreeMap<SeqId, Live>,
    free: Vec<Slot>,
}

impl Runner {
    /// Reads the proposer's needs and allocates its lanes for `num_slots` slots.
    ///
    /// # Errors
    /// The proposer's.
    pub fn new(host: &Arc<FakeHost>, proposer: &mut dyn ProposerSubject, num_slots: u32) -> Result<Self> {
        let needs = proposer.needs()?;
        host.allocate_lanes(&needs.lanes, num_slots as usize);
        let mut free: Vec<Slot> = (0..num_slots).map(Slot).collect();
        free.sort_by_key(|slot| super::toy::mix(u64::from(slot.0)));
        Ok(Self { host: Arc::clone(host), needs, sampling: SamplingParams::GREEDY, live: BTreeMap::new(), free })
    }

    /// The same with other sampling parameters than greedy.
    #[must_use]
    pub fn with_sampling(self, sampling: SamplingParams) -> Self {
        Self { sampling, ..self }
    }

    /// What the proposer asked for.
    pub fn needs(&self) -> &Needs {
        &self.needs
    }

    /// All tokens of a sequence.
    ///
    /// # Panics
    /// If it is not there.
    pub fn tokens(&self, id: SeqId) -> &[Token] {
        &self.live[&id].tokens
    }

    /// Takes a sequence in and computes its prompt in chunks of at most `chunk` rows, as chunked prefill does.
    ///
    /// # Errors
    /// The proposer's.
    ///
    /// # Panics
    /// If the slots run out.
    pub fn admit(
        &mut self,
        proposer: &mut dyn ProposerSubject,
        id: SeqId,
        prompt: &[Token],
        chunk: usize,
    ) -> Result<()> {
        self.live.insert(id, Live { tokens: prompt.to_vec(), slots: Vec::new(), prompt_len: prompt.len() });
        self.prefill(proposer, id, chunk)
    }

    /// Takes a sequence in without telling the proposer, as if it had been off: all but the anchor has slots.
    ///
    /// # Panics
    /// If the slots run out.
    pub fn admit_silently(&mut self, id: SeqId, tokens: &[Token]) {
        let slots = self.take(tokens.len() - 1);
        self.live.insert(id, Live { tokens: tokens.to_vec(), slots, prompt_len: tokens.len() });
    }

    /// Takes the slots of a sequence back and brings it in again from its first token.
    ///
    /// # Errors
    /// The proposer's.
    pub fn preempt(&mut self, proposer: &mut dyn ProposerSubject, id: SeqId) -> Result<()> {
        let slots = self.live.get_mut(&id).map(|live| std::mem::take(&mut live.slots)).unwrap_or_default();
        self.free.extend(slots);
        proposer.finish(id)?;
        self.prefill(proposer, id, usize::MAX)
    }

    /// Lets a sequence go.
    ///
    /// # Errors
    /// The proposer's.
    pub fn finish(&mut self, proposer: &mut dyn ProposerSubject, id: SeqId) -> Result<()> {
        self.free.extend(self.live.remove(&id).map(|live| live.slots).unwrap_or_default());
        proposer.finish(id)
    }

    /// Asks for drafts of these sequences and changes nothing.
    ///
    /// # Errors
    /// The proposer's.
    pub fn propose(
        &mut self,
        proposer: &mut dyn ProposerSubject,
        ids: &[SeqId],
        budget: u32,
    ) -> Result<RecordingDrafts> {
        let inputs: Vec<ProposeInput> = ids.iter().map(|&id| self.input(id, budget)).collect();
        let rules =
            SinkRules { vocab_size: self.host.toy().vocab_size(), tree: self.needs.tree, noise: DrawNoise::ByOutput };
        let mut sink = RecordingDrafts::new(rules, ids.iter().map(|&id| self.sink_sequence(id, budget)).collect());
        with_propose_batch(&inputs, |batch| proposer.propose(batch, &mut Drafts::new(&mut sink)))?;
        Ok(sink)
    }

    /// One whole step for these sequences.
    ///
    /// # Errors
    /// The proposer's.
    pub fn step(&mut self, proposer: &mut dyn ProposerSubject, ids: &[SeqId], budget: u32) -> Result<RecordingDrafts> {
        let sink = self.propose(proposer, ids, budget)?;
        let mut commits = Vec::new();
        for (&id, draft) in ids.iter().zip(sink.drafts()) {
            let (keep, next) = self.verify(id, draft);
            commits.push((id, self.append(id, draft, &keep, next), keep));
        }
        let mut views = Vec::new();
        for (id, base_len, keep) in &commits {
            let live = &self.live[id];
            views.push(CommitSequence::new(*id, *base_len, keep, &live.tokens, &live.slots));
        }
        proposer.commit(CommitBatch::new(&views))?;
        Ok(sink)
    }

    fn input(&self, id: SeqId, budget: u32) -> ProposeInput {
        let live = &self.live[&id];
        ProposeInput {
            id,
            tokens: live.tokens.clone(),
            slots: live.slots.clone(),
            valid_until: self.host.fake_lanes().valid_until(&live.slots),
            output_index: (live.tokens.len() - live.prompt_len) as u32,
            budget,
            sampling: self.sampling,
        }
    }

    fn sink_sequence(&self, id: SeqId, budget: u32) -> SinkSequence {
        let output_index = (self.live[&id].tokens.len() - self.live[&id].prompt_len) as u32;
        SinkSequence {
            budget: budget as usize,
            output_index,
            sampling: self.sampling,
            noise: NoiseKey::new(17, id.0 as u32),
        }
    }

    fn verify(&self, id: SeqId, draft: &RecordedDraft) -> (Vec<NodeId>, Token) {
        let facts = self.sink_sequence(id, 0);
        let (mut keep, mut tokens) = (Vec::new(), self.live[&id].tokens.clone());
        loop {
            let index = facts.output_index + keep.len() as u32;
            let next = target_token(&self.host.toy().logits(&tokens), &facts, index);
            let child = draft.children(keep.last().copied()).find(|&node| draft.tokens()[node as usize] == next);
            let Some(child) = child else { return (keep, next) };
            keep.push(child);
            tokens.push(next);
        }
    }

    fn append(&mut self, id: SeqId, draft: &RecordedDraft, keep: &[NodeId], next: Token) -> u32 {
        let reserved = self.take(1 + draft.len());
        let live = self.live.get_mut(&id).expect("a live sequence");
        let base_len = live.slots.len() as u32;
        live.slots.push(reserved[0]);
        for (node, slot) in reserved[1..].iter().enumerate() {
            let to = if keep.contains(&(node as NodeId)) { &mut live.slots } else { &mut self.free };
            to.push(*slot);
        }
        live.tokens.extend(keep.iter().map(|&node| draft.tokens()[node as usize]).chain([next]));
        self.write_hidden(id, base_len as usize);
        base_len
    }

    fn prefill(&mut self, proposer: &mut dyn ProposerSubject, id: SeqId, chunk: usize) -> Result<()> {
        loop {
            let (base, total) = (self.live[&id].slots.len(), self.live[&id].tokens.len());
            let rows = chunk.min(total - base);
            let slots = self.take(rows);
            let facts = self.sink_sequence(id, 0);
            let live = self.live.get_mut(&id).expect("a live sequence");
            live.slots.extend(slots);
            let done = base + rows == total;
            if done {
                let next = target_token(&self.host.toy().logits(&live.tokens), &facts, facts.output_index);
                live.tokens.push(next);
            }
            self.write_hidden(id, base);
            let live = &self.live[&id];
            let view = CommitSequence::new(id, base as u32, &[], &live.tokens, &live.slots);
            proposer.commit(CommitBatch::new(&[view]))?;
            if done {
                return Ok(());
            }
        }
    }

    fn write_hidden(&self, id: SeqId, base_len: usize) {
        let live = &self.live[&id];
        let (tokens, slots) = (&live.tokens[..live.slots.len()], &live.slots[base_len..]);
        for (index, need) in self.needs.lanes.iter().enumerate() {
            if let LaneSource::Hidden(layers) = &need.source {
                let written = self.host.write_hidden(LaneId(index as u32), layers.len(), tokens, slots);
                written.expect("lanes were allocated from these needs");
            }
        }
    }

    fn take(&mut self, count: usize) -> Vec<Slot> {
        assert!(count <= self.free.len(), "Runner: {count} slots needed, {} free", self.free.len());
        let slots = self.free.split_off(self.free.len() - count);
        self.host.fake_lanes().clear_marks(&slots);
        slots
    }
}
