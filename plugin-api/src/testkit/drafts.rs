//! A draft sink that refuses what the engine refuses and records the rest.
//!
//! Draws go through the same two rules as the engine's: the distribution is warped and recorded where the token is
//! drawn, and one parent's children are made in one way.

use super::recorded::RecordedDraft;
use super::warp::{argmax, gumbel_draw, target_prob};
use crate::author::DraftSink;
use crate::error::DraftError;
use crate::types::{ChildMode, NodeId, NoiseKey, ProposeSequence, SamplingParams, Token};

/// Which noise draws take, as the sampler's guarantees decide in the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DrawNoise {
    /// That of the drafted token's output index: drafter-invariant samplers.
    ByOutput,
    /// Fresh for every node of every step: samplers that look at draft_prob.
    ByNode,
}

/// What the sink enforces for all sequences.
#[derive(Debug, Clone, Copy)]
pub struct SinkRules {
    /// Tokens are below this.
    pub vocab_size: usize,
    /// Whether a parent may have two children.
    pub tree: bool,
    /// Which noise draws take.
    pub noise: DrawNoise,
}

/// One sequence that is drafted for.
#[derive(Debug, Clone, Copy)]
pub struct SinkSequence {
    /// Nodes its draft may have.
    pub budget: usize,
    /// Tokens its completion has.
    pub output_index: u32,
    /// The request's parameters.
    pub sampling: SamplingParams,
    /// Seed and completion.
    pub noise: NoiseKey,
}

impl SinkSequence {
    /// The sequence of a batch, with seed 0.
    pub fn of(sequence: &ProposeSequence<'_>) -> Self {
        Self {
            budget: sequence.budget as usize,
            output_index: sequence.output_index,
            sampling: sequence.sampling,
            noise: NoiseKey::new(0, 0),
        }
    }
}

/// Takes guesses as the engine would, and keeps the drafts and every refusal.
pub struct RecordingDrafts {
    rules: SinkRules,
    sequences: Vec<SinkSequence>,
    drafts: Vec<RecordedDraft>,
    refusals: Vec<(usize, DraftError)>,
}

impl RecordingDrafts {
    /// A sink for these sequences.
    pub fn new(rules: SinkRules, sequences: Vec<SinkSequence>) -> Self {
        let drafts = vec![RecordedDraft::default(); sequences.len()];
        Self { rules, sequences, drafts, refusals: Vec::new() }
    }

    /// The drafts so far.
    pub fn drafts(&self) -> &[RecordedDraft] {
        &self.drafts
    }

    /// The drafts.
    pub fn into_drafts(self) -> Vec<RecordedDraft> {
        self.drafts
    }

    /// What was refused, with the index of its sequence.
    pub fn refusals(&self) -> &[(usize, DraftError)] {
        &self.refusals
    }

    /// The refusals that count as faults: all but a used-up budget.
    pub fn faults(&self) -> impl Iterator<Item = &(usize, DraftError)> {
        self.refusals.iter().filter(|(_, error)| *error != DraftError::BudgetExhausted)
    }

    fn noting<T>(&mut self, sequence: usize, result: Result<T, DraftError>) -> Result<T, DraftError> {
        result.inspect_err(|&error| self.refusals.push((sequence, error)))
    }

    fn admit(&self, sequence: usize, parent: Option<NodeId>, mode: ChildMode) -> Result<(), DraftError> {
        let draft = self.drafts.get(sequence).ok_or(DraftError::NoSuchSequence)?;
        if self.remaining(sequence) == 0 {
            return Err(DraftError::BudgetExhausted);
        }
        if parent.is_some_and(|parent| parent as usize >= draft.len()) {
            return Err(DraftError::NoSuchParent);
        }
        let found = draft.children_mode(parent);
        // Drawing without replacement happens in one call: what came before or after would change its distribution.
        if found.is_some_and(|found| found != mode || mode == ChildMode::WithoutReplacement) {
            return Err(DraftError::MixedChildren);
        }
        if found.is_some() && !self.rules.tree {
            return Err(DraftError::NotAChain);
        }
        Ok(())
    }

