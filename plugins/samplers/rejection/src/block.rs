//! The sampler part `block`: block verification of chains (Sun et al. 2403.10444, Algorithm 2).
//!
//! Token by token, a draft that is refused early ends the step. Here each prefix has a weight, the running product of
//! target_prob / draft_prob capped at 1, and the longest prefix that wins its coin is kept, so a bad token can be made
//! up for by good ones after it; the expected number kept is never smaller, and the law stays the target's. The proof
//! is for chains: trees of several branches go to the recursive rule of `rejection`, rather than being refused, so that
//! one config serves every proposer. A proposer may end its chain early, as long as that depends on earlier tokens.

use foretoken_plugin_api::{Guarantees, Host, NoOptions, NodeId, Result, Sampler, Token, Verdicts};
use foretoken_plugin_api::{VerifyBatch, VerifySequence};

use crate::chance::{Chance, Philox};
use crate::rejection::GUARANTEES;
use crate::rows::{Rows, draft};
use crate::rule::{Draft, at, excess, subtract};
use crate::walk::{accept_key, recursive, residual_key};

/// The block rule with reused scratch.
#[derive(Debug, Default)]
pub struct Block {
    rows: Rows,
}

impl Sampler for Block {
    type Options = NoOptions;

    fn new(_options: NoOptions, _host: Host) -> Result<Self> {
        Ok(Self::default())
    }

    fn verify(&mut self, batch: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let keep = |node| verdicts.keep(index, node);
            let next_token = block(&mut self.rows, batch, sequence, &mut Philox, keep)?;
            verdicts.next(index, next_token);
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        GUARANTEES
    }
}

/// Verifies one sequence: a sampled chain by the block rule, anything else by the recursive one.
///
/// # Errors
/// If a row that decides is no distribution.
pub fn block(
    rows: &mut Rows,
    batch: &VerifyBatch<'_>,
    sequence: &VerifySequence<'_>,
    chance: &mut impl Chance,
    keep: impl FnMut(NodeId),
) -> Result<Token> {
    let nodes = sequence.tokens().len() as NodeId;
    let is_chain = (0..nodes).all(|node| sequence.parent(node) == node.checked_sub(1));
    if sequence.sampling.is_greedy() || !is_chain {
        return recursive(rows, batch, sequence, chance, keep);
    }
    let (keep_len, weight) = longest_prefix(rows, batch, sequence, chance)?;
    (0..keep_len).for_each(keep);
    let last = keep_len.checked_sub(1);
    let weights = rows.target_prob(batch, sequence, last)?;
    if keep_len < nodes {
        leave_residual(weights, weight, draft(batch, sequence, last)?, sequence.tokens()[keep_len as usize]);
    }
    Ok(chance.draw(residual_key(sequence, last), weights))
}

/// How many nodes are kept, and the weight of the prefix they make.
fn longest_prefix(
    rows: &mut Rows,
    batch: &VerifyBatch<'_>,
    sequence: &VerifySequence<'_>,
    chance: &mut impl Chance,
) -> Result<(NodeId, f64)> {
    let tokens = sequence.tokens();
    let Some(first) = tokens.first() else { return Ok((0, 1.0)) };
    let target_prob = rows.target_prob(batch, sequence, None)?;
    let mut weight = extend(1.0, target_prob, draft(batch, sequence, None)?, *first);
    let mut kept = (0, 1.0);
    for node in 0..tokens.len() as NodeId {
        // A prefix the target forbids: neither it nor a longer one can be kept.
        if weight <= 0.0 {
            break;
        }
        let (probability, longer) = match tokens.get(node as usize + 1) {
            None => (weight, 0.0),
            Some(next) => {
                let target_prob = rows.target_prob(batch, sequence, Some(node))?;
                let draft = draft(batch, sequence, Some(node))?;
                (keep_probability(weight, target_prob, draft, *next), extend(weight, target_prob, draft, *next))
            }
        };
        if chance.coin(accept_key(sequence, node), probability) {
            kept = (node + 1, weight);
        }
        weight = longer;
    }
    Ok(kept)
}

/// The weight of a prefix with `token` added: `min(weight * target_prob / draft_prob, 1)`.
pub fn extend(weight: f64, target_prob: &[f32], draft: Draft<'_>, token: Token) -> f64 {
    draft.ratio(weight * at(target_prob, token), token).min(1.0)
}

/// The probability of keeping a prefix that the draft continues with `next`: Z / (Z + 1 - weight), where Z is the mass
/// of `max(weight * target_prob - draft_prob, 0)` in the row after it.
pub fn keep_probability(weight: f64, target_prob: &[f32], draft: Draft<'_>, next: Token) -> f64 {
    let excess = match draft {
        Draft::OneHot => weight * (1.0 - at(target_prob, next)),
        Draft::WithReplacement(row) | Draft::WithoutReplacement(row) => excess(target_prob, weight, row, 1.0),
    };
    let denominator = excess + 1.0 - weight;
    // Both terms are 0 only for a weight of 1 before equal rows. Then the next prefix has weight 1 too and wins.
    if denominator > 0.0 { excess / denominator } else { 1.0 }
}

/// Turns the row after the kept prefix into what the next token is drawn from.
pub fn leave_residual(weights: &mut [f32], weight: f64, draft: Draft<'_>, refused: Token) {
    match draft {
        Draft::OneHot => {
            let certain = std::mem::take(&mut weights[refused as usize]);
            if weights.iter().all(|weight| *weight <= 0.0) {
                weights[refused as usize] = certain;
            }
        }
        Draft::WithReplacement(row) | Draft::WithoutReplacement(row) => {
            subtract(weights, weight, row, 1.0);
        }
    }
}
