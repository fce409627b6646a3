//! The rule: sample the target's own token, then look whether it was drafted.
//!
//! At every row the token is what plain decoding would have sampled there, with the noise of its output index, so a
//! draft decides only how many rows one pass may use. Lossless needs no proof beyond that, and no trust in a proposer.
//! What it costs against true-draft_prob rules is acceptance, and a proposer that draws with the same noise wins most
//! of that back: both races are then run with the same times (Daliri et al. 2408.07978).

use foretoken_kernels::ops::{WarpScratch, argmax, gumbel_argmax, warp};
use foretoken_plugin_api::{Error, Guarantees, Host, NoOptions, NodeId, Result, Sampler, Token};
use foretoken_plugin_api::{Verdicts, VerifyBatch, VerifySequence};

/// The rule with reused scratch, which grows to the vocabulary once.
#[derive(Debug, Default)]
pub struct Gumbel {
    target_prob: Vec<f32>,
    warp: WarpScratch,
}

impl Sampler for Gumbel {
    type Options = NoOptions;

    fn new(_options: NoOptions, _host: Host) -> Result<Self> {
        Ok(Self::default())
    }

    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let keep = |node| verdicts.keep(index, node);
            let row = |node, output_index| {
                let logits = batch.logits(sequence, node);
                self.sample(logits, sequence, output_index).map_err(|what| broken(sequence, node, &what))
            };
            let next_token = follow(sequence, row, keep)?;
            verdicts.next(index, next_token);
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        Guarantees { lossless: true, drafter_invariant: true, greedy_exact: true, needs_draft_prob: false }
    }
}

/// From the anchor down the tree while the sampled token was drafted; returns the first that was not. `sample` gives
/// the token after a node at an output index, `keep` takes the path.
///
/// # Errors
/// Those of `sample`.
pub fn follow(
    sequence: &VerifySequence<'_>,
    mut sample: impl FnMut(Option<NodeId>, u32) -> Result<Token>,
    mut keep: impl FnMut(NodeId),
) -> Result<Token> {
    let mut parent = None;
    for output_index in sequence.output_index.. {
        let token = sample(parent, output_index)?;
        let Some(node) = sequence.children(parent).find(|node| sequence.tokens()[*node as usize] == token) else {
            return Ok(token);
        };
        keep(node);
        parent = Some(node);
    }
    Err(Error::failed(format!("sequence {}: output index over {}", sequence.id.0, u32::MAX)))
}

impl Gumbel {
    /// The token that plain decoding emits at `output_index`, given its row of logits.
    fn sample(&mut self, logits: &[f32], sequence: &VerifySequence<'_>, output_index: u32) -> Result<Token, String> {
        if sequence.sampling.is_greedy() {
            return greedy(logits);
        }
        self.target_prob.resize(logits.len(), 0.0);
        warp(logits, &sequence.sampling.into(), &mut self.target_prob, &mut self.warp)
            .map_err(|error| error.to_string())?;
        Ok(gumbel_argmax(&self.target_prob, sequence.noise.for_output(output_index).into()))
    }
}

fn greedy(logits: &[f32]) -> Result<Token, String> {
    let token = argmax(logits).ok_or("the logits contain NaN")?;
    match logits[token as usize].is_finite() {
        true => Ok(token),
        false => Err("the greatest logit is infinite".to_owned()),
    }
}

fn broken(sequence: &VerifySequence<'_>, node: Option<NodeId>, what: &str) -> Error {
    let id = sequence.id.0;
    match node {
        None => Error::failed(format!("sequence {id}, row of the anchor: {what}")),
        Some(node) => Error::failed(format!("sequence {id}, row of draft node {node}: {what}")),
    }
}
