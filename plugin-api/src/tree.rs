//! A best-first tree of guesses, grown from candidate probabilities and pushed into [`Drafts`].
//!
//! Heads (EAGLE, Medusa, DFlash) and draft models that draft trees share it: they offer candidates, it decides which to
//! expand and which to keep. It only *pushes*. A tree pruned by the probability of its own tokens would, if those tokens
//! were drawn, keep likely draws more often than draft_prob says, and no acceptance rule could make up for that; for
//! pushed tokens, whose draft_prob is one-hot, every choice of tree is lossless (design invariant 1).
//!
//! ```
//! # use foretoken_plugin_api::tree::{TreeGrower, TreeShape};
//! let mut tree = TreeGrower::new(TreeShape { nodes: 3, depth: 2, branch: 1 });
//! tree.start();
//! let first = tree.offer(None, 7, 0.6);
//! tree.offer(None, 8, 0.3);
//! assert!(tree.advance());
//! assert_eq!(tree.frontier(), [first.unwrap()]);
//! tree.offer(first, 9, 0.2);
//! tree.finish();
//! assert_eq!(tree.kept().map(|(token, parent)| (token, parent)).collect::<Vec<_>>(), [(7, None), (8, None), (9, Some(0))]);
//! ```

pub use crate::static_tree::StaticTree;

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::author::Drafts;
use crate::error::DraftError;
use crate::types::{NodeId, Token};

/// How large a tree may grow; for options tables (`#[serde(flatten)]` does not go with `deny_unknown_fields`: give it a
/// table of its own).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(crate = "schemars")]
pub struct TreeShape {
    /// Nodes that are kept.
    pub nodes: usize,
    /// Levels that are grown.
    pub depth: usize,
    /// Nodes expanded at each level.
    pub branch: usize,
}

impl Default for TreeShape {
    fn default() -> Self {
        Self { nodes: 16, depth: 5, branch: 4 }
    }
}

/// A candidate of a [`TreeGrower`], in the order they were offered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CandidateId(u32);

impl CandidateId {
    /// The candidate as an index into the caller's own per-candidate state.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    parent: Option<CandidateId>,
    token: Token,
    /// Natural log of the product of the probabilities from the first level down.
    log_prob: f64,
}

/// One reachable but untaken continuation of a best-first growth over marginals.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Reachable {
    log_prob: f64,
    parent: Option<CandidateId>,
    parent_log_prob: f64,
    position: usize,
    rank: usize,
}

impl Eq for Reachable {}

impl Ord for Reachable {
    fn cmp(&self, other: &Self) -> Ordering {
        // Ties go to the shallower, then the better ranked, then the older: the heap pops the largest.
        let key = |this: &Self| (this.position, this.rank, this.parent);
        self.log_prob.total_cmp(&other.log_prob).then_with(|| key(other).cmp(&key(self)))
    }
}

impl PartialOrd for Reachable {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Grows one tree at a time in buffers it keeps.
///
/// Either level by level: [`start`](Self::start), then for each level [`offer`](Self::offer) children of the
/// [`frontier`](Self::frontier) and [`advance`](Self::advance), then [`finish`](Self::finish); this is EAGLE-2's expansion
/// and reranking (arXiv 2406.16858, section 4). Or in one go from per-position marginals:
/// [`grow_marginals`](Self::grow_marginals) (DDTree, arXiv 2604.12989). Then [`emit`](Self::emit).
#[derive(Debug, Clone)]
pub struct TreeGrower {
    shape: TreeShape,
    candidates: Vec<Candidate>,
    frontier: Vec<CandidateId>,
    level: usize,
    level_start: usize,
    order: Vec<CandidateId>,
    heap: BinaryHeap<Reachable>,
    /// Kept candidates, ascending; and each candidate's place among them.
    kept: Vec<CandidateId>,
    place: Vec<Option<NodeId>>,
}

impl TreeGrower {
    /// A grower of trees of this shape.
    pub fn new(shape: TreeShape) -> Self {
        Self {
            shape,
            candidates: Vec::new(),
            frontier: Vec::new(),
            level: 0,
            level_start: 0,
            order: Vec::new(),
            heap: BinaryHeap::new(),
            kept: Vec::new(),
            place: Vec::new(),
        }
    }

