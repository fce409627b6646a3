//! The rows of a verify call as a rule reads them: target_prob under the request's parameters, and what was drafted.
//!
//! One scratch row is enough, because a rule looks at one node at a time. Broken logits become errors here that name
//! the sequence and the row, so that no rule ever compares with NaN.

use foretoken_kernels::ops::{WarpScratch, argmax, warp};
use foretoken_plugin_api::{ChildMode, Error, NodeId, Result, Token, VerifyBatch, VerifySequence};

use crate::rule::Draft;

/// Reused scratch: it grows to the vocabulary once.
#[derive(Debug, Default)]
pub struct Rows {
    target_prob: Vec<f32>,
    warp: WarpScratch,
}

impl Rows {
    /// target_prob `[vocab]` after `node`, in the scratch: the caller may overwrite it.
    ///
    /// # Errors
    /// If the logits are no distribution.
    pub fn target_prob(
        &mut self,
        batch: &VerifyBatch<'_>,
        sequence: &VerifySequence<'_>,
        node: Option<NodeId>,
    ) -> Result<&mut [f32]> {
        self.target_prob.resize(batch.vocab_size(), 0.0);
        let logits = batch.logits(sequence, node);
        warp(logits, &sequence.sampling.into(), &mut self.target_prob, &mut self.warp)
            .map_err(|error| broken(sequence, node, error))?;
        Ok(&mut self.target_prob)
    }
}

/// The greedy token after `node`.
///
/// # Errors
/// If the logits hold a NaN or forbid every token.
pub fn greedy(batch: &VerifyBatch<'_>, sequence: &VerifySequence<'_>, node: Option<NodeId>) -> Result<Token> {
    let logits = batch.logits(sequence, node);
    let token = argmax(logits).ok_or_else(|| broken(sequence, node, "the logits contain NaN"))?;
    match logits[token as usize].is_finite() {
        true => Ok(token),
        false => Err(broken(sequence, node, "the greatest logit is infinite")),
    }
}

/// What the children of `parent` were drawn from.
///
/// # Errors
/// If they were drawn but their draft_prob was not recorded.
pub fn draft<'a>(batch: &VerifyBatch<'a>, sequence: &VerifySequence<'_>, parent: Option<NodeId>) -> Result<Draft<'a>> {
    let mode = sequence.mode(parent);
    // A leaf's mode means nothing, and nothing was recorded for it.
    if mode == ChildMode::Deterministic || sequence.children(parent).next().is_none() {
        return Ok(Draft::OneHot);
    }
    let row = batch.draft_prob(sequence, parent).filter(|row| row.len() == batch.vocab_size());
    let row = row.ok_or_else(|| broken(sequence, parent, "its children were drawn but no draft_prob is recorded"))?;
    Ok(match mode {
        ChildMode::WithoutReplacement => Draft::WithoutReplacement(row),
        _ => Draft::WithReplacement(row),
    })
}

fn broken(sequence: &VerifySequence<'_>, node: Option<NodeId>, what: impl std::fmt::Display) -> Error {
    let id = sequence.id.0;
    match node {
        None => Error::failed(format!("sequence {id}, row of the anchor: {what}")),
        Some(node) => Error::failed(format!("sequence {id}, row of draft node {node}: {what}")),
    }
}
