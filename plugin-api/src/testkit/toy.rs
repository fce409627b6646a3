//! A language model small enough to enumerate: logits are a hash of the last few tokens.

use std::sync::Arc;

use super::lanes::FakeLanes;
use super::warp::argmax;
use crate::author::ModelApi;
use crate::author::host::LanesApi;
use crate::error::{Error, Result};
use crate::types::{ForwardBatch, ForwardSequence, LaneId, LogitRows, ModelFacts, Slot, Token};

/// A deterministic model: `logits(context)` depends on the last `order` tokens only. Its hidden row *is* its row of
/// logits (the output head is the identity, `hidden_size = vocab_size`).
#[derive(Debug, Clone, PartialEq)]
pub struct ToyModel {
    vocab_size: usize,
    order: usize,
    seed: u64,
    spread: f32,
}

impl ToyModel {
    /// A model of `vocab_size` tokens that looks at the last two.
    ///
    /// # Panics
    /// If `vocab_size` is not in 2..=4096.
    pub fn new(vocab_size: usize, seed: u64) -> Self {
        assert!((2..=4096).contains(&vocab_size), "ToyModel: vocabulary of {vocab_size}");
        Self { vocab_size, order: 2, seed, spread: 2.0 }
    }

    /// The same, looking at the last `order` tokens; `usize::MAX` makes every token matter.
    #[must_use]
    pub fn with_order(self, order: usize) -> Self {
        Self { order, ..self }
    }

    /// The same with logits in `-spread..spread`: 0 is uniform, larger is more certain.
    #[must_use]
    pub fn with_spread(self, spread: f32) -> Self {
        Self { spread, ..self }
    }

    /// The width of a row of logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The logits `[vocab]` of the token after `context`.
    pub fn logits(&self, context: &[Token]) -> Vec<f32> {
        let seen = &context[context.len().saturating_sub(self.order)..];
        let state = seen.iter().fold(mix(self.seed), |state, &token| mix(state ^ (u64::from(token) << 1) ^ 1));
        let unit = |token: usize| (mix(state ^ ((token as u64) << 20)) >> 40) as f32 / (1u32 << 24) as f32;
        (0..self.vocab_size).map(|token| (unit(token) * 2.0 - 1.0) * self.spread).collect()
    }

    /// The most probable token after `context`.
    pub fn greedy(&self, context: &[Token]) -> Token {
        argmax(&self.logits(context))
    }

    /// `count` tokens of greedy continuation.
    pub fn greedy_continuation(&self, context: &[Token], count: usize) -> Vec<Token> {
        let mut tokens = context.to_vec();
        (0..count).for_each(|_| tokens.push(self.greedy(&tokens)));
        tokens.split_off(context.len())
    }

    pub(super) fn facts(&self) -> ModelFacts {
        ModelFacts {
            vocab_size: self.vocab_size,
            hidden_size: self.vocab_size,
            num_layers: 2,
            max_positions: 4096,
            kv_bytes_per_slot: size_of::<Token>(),
            tokenizer_digest: format!("toy-{}", self.vocab_size),
        }
    }
}

/// SplitMix64's finaliser.
pub(super) fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ (value >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ (value >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ (value >> 31)
}

/// A toy served as a draft model: the "KV" of a row is its token, kept in the plugin's lane.
pub(super) struct ToyService {
    pub(super) toy: ToyModel,
    pub(super) lanes: Arc<FakeLanes>,
}

impl ModelApi for ToyService {
    fn facts(&self) -> ModelFacts {
        self.toy.facts()
    }

    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()> {
        let wanted: usize = batch.sequences().iter().map(ForwardSequence::logit_rows).sum();
        let expected = wanted * self.toy.vocab_size;
        if logits.len() != expected {
            return Err(Error::failed(format!("forward: room for {} logits, {expected} asked for", logits.len())));
        }
        let mut rows = logits.chunks_exact_mut(self.toy.vocab_size);
        batch.sequences().iter().try_for_each(|sequence| self.forward_one(batch.lane, sequence, &mut rows))
    }
}

impl ToyService {
    fn forward_one<'a>(
        &self,
        lane: LaneId,
        sequence: &ForwardSequence<'_>,
        rows: &mut impl Iterator<Item = &'a mut [f32]>,
    ) -> Result<()> {
        let tokens = sequence.tokens();
        if let Some(&bad) = tokens.iter().find(|&&token| token as usize >= self.toy.vocab_size) {
            return Err(Error::failed(format!("forward: token {bad} of a vocabulary of {}", self.toy.vocab_size)));
        }
        for (token, slot) in tokens.iter().zip(sequence.slots()) {
            self.lanes.write(lane, &[*slot], &token.to_le_bytes())?;
        }
        let context = self.read_tokens(lane, sequence.context())?;
        for row in 0..tokens.len() {
            let asked = match sequence.logits {
                LogitRows::None => false,
                LogitRows::Last => row + 1 == tokens.len(),
                LogitRows::All => true,
            };
            if asked {
                let path = ancestors(sequence, row).into_iter().map(|row| sequence.slots()[row]).collect::<Vec<_>>();
                let seen = [context.clone(), self.read_tokens(lane, &path)?].concat();
                rows.next().expect("counted above").copy_from_slice(&self.toy.logits(&seen));
            }
        }
        Ok(())
    }

    fn read_tokens(&self, lane: LaneId, slots: &[Slot]) -> Result<Vec<Token>> {
        let mut bytes = vec![0; slots.len() * size_of::<Token>()];
        self.lanes.read(lane, slots, &mut bytes)?;
        Ok(bytes.as_chunks().0.iter().map(|chunk| Token::from_le_bytes(*chunk)).collect())
    }
}

/// The rows from the first level down to `row`.
fn ancestors(sequence: &ForwardSequence<'_>, row: usize) -> Vec<usize> {
    let Some(parents) = sequence.parents() else { return (0..=row).collect() };
    let parent_of = |row: &usize| parents.get(*row).filter(|&&parent| (parent as usize) < *row).map(|&p| p as usize);
    let mut path: Vec<usize> = std::iter::successors(Some(row), parent_of).collect();
    path.reverse();
    path
}