    fn try_push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        self.admit(sequence, parent, ChildMode::Deterministic)?;
        if token as usize >= self.rules.vocab_size {
            return Err(DraftError::TokenOutOfVocabulary);
        }
        Ok(self.drafts[sequence].add(parent, token, ChildMode::Deterministic))
    }

    fn check_logits(&self, logits: &[f32]) -> Result<(), DraftError> {
        let fits = logits.len() == self.rules.vocab_size;
        let clean = logits.iter().all(|logit| !logit.is_nan() && *logit != f32::INFINITY);
        let some = logits.iter().any(|logit| logit.is_finite());
        if fits && clean && some { Ok(()) } else { Err(DraftError::BadLogits) }
    }

    fn key(&self, sequence: usize, parent: Option<NodeId>) -> NoiseKey {
        let (facts, draft) = (&self.sequences[sequence], &self.drafts[sequence]);
        match self.rules.noise {
            DrawNoise::ByOutput => facts.noise.for_output(facts.output_index + draft.depth(parent)),
            DrawNoise::ByNode => {
                let node = draft.len() as u32 + 1;
                facts.noise.for_node(facts.output_index, node, crate::types::sampling::Purpose::Draft)
            }
        }
    }

    fn try_draw(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
    ) -> Result<(NodeId, Token), DraftError> {
        self.check_logits(logits)?;
        if self.sequences.get(sequence).is_some_and(|facts| facts.sampling.is_greedy()) {
            let token = argmax(logits);
            return Ok((self.try_push(sequence, parent, token)?, token));
        }
        self.admit(sequence, parent, ChildMode::WithReplacement)?;
        // One draft_prob per parent: a second draw is from the first one's, whatever logits come with it.
        let recorded = self.drafts[sequence].draft_prob(parent).map(<[f64]>::to_vec);
        let probs = recorded.unwrap_or_else(|| target_prob(logits, &self.sequences[sequence].sampling));
        // A sibling under the same output index takes the next numbers of the same stream.
        let first = self.drafts[sequence].children(parent).count() * self.rules.vocab_size;
        let token = gumbel_draw(&probs, self.key(sequence, parent), first as u32, 1)[0];
        let draft = &mut self.drafts[sequence];
        let node = draft.add(parent, token, ChildMode::WithReplacement);
        draft.record(parent, probs);
        Ok((node, token))
    }

    fn try_draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        self.check_logits(logits)?;
        self.admit(sequence, parent, ChildMode::WithoutReplacement)?;
        let count = out.len().min(self.remaining(sequence)).min(if self.rules.tree { usize::MAX } else { 1 });
        let probs = target_prob(logits, &self.sequences[sequence].sampling);
        let tokens = gumbel_draw(&probs, self.key(sequence, parent), 0, count);
        let greedy = self.sequences[sequence].sampling.is_greedy();
        let mode = if greedy { ChildMode::Deterministic } else { ChildMode::WithoutReplacement };
        let draft = &mut self.drafts[sequence];
        for (to, &token) in out.iter_mut().zip(&tokens) {
            *to = (draft.add(parent, token, mode), token);
        }
        if !greedy {
            draft.record(parent, probs);
        }
        Ok(tokens.len())
    }
}

impl DraftSink for RecordingDrafts {
    fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        let result = self.try_push(sequence, parent, token);
        self.noting(sequence, result)
    }

    fn draw(&mut self, sequence: usize, parent: Option<NodeId>, logits: &[f32]) -> Result<(NodeId, Token), DraftError> {
        let result = self.try_draw(sequence, parent, logits);
        self.noting(sequence, result)
    }

    fn draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        let result = self.try_draw_n(sequence, parent, logits, out);
        self.noting(sequence, result)
    }

    fn remaining(&self, sequence: usize) -> usize {
        let (Some(facts), Some(draft)) = (self.sequences.get(sequence), self.drafts.get(sequence)) else { return 0 };
        facts.budget.saturating_sub(draft.len())
    }
}

/// The target's own token after a row: argmax at temperature 0, else the Gumbel-max sample of its output index.
pub(super) fn target_token(logits: &[f32], sequence: &SinkSequence, output_index: u32) -> Token {
    if sequence.sampling.is_greedy() {
        return argmax(logits);
    }
    gumbel_draw(&target_prob(logits, &sequence.sampling), sequence.noise.for_output(output_index), 0, 1)[0]
}
