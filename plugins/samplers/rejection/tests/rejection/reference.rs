//! The recursive rule a second time, in f64 and as short as it can be, with the mistakes that others have shipped.

use foretoken_kernels::ops::warp::reference;
use foretoken_plugin_api::types::sampling::Purpose;
use foretoken_plugin_api::{ChildMode, NodeId, Token, VerifyBatch};
use foretoken_rejection::chance::Chance;

/// What is wrong with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    None,
    /// The residual is the plain difference, whose mass is 0, so the target's row is taken instead.
    NoClamp,
    /// The residual keeps its small mass, which the next sibling is compared with.
    ResidualNotRenormalised,
    /// The second draw without replacement is judged by the first one's draft_prob.
    DraftNotRenormalised,
    TargetAndDraftSwapped,
    /// A refused draw leaves the target's row.
    DraftIgnoredInResidual,
    /// A draw is kept with target_prob, as if it had been certain.
    DraftIgnoredInAcceptance,
    /// The next token is drawn with the number that refused the draft.
    NoiseReusedForResidual,
    /// All nodes share one coin.
    NoiseReusedBetweenNodes,
    /// The token after the kept path is drawn from the row before it.
    RowOfTheParent,
}

/// Verifies the batch's only sequence.
pub fn reference(batch: &VerifyBatch<'_>, chance: &mut dyn Chance, mistake: Mistake) -> (Vec<NodeId>, Token) {
    let sequence = &batch.sequences()[0];
    let (anchor, mut parent, mut keep) = (sequence.output_index, None, Vec::new());
    let mut stale = Vec::new();
    loop {
        let mut residual = reference::warp(batch.logits(sequence, parent), &sequence.sampling.into());
        let row = residual.clone();
        let mut removed = Vec::new();
        let kept = sequence.children(parent).find(|node| {
            let token = sequence.tokens()[*node as usize];
            let draft = draft_of(batch, parent, token, &removed, mistake);
            let coin_node = if mistake == Mistake::NoiseReusedBetweenNodes { 1 } else { node + 1 };
            let coin = sequence.noise.for_node(anchor, coin_node, Purpose::Accept);
            let ratio = match mistake {
                Mistake::TargetAndDraftSwapped => draft[token as usize] / residual[token as usize],
                Mistake::DraftIgnoredInAcceptance => residual[token as usize],
                _ => residual[token as usize] / draft[token as usize],
            };
            let is_kept = chance.coin(coin, ratio);
            if !is_kept {
                residual = left_over(&residual, &draft, &row, mistake);
                removed.push(token);
            }
            is_kept
        });
        let Some(node) = kept else {
            let key = match (mistake, sequence.children(parent).next()) {
                (Mistake::NoiseReusedForResidual, Some(first)) => {
                    sequence.noise.for_node(anchor, first + 1, Purpose::Accept)
                }
                _ => sequence.noise.for_node(anchor, parent.map_or(0, |node| node + 1), Purpose::Residual),
            };
            let from = if mistake == Mistake::RowOfTheParent && !stale.is_empty() { &stale } else { &residual };
            let weights: Vec<f32> = from.iter().map(|weight| *weight as f32).collect();
            return (keep, chance.draw(key, &weights));
        };
        stale = row;
        keep.push(node);
        parent = Some(node);
    }
}

/// What the next child of `parent` is drawn from.
fn draft_of(
    batch: &VerifyBatch<'_>,
    parent: Option<NodeId>,
    token: Token,
    removed: &[Token],
    mistake: Mistake,
) -> Vec<f64> {
    let sequence = &batch.sequences()[0];
    let mut draft = vec![0.0; batch.vocab_size()];
    if sequence.mode(parent) == ChildMode::Deterministic {
        draft[token as usize] = 1.0;
        return draft;
    }
    let row = batch.draft_prob(sequence, parent).expect("recorded");
    draft.iter_mut().zip(row).for_each(|(draft, prob)| *draft = f64::from(*prob));
    if sequence.mode(parent) == ChildMode::WithoutReplacement && mistake != Mistake::DraftNotRenormalised {
        removed.iter().for_each(|token| draft[*token as usize] = 0.0);
        let mass: f64 = draft.iter().sum();
        draft.iter_mut().for_each(|prob| *prob /= mass);
    }
    draft
}

fn left_over(residual: &[f64], draft: &[f64], row: &[f64], mistake: Mistake) -> Vec<f64> {
    if mistake == Mistake::DraftIgnoredInResidual {
        return row.to_vec();
    }
    let difference = |(residual, draft): (&f64, &f64)| match mistake {
        Mistake::NoClamp => residual - draft,
        Mistake::TargetAndDraftSwapped => (draft - residual).max(0.0),
        _ => (residual - draft).max(0.0),
    };
    let left: Vec<f64> = residual.iter().zip(draft).map(difference).collect();
    let mass: f64 = left.iter().sum();
    match (mistake, mass > 1e-6) {
        (Mistake::ResidualNotRenormalised, true) => left,
        (_, true) => left.iter().map(|weight| weight / mass).collect(),
        (_, false) => row.to_vec(),
    }
}
