//! The engine's side of a draft-model test: sequences with slots, steps whose verdict the test chooses.
#![allow(dead_code)]

pub mod host;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use foretoken_draft_model::DraftModel;
use foretoken_plugin_api::testkit::{
    DrawNoise, FakeHost, ProposeInput, RecordedDraft, RecordingDrafts, SinkRules, SinkSequence, ToyModel,
    with_propose_batch,
};
use foretoken_plugin_api::{
    CommitBatch, CommitSequence, Drafts, HostApi, LaneId, NodeId, Proposer, Result, SamplingParams, SeqId, Slot, Token,
};
use host::{CheckedHost, Journal, ROW};

pub const VOCAB: usize = 32;
pub const LANE: LaneId = LaneId(0);

/// One sequence.
#[derive(Clone)]
pub struct Live {
    pub tokens: Vec<Token>,
    /// Of all tokens but the last.
    pub slots: Vec<Slot>,
}

/// How a rig is made.
pub struct Setup {
    pub options: &'static str,
    /// Sequences that draft together.
    pub max_sequences: usize,
    pub max_positions: usize,
    pub sampling: SamplingParams,
}

impl Default for Setup {
    fn default() -> Self {
        Self { options: "", max_sequences: 8, max_positions: 4096, sampling: SamplingParams::GREEDY }
    }
}

/// A draft-model proposer and the sequences it drafts for.
pub struct Rig {
    pub host: Arc<CheckedHost>,
    pub proposer: DraftModel,
    pub live: BTreeMap<u64, Live>,
    sampling: SamplingParams,
    free: Vec<Slot>,
    /// How many sequences hold a slot.
    holders: BTreeMap<Slot, usize>,
}

impl Rig {
    pub fn new(setup: Setup) -> Self {
        let fake = FakeHost::new(ToyModel::new(VOCAB, 1)).with_facts(|facts| facts.max_sequences = setup.max_sequences);
        let toy = ToyModel::new(VOCAB, 2).with_order(usize::MAX);
        let (fake, journal) = (fake.with_model("toy", toy.clone()).shared(), Arc::new(Journal::default()));
        let mut facts = fake.model_facts("toy").unwrap();
        (facts.kv_bytes_per_slot, facts.max_positions) = (ROW, setup.max_positions);
        let host = Arc::new(CheckedHost { fake, facts, toy, journal });
        let options = toml::from_str(&format!("model = \"toy\"\n{}", setup.options)).unwrap();
        let proposer = DraftModel::new(options, host.handle()).unwrap();
        let slots = 4000;
        host.fake.allocate_lanes(&proposer.needs().lanes, slots as usize);
        // 1597 shares no factor with 4000: a scrambled order, so that a slot is never a position.
        let free = (0..slots).map(|index| Slot(index * 1597 % slots)).collect();
        Self { host, proposer, live: BTreeMap::new(), sampling: setup.sampling, free, holders: BTreeMap::new() }
    }

    /// What the draft model itself would say next.
    pub fn expected(&self, id: u64, count: usize) -> Vec<Token> {
        self.host.toy.greedy_continuation(&self.live[&id].tokens, count)
    }

    /// The rows of every pass since the last call.
    pub fn passes(&self) -> Vec<usize> {
        std::mem::take(&mut self.host.journal.passes.lock().unwrap())
    }

    pub fn set_broken(&self, broken: bool) {
        self.host.journal.broken.store(broken, Ordering::Relaxed);
    }

    /// How many leading slots of a sequence hold valid draft KV.
    pub fn valid(&self, id: u64) -> usize {
        self.host.fake.fake_lanes().valid_until(&self.live[&id].slots)[0] as usize
    }

    /// What a lane row holds.
    pub fn row(&self, slot: Slot) -> [u8; ROW] {
        let mut row = [0; ROW];
        self.host.lanes().read(LANE, &[slot], &mut row).unwrap();
        row
    }

    /// A prompt whose prefill is done: the proposer hears of it in commit, with nothing drafted.
    pub fn admit(&mut self, id: u64, tokens: &[Token]) {
        let slots = self.take(tokens.len() - 1);
        self.live.insert(id, Live { tokens: tokens.to_vec(), slots });
        self.commit(&[(id, 0, vec![])]);
    }

    /// A second completion of the same prompt, with another first token; it shares all slots.
    pub fn fork(&mut self, parent: u64, child: u64, first: Token) {
        let mut live = self.live[&parent].clone();
        *live.tokens.last_mut().unwrap() = first;
        live.slots.iter().for_each(|slot| *self.holders.get_mut(slot).unwrap() += 1);
        self.live.insert(child, live);
    }

