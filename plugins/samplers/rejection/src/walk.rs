//! From the anchor down the tree, one parent at a time, until no child is kept.
//!
//! The bonus token is no special case: at a kept leaf there are no children to judge, so the token is drawn from the
//! untouched row. Each decision has noise of its own, keyed by the step's output index, the node and the purpose: a
//! coin and a draw that shared a number would tie the next token to what was refused.

use foretoken_plugin_api::types::sampling::Purpose;
use foretoken_plugin_api::{NodeId, NoiseKey, Result, Token, VerifyBatch, VerifySequence};

use crate::chance::Chance;
use crate::rows::{Rows, draft, greedy};
use crate::rule::judge;

/// Verifies one sequence by the recursive rule: calls `keep` along the kept path and returns the next token.
///
/// # Errors
/// If a row that decides is no distribution.
pub fn recursive(
    rows: &mut Rows,
    batch: &VerifyBatch<'_>,
    sequence: &VerifySequence<'_>,
    chance: &mut impl Chance,
    mut keep: impl FnMut(NodeId),
) -> Result<Token> {
    if sequence.sampling.is_greedy() {
        return argmax_path(batch, sequence, keep);
    }
    let mut parent = None;
    loop {
        let weights = rows.target_prob(batch, sequence, parent)?;
        let children = sequence.children(parent).map(|node| (node, sequence.tokens()[node as usize]));
        let coin = |node, probability| chance.coin(accept_key(sequence, node), probability);
        let Some(node) = judge(weights, draft(batch, sequence, parent)?, children, coin) else {
            return Ok(chance.draw(residual_key(sequence, parent), weights));
        };
        keep(node);
        parent = Some(node);
    }
}

/// Verifies one greedy sequence: keeps drafts while they are the argmax.
///
/// # Errors
/// If a row that decides is broken.
pub fn argmax_path(
    batch: &VerifyBatch<'_>,
    sequence: &VerifySequence<'_>,
    mut keep: impl FnMut(NodeId),
) -> Result<Token> {
    let mut parent = None;
    loop {
        let token = greedy(batch, sequence, parent)?;
        let child = sequence.children(parent).find(|node| sequence.tokens()[*node as usize] == token);
        let Some(node) = child else { return Ok(token) };
        keep(node);
        parent = Some(node);
    }
}

/// The noise that decides about `node`.
pub fn accept_key(sequence: &VerifySequence<'_>, node: NodeId) -> NoiseKey {
    sequence.noise.for_node(sequence.output_index, node + 1, Purpose::Accept)
}

/// The noise of a next token drawn after `parent`.
pub fn residual_key(sequence: &VerifySequence<'_>, parent: Option<NodeId>) -> NoiseKey {
    sequence.noise.for_node(sequence.output_index, parent.map_or(0, |node| node + 1), Purpose::Residual)
}
