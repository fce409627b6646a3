//! What a KV manager should have done: the slots each sequence was given, and which text each slot holds.
//!
//! The oracle never predicts *which* slot is handed out, only that the answer is consistent: nothing twice, nothing
//! lost, nothing shared but what was forked or has the same prefix.

use std::collections::{BTreeMap, BTreeSet};

use super::super::report::ensure;
use super::super::subject::KvSubject;
use super::text;
use crate::error::ErrorKind;
use crate::types::{SeqId, Slot, Token};

type Check = Result<(), String>;

#[derive(Default)]
struct Sequence {
    tokens: Vec<Token>,
    committed: Vec<Slot>,
    reserved: Vec<Slot>,
}

/// A KV manager and what it should hold.
pub(super) struct Oracle {
    part: Box<dyn KvSubject>,
    total: u32,
    live: BTreeMap<SeqId, Sequence>,
    /// The text up to and including the token that each slot holds.
    holds: BTreeMap<Slot, Vec<Token>>,
}

impl Oracle {
    pub(super) fn new(part: Box<dyn KvSubject>, total: u32) -> Self {
        Self { part, total, live: BTreeMap::new(), holds: BTreeMap::new() }
    }

    pub(super) fn ids(&self) -> Vec<SeqId> {
        self.live.keys().copied().collect()
    }

    pub(super) fn committed_len(&self, id: SeqId) -> usize {
        self.live[&id].committed.len()
    }

    pub(super) fn tokens(&self, id: SeqId) -> &[Token] {
        &self.live[&id].tokens
    }

    pub(super) fn available(&mut self) -> Result<usize, String> {
        let stats = self.part.stats().map_err(text)?;
        Ok((stats.free + stats.cached) as usize)
    }

    /// Takes a sequence in; what it already has must be exactly its own prefix.
    pub(super) fn admit(&mut self, id: SeqId, tokens: &[Token]) -> Result<usize, String> {
        let cached_len = self.part.admit(id, tokens).map_err(text)?;
        ensure(cached_len < tokens.len().max(1), || format!("admit: {cached_len} cached of {}", tokens.len()))?;
        let slots = self.part.slots(id).map_err(text)?;
        ensure(slots.len() == cached_len, || format!("admit: {cached_len} cached, {} slots", slots.len()))?;
        for (index, slot) in slots.iter().enumerate() {
            let expected = &tokens[..=index];
            let got = self.holds.get(slot).map(Vec::as_slice);
            ensure(got == Some(expected), || format!("admit: {slot:?} holds {got:?}, not {expected:?}"))?;
        }
        ensure(self.part.admit(id, tokens).is_err(), || "a second admit of a live sequence was taken".to_owned())?;
        let sequence = Sequence { tokens: tokens.to_vec(), committed: slots, reserved: Vec::new() };
        self.live.insert(id, sequence);
        self.check()?;
        Ok(cached_len)
    }

    /// Reserves; all or nothing. Returns whether it was granted.
    pub(super) fn reserve(&mut self, id: SeqId, count: usize) -> Result<bool, String> {
        let available = self.available()?;
        let before = self.part.stats().map_err(text)?;
        match self.part.reserve(id, count) {
            Ok(()) => {
                let slots = self.part.slots(id).map_err(text)?;
                let sequence = self.live.get_mut(&id).expect("a live sequence");
                let new = slots.get(sequence.committed.len() + sequence.reserved.len()..).unwrap_or(&[]);
                ensure(new.len() == count, || format!("reserve({count}): {} new slots", new.len()))?;
                sequence.reserved.extend(new);
                new.iter().for_each(|slot| drop(self.holds.remove(slot)));
                self.check()?;
                Ok(true)
            }
            Err(error) => {
                let kind = error.kind;
                ensure(kind == ErrorKind::OutOfSlots, || format!("reserve failed with {kind:?}: {error}"))?;
                ensure(count > available, || format!("reserve({count}) refused with {available} available"))?;
                let after = self.part.stats().map_err(text)?;
                ensure(after.held == before.held, || format!("a refused reserve changed {before:?} to {after:?}"))?;
                self.check()?;
                Ok(false)
            }
        }
    }

