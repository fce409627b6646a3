//! One sequence's draft as it grows: a chain of guesses, a tree of the most probable paths, or a tree of fixed shape.
//!
//! The nodes that are to be run next are the frontier. Each remembers the row of the last pass that guessed it, and the lane
//! rows of the nodes above it, which it attends to.

use std::ops::Range;
use std::sync::Arc;

use crate::author::Drafts;
use crate::error::DraftError;
use crate::guess::{DraftSampling, most_probable};
use crate::tree::{CandidateId, StaticTree, TreeGrower};
use crate::types::{NodeId, ProposeSequence, Slot, Token};

/// A node to run.
#[derive(Debug, Clone)]
pub struct Front {
    /// The guessed token.
    pub token: Token,
    /// The row of the last pass that guessed it.
    pub parent_row: usize,
    /// Lane rows of the nodes above it, then its own.
    pub path: Vec<Slot>,
    /// Where it is in the tree.
    place: Place,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Chain,
    Candidate(CandidateId),
    Static(usize),
}

/// How a draft grows.
#[derive(Debug)]
pub enum Growth {
    /// One node after the other, `left` of them.
    Chain {
        /// How a token is chosen.
        sampling: DraftSampling,
        /// Nodes still wanted.
        left: usize,
        /// The node before.
        last: Option<NodeId>,
    },
    /// Level by level, the most probable paths; pushed as one tree at the end.
    Grown(TreeGrower),
    /// A fixed shape: each parent's children are its most probable tokens, or drawn without replacement.
    Static {
        /// The shape.
        tree: Arc<StaticTree>,
        /// How tokens are chosen.
        sampling: DraftSampling,
        /// The node and token of each place of the tree, once made.
        made: Vec<Option<(NodeId, Token)>>,
    },
}

impl Growth {
    /// A chain of at most `left` nodes.
    pub fn chain(sampling: DraftSampling, left: usize) -> Self {
        Self::Chain { sampling, left, last: None }
    }

    /// A tree that `grower` grows.
    pub fn grown(mut grower: TreeGrower) -> Self {
        grower.start();
        Self::Grown(grower)
    }

    /// A tree of this shape.
    pub fn fixed(tree: Arc<StaticTree>, sampling: DraftSampling) -> Self {
        let made = vec![None; tree.len()];
        Self::Static { tree, sampling, made }
    }
}

/// One sequence being drafted for.
#[derive(Debug)]
pub struct Draft {
    number: usize,
    context: Vec<Slot>,
    frontier: Vec<Front>,
    growth: Growth,
    scratch: Range<u32>,
}

impl Draft {
    /// A draft for `sequence`, batch sequence `number`, with the lane rows `scratch` to itself; its first `skipped` tokens
    /// have no rows.
    pub(super) fn new(
        number: usize,
        sequence: &ProposeSequence<'_>,
        (growth, skipped): (Growth, usize),
        scratch: Range<u32>,
    ) -> Self {
        let anchor = sequence.tokens().len() - 1;
        let mut context = Vec::with_capacity(anchor + 1);
        context.extend_from_slice(&sequence.slots()[skipped.min(anchor)..anchor]);
        context.push(Slot(scratch.start));
        Self { number, context, frontier: Vec::new(), growth, scratch: scratch.start + 1..scratch.end }
    }

    /// Index of the sequence in the batch.
    pub fn number(&self) -> usize {
        self.number
    }

    /// Lane rows of all tokens that have one, the anchor's scratch row last.
    pub fn context(&self) -> &[Slot] {
        &self.context
    }

    /// What runs in the next pass.
    pub fn frontier(&self) -> &[Front] {
        &self.frontier
    }