    /// The shape.
    pub fn shape(&self) -> TreeShape {
        self.shape
    }

    /// Begins a tree: offer children of the anchor (`None`).
    pub fn start(&mut self) {
        self.candidates.clear();
        self.frontier.clear();
        self.kept.clear();
        (self.level, self.level_start) = (0, 0);
    }

    /// Offers `token` under `parent` (`None`: the anchor) with its probability given the path; distinct tokens per parent,
    /// please. `None` is returned, and nothing offered, for a probability that is not in (0, 1] (a rounding error above 1
    /// counts as 1).
    ///
    /// # Panics
    /// If `parent` was not offered before.
    pub fn offer(&mut self, parent: Option<CandidateId>, token: Token, probability: f32) -> Option<CandidateId> {
        let above = parent.map_or(0.0, |parent| self.candidates[parent.index()].log_prob);
        (probability > 0.0 && self.shape.depth > 0).then(|| {
            let log_prob = above + f64::from(probability.min(1.0)).ln();
            self.candidates.push(Candidate { parent, token, log_prob });
            CandidateId(self.candidates.len() as u32 - 1)
        })
    }

    /// Chooses the best `branch` of this level's offers as the next frontier, as far as their children may be kept; false
    /// when the tree is as deep as it may be, or when nothing more would be kept.
    pub fn advance(&mut self) -> bool {
        self.level += 1;
        self.order_all();
        // A child comes behind its parent and behind all that its parent comes behind, so below the best `nodes - 1`
        // nothing is kept, whatever is offered later.
        let expandable = self.shape.nodes.saturating_sub(1);
        if expandable < self.order.len() {
            let candidates = &self.candidates;
            self.order.select_nth_unstable_by(expandable, |a, b| best_first(candidates, *a, *b));
            self.order.truncate(expandable);
        }
        let start = std::mem::replace(&mut self.level_start, self.candidates.len());
        self.order.retain(|candidate| candidate.index() >= start);
        self.sort_best_first();
        self.frontier.clear();
        if self.level < self.shape.depth {
            self.frontier.extend(self.order.iter().take(self.shape.branch));
        }
        // Ascending, so that a caller's rows stay in the order of its offers.
        self.frontier.sort_unstable();
        !self.frontier.is_empty()
    }

    /// The candidates to expand next.
    pub fn frontier(&self) -> &[CandidateId] {
        &self.frontier
    }

    /// A candidate's token.
    pub fn token(&self, candidate: CandidateId) -> Token {
        self.candidates[candidate.index()].token
    }

    /// A candidate's parent; `None` is the anchor.
    pub fn parent(&self, candidate: CandidateId) -> Option<CandidateId> {
        self.candidates[candidate.index()].parent
    }

    /// The natural log of the probability of the path down to `candidate`.
    pub fn log_prob(&self, candidate: CandidateId) -> f64 {
        self.candidates[candidate.index()].log_prob
    }

    /// Keeps the best `nodes` of all candidates. Closed under parents without looking: a child is never better than its
    /// parent, and a tie goes to the one offered first.
    pub fn finish(&mut self) {
        self.order_all();
        self.sort_best_first();
        self.keep(self.shape.nodes);
    }