    /// Keeps some of the reservation, in order.
    pub(super) fn commit(&mut self, id: SeqId, keep: &[u32], tokens: &[Token]) -> Check {
        self.part.commit(id, keep, tokens).map_err(text)?;
        let sequence = self.live.get_mut(&id).expect("a live sequence");
        let reserved = std::mem::take(&mut sequence.reserved);
        for (&index, &token) in keep.iter().zip(tokens) {
            let position = sequence.committed.len();
            sequence.committed.push(reserved[index as usize]);
            if sequence.tokens.len() == position {
                sequence.tokens.push(token);
            }
            self.holds.insert(reserved[index as usize], sequence.tokens[..=position].to_vec());
        }
        self.check()
    }

    pub(super) fn rollback(&mut self, id: SeqId) -> Check {
        let before = self.available()?;
        self.part.rollback(id).map_err(text)?;
        let released = std::mem::take(&mut self.live.get_mut(&id).expect("a live sequence").reserved).len();
        let after = self.available()?;
        ensure(after >= before + released, || format!("rollback of {released}: {before} available, then {after}"))?;
        self.check()
    }

    pub(super) fn fork(&mut self, parent: SeqId, child: SeqId) -> Check {
        self.part.fork(parent, child).map_err(text)?;
        let found = &self.live[&parent];
        let committed = found.committed.clone();
        let tokens = found.tokens.clone();
        ensure(self.part.fork(parent, child).is_err(), || "a fork onto a live child was taken".to_owned())?;
        self.live.insert(child, Sequence { tokens, committed, reserved: Vec::new() });
        self.check()
    }

    pub(super) fn free(&mut self, id: SeqId) -> Check {
        self.part.free(id).map_err(text)?;
        self.live.remove(&id);
        self.check()
    }

    /// Every reading of the manager against the oracle.
    pub(super) fn check(&mut self) -> Check {
        self.part.check().map_err(|error| format!("its own check: {error}"))?;
        let stats = self.part.stats().map_err(text)?;
        let sum = stats.free + stats.held + stats.cached;
        ensure(stats.total == self.total && sum == self.total, || format!("{stats:?} of {} slots", self.total))?;
        let (mut held, mut reserved) = (BTreeSet::new(), BTreeSet::new());
        for (id, sequence) in &self.live {
            let expected = [sequence.committed.as_slice(), &sequence.reserved].concat();
            let got = self.part.slots(*id).map_err(text)?;
            ensure(got == expected, || format!("{id:?} has {got:?}, expected {expected:?}"))?;
            for slot in &sequence.committed {
                ensure(slot.0 < self.total, || format!("{slot:?} of {}", self.total))?;
                held.insert(*slot);
            }
            for slot in &sequence.reserved {
                ensure(reserved.insert(*slot), || format!("{slot:?} is reserved twice"))?;
            }
            let own: BTreeSet<_> = expected.iter().collect();
            ensure(own.len() == expected.len(), || format!("{id:?} has a slot twice: {expected:?}"))?;
            for (index, slot) in sequence.committed.iter().enumerate() {
                let text = self.holds.get(slot).map(Vec::as_slice);
                let expected = Some(&sequence.tokens[..=index]);
                ensure(text == expected, || format!("{id:?}: {slot:?} holds {text:?}, not {expected:?}"))?;
            }
        }
        let both = held.intersection(&reserved).next();
        ensure(both.is_none(), || format!("{both:?} is committed and reserved"))?;
        let unique = held.len() + reserved.len();
        ensure(unique <= stats.held as usize, || format!("{unique} slots are held, stats say {}", stats.held))
    }
}