    /// Takes in the logits of the anchor or of the whole frontier, each with its row of the pass. `targets` maps the network's
    /// tokens; `full` is room for a row over the target's vocabulary.
    pub(super) fn grow(
        &mut self,
        rows: &[(usize, &[f32])],
        targets: &[Token],
        full: &mut [f32],
        drafts: &mut Drafts<'_>,
    ) -> Result<(), DraftError> {
        let above = std::mem::take(&mut self.frontier);
        let number = self.number;
        match &mut self.growth {
            Growth::Chain { sampling, left, last } => {
                let Some(&(row, logits)) = rows.first() else { return Ok(()) };
                let (node, token) = sampling.guess(drafts, number, *last, spread(logits, targets, full))?;
                (*last, *left) = (Some(node), left.saturating_sub(1));
                if *left > 0 {
                    self.add_front(token, row, above.first(), Place::Chain);
                }
            }
            Growth::Grown(grower) => {
                let width = grower.shape().branch;
                for (index, (_, logits)) in rows.iter().enumerate() {
                    let parent = above.get(index).and_then(|front| match front.place {
                        Place::Candidate(id) => Some(id),
                        _ => None,
                    });
                    for (token, probability) in most_probable(logits, width) {
                        grower.offer(parent, target(targets, token), probability);
                    }
                }
                if !grower.advance() {
                    grower.finish();
                    return grower.emit(number, drafts);
                }
                let next: Vec<_> =
                    grower.frontier().iter().map(|&id| (id, grower.token(id), grower.parent(id))).collect();
                for (id, token, parent) in next {
                    let is_parent = |front: &Front| parent.map(Place::Candidate) == Some(front.place);
                    let place = above.iter().position(is_parent).unwrap_or(0);
                    self.add_front(token, rows[place].0, above.get(place), Place::Candidate(id));
                }
            }
            Growth::Static { tree, sampling, made } => {
                let (tree, sampling) = (Arc::clone(tree), *sampling);
                let mut next = Vec::new();
                for (index, (row, logits)) in rows.iter().enumerate() {
                    let parent = above.get(index).and_then(|front| match front.place {
                        Place::Static(place) => Some(place),
                        _ => None,
                    });
                    let parent_node = parent.and_then(|parent| made[parent]).map(|(node, _)| node);
                    let width = tree.children(parent).map(|(_, rank)| rank + 1).max().unwrap_or(0);
                    if width == 0 {
                        continue;
                    }
                    let mut guessed: Vec<(NodeId, Token)> = Vec::with_capacity(width);
                    match sampling {
                        DraftSampling::Drawn => {
                            let logits = spread(logits, targets, full);
                            drafts.draw_n(number, parent_node, logits, width, &mut guessed)?;
                        }
                        DraftSampling::Deterministic => {
                            let wanted = |rank: usize| tree.children(parent).any(|(_, other)| other == rank);
                            for (rank, (token, _)) in most_probable(logits, width).enumerate() {
                                let token = target(targets, token);
                                let node = if wanted(rank) { drafts.push(number, parent_node, token)? } else { 0 };
                                guessed.push((node, token));
                            }
                        }
                    }
                    for (place, rank) in tree.children(parent).filter(|(_, rank)| *rank < guessed.len()) {
                        made[place] = Some(guessed[rank]);
                        if tree.children(Some(place)).next().is_some() {
                            next.push((place, guessed[rank].1, *row, index));
                        }
                    }
                }
                for (place, token, row, index) in next {
                    self.add_front(token, row, above.get(index), Place::Static(place));
                }
            }
        }
        Ok(())
    }

    fn add_front(&mut self, token: Token, parent_row: usize, above: Option<&Front>, place: Place) {
        // As many scratch rows were asked for as a draft can have nodes that run.
        let Some(own) = self.scratch.next() else { return };
        let mut path = above.map_or_else(Vec::new, |front| front.path.clone());
        path.push(Slot(own));
        self.frontier.push(Front { token, parent_row, path, place });
    }
}

/// The target's token for one of the network's.
fn target(targets: &[Token], token: Token) -> Token {
    targets.get(token as usize).copied().unwrap_or(token)
}

/// The network's logits over the target's vocabulary; what it cannot guess is impossible.
fn spread<'a>(logits: &'a [f32], targets: &[Token], full: &'a mut [f32]) -> &'a [f32] {
    if targets.is_empty() {
        return logits;
    }
    full.fill(f32::NEG_INFINITY);
    for (token, logit) in targets.iter().zip(logits) {
        full[*token as usize] = *logit;
    }
    full
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logits_of_another_vocabulary_are_spread_and_the_rest_is_impossible() {
        let mut full = [0.0; 4];
        let wide = spread(&[1.0, 2.0], &[3, 1], &mut full);
        assert_eq!(wide, [f32::NEG_INFINITY, 2.0, f32::NEG_INFINITY, 1.0]);
        assert_eq!(spread(&[1.0, 2.0], &[], &mut full), [1.0, 2.0]);
    }
}