    /// Grows the best `nodes` paths where position `i` has the candidates `top[i * width..][..width]`, each a token and its
    /// probability in falling order (the layout of [`lm_head_topk`](crate::HostApi::lm_head_topk)), and positions are
    /// independent. `branch` is not used.
    ///
    /// # Panics
    /// If `width` is 0 or does not divide `top.len()`.
    pub fn grow_marginals(&mut self, top: &[(Token, f32)], width: usize) {
        assert!(width > 0 && top.len().is_multiple_of(width), "grow_marginals: {} entries of width {width}", top.len());
        debug_assert!(top.chunks_exact(width).all(|row| row.is_sorted_by(|a, b| a.1 >= b.1)), "falling order");
        self.start();
        self.heap.clear();
        let positions = (top.len() / width).min(self.shape.depth);
        let reach = |position: usize, rank: usize, parent: Option<CandidateId>, above: f64| -> Option<Reachable> {
            let (_, probability) =
                *top.get(position * width + rank).filter(|_| position < positions && rank < width)?;
            let log_prob = above + f64::from(probability.min(1.0)).ln();
            (probability > 0.0).then_some(Reachable { log_prob, parent, parent_log_prob: above, position, rank })
        };
        self.heap.extend(reach(0, 0, None, 0.0));
        while self.candidates.len() < self.shape.nodes {
            let Some(best) = self.heap.pop() else { break };
            let (token, _) = top[best.position * width + best.rank];
            let taken = CandidateId(self.candidates.len() as u32);
            self.candidates.push(Candidate { parent: best.parent, token, log_prob: best.log_prob });
            // Whatever else becomes reachable is no better than these two.
            self.heap.extend(reach(best.position, best.rank + 1, best.parent, best.parent_log_prob));
            self.heap.extend(reach(best.position + 1, 0, Some(taken), best.log_prob));
        }
        self.finish();
    }

    /// The kept nodes in topological order: token, and parent as an index among them.
    pub fn kept(&self) -> impl Iterator<Item = (Token, Option<NodeId>)> + '_ {
        self.kept.iter().map(|&candidate| (self.token(candidate), self.place_of(self.parent(candidate))))
    }

    /// Pushes the tree as the draft of batch sequence `sequence`, which has none yet. Where the budget is smaller than the
    /// tree, the best nodes that fit.
    ///
    /// # Errors
    /// The first refusal of [`Drafts::push`]; what was pushed before stays.
    pub fn emit(&mut self, sequence: usize, drafts: &mut Drafts<'_>) -> Result<(), DraftError> {
        let room = drafts.remaining(sequence);
        if room < self.kept.len() {
            self.keep(room);
        }
        for index in 0..self.kept.len() {
            let candidate = self.kept[index];
            let Candidate { parent, token, .. } = self.candidates[candidate.index()];
            let node = drafts.push(sequence, self.place_of(parent), token)?;
            self.place[candidate.index()] = Some(node);
        }
        Ok(())
    }

    fn place_of(&self, parent: Option<CandidateId>) -> Option<NodeId> {
        parent.and_then(|parent| self.place[parent.index()])
    }

    fn order_all(&mut self) {
        self.order.clear();
        self.order.extend((0..self.candidates.len()).map(|index| CandidateId(index as u32)));
    }

    fn sort_best_first(&mut self) {
        let candidates = &self.candidates;
        self.order.sort_unstable_by(|a, b| best_first(candidates, *a, *b));
    }

    /// Keeps the first `count` of `order`, which is all candidates, best first.
    fn keep(&mut self, count: usize) {
        self.kept.clear();
        self.kept.extend(self.order.iter().take(count));
        self.kept.sort_unstable();
        self.place.clear();
        self.place.resize(self.candidates.len(), None);
        for (node, candidate) in (0..).zip(&self.kept) {
            self.place[candidate.index()] = Some(node);
        }
    }
}
/// The more probable first, then the one offered first.
fn best_first(candidates: &[Candidate], a: CandidateId, b: CandidateId) -> Ordering {
    let log_prob = |candidate: CandidateId| candidates[candidate.index()].log_prob;
    log_prob(b).total_cmp(&log_prob(a)).then(a.cmp(&b))
}
