//! The law of a sampler's output against the target's, by histogram: several tokens over several steps.
//!
//! The joint law of three tokens is compared, not each alone: a sampler that keeps the right share of first tokens but
//! correlates them with the next ones is caught only so. The tolerance is 4.5 standard errors of each cell.

use std::ops::Range;

use super::super::batch::VerifyInput;
use super::super::drafts::{DrawNoise, RecordingDrafts, SinkRules, SinkSequence};
use super::super::recorded::RecordedDraft;
use super::super::report::ensure;
use super::super::subject::SamplerSubject;
use super::super::toy::ToyModel;
use super::super::warp::target_prob;
use super::sampler::{check_path, verify};
use crate::author::DraftSink;
use crate::error::DraftError;
use crate::types::{Guarantees, NodeId, NoiseKey, SamplingParams, SeqId, Token};

const TRIALS: u32 = 12_000;
const TOKENS: usize = 3;
const STANDARD_ERRORS: f64 = 4.5;

pub(super) const PARAMS: [SamplingParams; 2] = [
    SamplingParams { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
    SamplingParams { temperature: 0.7, top_k: 3, top_p: 1.0, min_p: 0.0 },
];

/// How the suite drafts: badly, from another toy, in every shape there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drafter {
    Nothing,
    PushedChain,
    PushedTree,
    DrawnChain,
    DrawnTree,
    RedrawnTree,
}

impl Drafter {
    pub(super) const ALL: [Self; 6] =
        [Self::Nothing, Self::PushedChain, Self::PushedTree, Self::DrawnChain, Self::DrawnTree, Self::RedrawnTree];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no draft",
            Self::PushedChain => "a pushed chain",
            Self::PushedTree => "a pushed tree",
            Self::DrawnChain => "a drawn chain",
            Self::DrawnTree => "a tree drawn without replacement",
            Self::RedrawnTree => "a tree drawn with replacement",
        }
    }
}

/// One way to generate: target, drafter, parameters.
#[derive(Clone)]
pub(super) struct Law {
    pub(super) toy: ToyModel,
    pub(super) guess: ToyModel,
    pub(super) promised: Guarantees,
    pub(super) sampling: SamplingParams,
    pub(super) drafter: Drafter,
}

impl Law {
    pub(super) fn new(toy: &ToyModel, promised: &Guarantees) -> Self {
        let guess = ToyModel::new(toy.vocab_size(), 99).with_spread(1.5);
        let sampling = SamplingParams::default();
        Self { toy: toy.clone(), guess, promised: promised.clone(), sampling, drafter: Drafter::Nothing }
    }

    /// What the sampler sees of trial `trial` once `tokens` are generated.
    pub(super) fn input(&self, trial: u32, tokens: &[Token]) -> VerifyInput {
        let noise = NoiseKey::new(u64::from(trial), 3);
        let output_index = tokens.len() as u32;
        let facts = SinkSequence { budget: 6, output_index, sampling: self.sampling, noise };
        let by = if self.promised.drafter_invariant { DrawNoise::ByOutput } else { DrawNoise::ByNode };
        let rules = SinkRules { vocab_size: self.toy.vocab_size(), tree: true, noise: by };
        let mut sink = RecordingDrafts::new(rules, vec![facts]);
        self.draft(&mut sink, tokens).expect("the suite's own drafts are valid");
        let draft = sink.into_drafts().remove(0);
        let row = |node| self.toy.logits(&after(tokens, &draft, node));
        let nodes = (0..draft.len() as NodeId).map(Some);
        let logits = std::iter::once(None).chain(nodes).map(row).collect();
        VerifyInput { id: SeqId(u64::from(trial)), output_index, sampling: self.sampling, noise, draft, logits }
    }

