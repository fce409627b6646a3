//! The default sampler's rule in slow f64, and true rejection sampling on chains and trees beside it.

use foretoken_plugin_api::sampling::Purpose;
use foretoken_plugin_api::testkit::{argmax, gumbel_draw, target_prob, uniform};
use foretoken_plugin_api::{
    ChildMode, Guarantees, Host, NodeId, Result, Sampler, Token, Verdicts, VerifyBatch, VerifySequence,
};

use super::FaultOptions;

/// Sampled verify: the target's own token, drafts kept while they equal it.
pub struct Sampled {
    options: FaultOptions,
}

impl Sampler for Sampled {
    type Options = FaultOptions;

    fn new(options: FaultOptions, _: Host) -> Result<Self> {
        Ok(Self { options })
    }

    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let (mut last, mut output_index) = (None, sequence.output_index);
            loop {
                let probs = target_prob(batch.logits(sequence, last), &sequence.sampling);
                let stream = if self.options.is("reuses noise") { 0 } else { output_index };
                let stream = if self.options.is("noise of the step") { sequence.output_index } else { stream };
                let mut next = gumbel_draw(&probs, sequence.noise.for_output(stream), 0, 1)[0];
                if self.options.is("ignores temperature") {
                    next = argmax(batch.logits(sequence, last));
                }
                let same = |&node: &NodeId| sequence.tokens()[node as usize] == next;
                let child = sequence.children(last).find(same);
                verdicts.next(index, next);
                let Some(node) = child.filter(|_| !self.options.is("keeps nothing")) else { break };
                verdicts.keep(index, node);
                (last, output_index) = (Some(node), output_index + 1);
            }
            if self.options.is("skips the parent") && sequence.tokens().len() > 3 && verdicts.get(index).0.is_empty() {
                verdicts.keep(index, 3);
            }
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { lossless: true, drafter_invariant: true, greedy_exact: true, needs_draft_prob: false }
    }
}

/// Rejection sampling with draft_prob: each child in turn, then the residual.
pub struct Rejecting {
    options: FaultOptions,
}

impl Rejecting {
    /// Judges the children of `last`: the kept one, or the token drawn from what is left.
    fn judge(
        &self,
        batch: &VerifyBatch<'_>,
        sequence: &VerifySequence<'_>,
        last: Option<NodeId>,
    ) -> (Option<NodeId>, Token) {
        let mut left = target_prob(batch.logits(sequence, last), &sequence.sampling);
        let mode = sequence.mode(last);
        let recorded = batch.draft_prob(sequence, last);
        let mut guess: Vec<f64> = recorded.map_or(Vec::new(), |row| row.iter().map(|&prob| f64::from(prob)).collect());
        for node in sequence.children(last) {
            let token = sequence.tokens()[node as usize] as usize;
            if mode == ChildMode::Deterministic {
                guess = (0..left.len()).map(|other| f64::from(u8::from(other == token))).collect();
            } else if self.options.is("ignores draft_prob") {
                guess = vec![1.0 / left.len() as f64; left.len()];
            }
            let key = sequence.noise.for_node(sequence.output_index, node + 1, Purpose::Accept);
            let ratio = left[token] / guess[token];
            if uniform(key, 0) < if self.options.is("swaps") { 1.0 / ratio } else { ratio } {
                return (Some(node), token as Token);
            }
            subtract(&mut left, &guess);
            if mode == ChildMode::WithoutReplacement && !self.options.is("forgets drawn tokens") {
                guess[token] = 0.0;
                normalise(&mut guess);
            }
        }
        if self.options.is("no residual") {
            left = target_prob(batch.logits(sequence, last), &sequence.sampling);
        }
        let node = last.map_or(0, |node| node + 1);
        let purpose = if self.options.is("reuses noise") { Purpose::Draft } else { Purpose::Residual };
        let key = sequence.noise.for_node(sequence.output_index, node, purpose);
        (None, gumbel_draw(&left, key, 0, 1)[0])
    }
}

fn subtract(left: &mut [f64], guess: &[f64]) {
    left.iter_mut().zip(guess).for_each(|(left, guess)| *left = (*left - guess).max(0.0));
    normalise(left);
}

fn normalise(probs: &mut [f64]) {
    let total: f64 = probs.iter().sum();
    if total > 0.0 {
        probs.iter_mut().for_each(|prob| *prob /= total);
    }
}

impl Sampler for Rejecting {
    type Options = FaultOptions;

    fn new(options: FaultOptions, _: Host) -> Result<Self> {
        Ok(Self { options })
    }

    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let mut last = None;
            loop {
                let (kept, token) = self.judge(batch, sequence, last);
                verdicts.next(index, token);
                let Some(node) = kept else { break };
                verdicts.keep(index, node);
                last = Some(node);
            }
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        let drafter_invariant = self.options.is("claims invariance");
        Guarantees { lossless: true, drafter_invariant, greedy_exact: true, needs_draft_prob: true }
    }
}