    pub fn finish(&mut self, id: u64) {
        let live = self.live.remove(&id).unwrap();
        self.release(&live.slots);
        self.proposer.finish(SeqId(id));
    }

    /// Takes the slots of a sequence and brings it in again from its first token.
    pub fn preempt(&mut self, id: u64) {
        let tokens = self.live[&id].tokens.clone();
        self.finish(id);
        self.admit(id, &tokens);
    }

    /// Asks for drafts; `(id, budget)` each.
    pub fn propose(&mut self, wanted: &[(u64, u32)]) -> Result<Vec<RecordedDraft>> {
        let inputs: Vec<ProposeInput> = wanted.iter().map(|&(id, budget)| self.input(id, budget)).collect();
        let rules = SinkRules { vocab_size: VOCAB, tree: false, noise: DrawNoise::ByOutput };
        let mut sink =
            RecordingDrafts::new(rules, inputs.iter().map(|input| SinkSequence::of(&input.view())).collect());
        with_propose_batch(&inputs, |batch| self.proposer.propose(&batch, &mut Drafts::new(&mut sink)))?;
        assert_eq!(sink.refusals(), []);
        Ok(sink.into_drafts())
    }

    /// Commits these tokens without telling the proposer; returns how many slots there were before.
    pub fn append(&mut self, id: u64, kept: &[Token], next: Token) -> u32 {
        let slots = self.take(1 + kept.len());
        let live = self.live.get_mut(&id).unwrap();
        let base = live.slots.len() as u32;
        live.slots.extend(slots);
        live.tokens.extend(kept.iter().chain([&next]));
        base
    }

    /// Commits `(id, kept, next)` of these drafts.
    pub fn accept(&mut self, verdicts: &[(u64, Vec<Token>, Token)]) {
        let mut commits = Vec::new();
        for (id, kept, next) in verdicts {
            let base = self.append(*id, kept, *next);
            commits.push((*id, base, (0..kept.len() as NodeId).collect()));
        }
        self.commit(&commits);
    }

    /// One step in which `keep_len` drafted tokens of every sequence are kept; the next token is never the drafted one.
    pub fn step(&mut self, wanted: &[(u64, u32)], keep_len: usize) -> Vec<Vec<Token>> {
        let drafts: Vec<Vec<Token>> = self.propose(wanted).unwrap().iter().map(|it| it.tokens().to_vec()).collect();
        let verdict = |(&(id, _), draft): (&(u64, u32), &Vec<Token>)| {
            let kept = draft[..keep_len.min(draft.len())].to_vec();
            let next = draft.get(kept.len()).map_or(3, |&token| (token + 1) % VOCAB as Token);
            (id, kept, next)
        };
        self.accept(&wanted.iter().zip(&drafts).map(verdict).collect::<Vec<_>>());
        drafts
    }

    fn input(&self, id: u64, budget: u32) -> ProposeInput {
        let live = &self.live[&id];
        let mut input = ProposeInput::new(id, &live.tokens, budget);
        input.slots.clone_from(&live.slots);
        input.valid_until = vec![self.valid(id) as u32];
        input.sampling = self.sampling;
        input
    }

    fn commit(&mut self, commits: &[(u64, u32, Vec<NodeId>)]) {
        let view = |(id, base, kept): &'_ (u64, u32, Vec<NodeId>)| (SeqId(*id), *base, kept.clone());
        let owned: Vec<_> = commits.iter().map(view).collect();
        let sequences: Vec<CommitSequence<'_>> = owned
            .iter()
            .map(|(id, base, kept)| {
                let live = &self.live[&id.0];
                CommitSequence::new(*id, *base, kept, &live.tokens, &live.slots)
            })
            .collect();
        self.proposer.commit(&CommitBatch::new(&sequences)).unwrap();
    }

    fn take(&mut self, count: usize) -> Vec<Slot> {
        let slots = self.free.split_off(self.free.len() - count);
        self.host.fake.fake_lanes().clear_marks(&slots);
        self.holders.extend(slots.iter().map(|&slot| (slot, 1)));
        slots
    }

    fn release(&mut self, slots: &[Slot]) {
        for slot in slots {
            let holders = self.holders.get_mut(slot).unwrap();
            *holders -= 1;
            if *holders == 0 {
                // At the end of the line that `take` serves from: freed slots come back at once, marks cleared only then.
                self.free.push(*slot);
            }
        }
    }
}