    fn draft(&self, sink: &mut RecordingDrafts, tokens: &[Token]) -> Result<(), DraftError> {
        let logits = |sink: &RecordingDrafts, node| self.guess.logits(&after(tokens, &sink.drafts()[0], node));
        let vocab = self.toy.vocab_size() as Token;
        match self.drafter {
            Drafter::Nothing => {}
            Drafter::PushedChain => {
                let first = sink.push(0, None, self.guess.greedy(tokens))?;
                sink.push(0, Some(first), (first + tokens.len() as Token) % vocab)?;
            }
            Drafter::PushedTree => {
                let (first, second) = (sink.push(0, None, 1)?, sink.push(0, None, 2)?);
                sink.push(0, Some(second), 0)?;
                sink.push(0, Some(first), 3)?;
                sink.push(0, Some(first), 0)?;
            }
            Drafter::DrawnChain => {
                let anchor = logits(sink, None);
                let (first, _) = sink.draw(0, None, &anchor)?;
                let next = logits(sink, Some(first));
                sink.draw(0, Some(first), &next)?;
            }
            Drafter::DrawnTree => {
                let mut out = [(0, 0); 2];
                let anchor = logits(sink, None);
                let count = sink.draw_n(0, None, &anchor, &mut out)?;
                for (node, _) in out.into_iter().take(count) {
                    let next = logits(sink, Some(node));
                    sink.draw_n(0, Some(node), &next, &mut [(0, 0); 2])?;
                }
            }
            Drafter::RedrawnTree => {
                let anchor = logits(sink, None);
                let (first, _) = sink.draw(0, None, &anchor)?;
                // At temperature 0 a draw is a push, and a second would repeat it.
                if !self.sampling.is_greedy() {
                    sink.draw(0, None, &anchor)?;
                }
                let next = logits(sink, Some(first));
                sink.draw(0, Some(first), &next)?;
            }
        }
        Ok(())
    }

    /// `count` tokens for each trial, stepped together.
    pub(super) fn generate(
        &self,
        part: &mut dyn SamplerSubject,
        trials: Range<u32>,
        count: usize,
    ) -> Result<Vec<Vec<Token>>, String> {
        let mut texts: Vec<Vec<Token>> = trials.clone().map(|_| Vec::new()).collect();
        loop {
            let open: Vec<usize> = (0..texts.len()).filter(|&index| texts[index].len() < count).collect();
            if open.is_empty() {
                texts.iter_mut().for_each(|text| text.truncate(count));
                return Ok(texts);
            }
            let input = |&index: &usize| self.input(trials.start + index as u32, &texts[index]);
            let inputs: Vec<VerifyInput> = open.iter().map(input).collect();
            let verdicts = verify(part, &inputs, &self.promised)?;
            for ((index, input), verdict) in open.into_iter().zip(&inputs).zip(verdicts) {
                check_path(input, &verdict)?;
                texts[index].extend(verdict.tokens(&input.draft));
            }
        }
    }

    /// Compares the histogram of the first tokens with their exact law.
    pub(super) fn check(&self, part: &mut dyn SamplerSubject) -> Result<(), String> {
        let vocab = self.toy.vocab_size();
        let mut counts = vec![0u32; vocab.pow(TOKENS as u32)];
        for start in (0..TRIALS).step_by(500) {
            for text in self.generate(part, start..start + 500, TOKENS)? {
                counts[text.iter().fold(0, |cell, &token| cell * vocab + token as usize)] += 1;
            }
        }
        let trials = f64::from(TRIALS);
        for (cell, &count) in counts.iter().enumerate() {
            let text: Vec<Token> =
                (0..TOKENS).rev().map(|digit| (cell / vocab.pow(digit as u32) % vocab) as Token).collect();
            let (expected, got) = (self.exact(&text), f64::from(count) / trials);
            let tolerance = STANDARD_ERRORS * (expected * (1.0 - expected) / trials).sqrt();
            let holds = if expected == 0.0 { count == 0 } else { (got - expected).abs() <= tolerance + 0.5 / trials };
            let sampling = self.sampling;
            ensure(holds, || {
                format!(
                    "{sampling:?}: {text:?} came {got:.4} of {TRIALS} times, its probability is {expected:.4} +- {tolerance:.4}"
                )
            })?;
        }
        Ok(())
    }

    fn exact(&self, text: &[Token]) -> f64 {
        let prob = |index: usize| target_prob(&self.toy.logits(&text[..index]), &self.sampling)[text[index] as usize];
        (0..text.len()).map(prob).product()
    }
}

fn after(tokens: &[Token], draft: &RecordedDraft, node: Option<NodeId>) -> Vec<Token> {
    [tokens, &draft.path_tokens(node)].concat()
}
