//! From a match to a draft.
//!
//! A node's probability is that of its parent times the share of the times that its token followed. Nodes are taken best
//! first until none is likely enough, or the draft is as long as the match allows: the longer the match, the further it is
//! trusted (SuffixDecoding, arXiv 2411.04975, section 4). The sum of the probabilities is how many tokens the draft can
//! hope for, so of several matches the one whose draft has the greatest sum is taken.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use foretoken_plugin_api::{NodeId, Token};

use crate::automaton::{Automaton, Continuation, State};
use crate::outputs::END;

/// Continuations of a state that a tree looks at.
const WIDTH: usize = 32;

/// What a draft may be.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Most nodes for each token of the match.
    pub factor: f64,
    /// Least probability of a node.
    pub probability: f64,
    /// Whether it may branch.
    pub tree: bool,
}

/// A draft and what it can hope for.
#[derive(Debug, Clone, Default)]
pub struct Guess {
    /// Tokens with their parents, parents first.
    pub nodes: Vec<(Option<NodeId>, Token)>,
    /// Sum of the nodes' probabilities.
    pub score: f64,
}

/// A node that may be taken next.
#[derive(Debug, Clone, Copy)]
struct Open {
    probability: f64,
    parent: Option<NodeId>,
    token: Token,
    state: State,
}

impl PartialEq for Open {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Open {}

impl Ord for Open {
    fn cmp(&self, other: &Self) -> Ordering {
        // Of equals the one whose parent came first, then the lower token.
        self.probability
            .total_cmp(&other.probability)
            .then_with(|| (other.parent, other.token).cmp(&(self.parent, self.token)))
    }
}

impl PartialOrd for Open {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Makes guesses in buffers that it keeps.
#[derive(Debug, Default)]
pub struct Guesser {
    open: BinaryHeap<Open>,
    best: Guess,
    next: Guess,
}

impl Guesser {
    /// Forgets what was guessed.
    pub fn clear(&mut self) {
        self.best.nodes.clear();
        self.best.score = 0.0;
    }

    /// The best guess since `clear`.
    pub fn best(&self) -> &Guess {
        &self.best
    }

    /// Guesses what follows a match of `len` tokens, at most `most` nodes, and keeps it if it beats the best.
    pub fn consider(&mut self, automaton: &Automaton, state: State, len: usize, most: usize, limits: &Limits) {
        let most = most.min((limits.factor * len as f64) as usize);
        // No node is more probable than 1.
        if most as f64 <= self.best.score {
            return;
        }
        self.next.nodes.clear();
        self.next.score = 0.0;
        if limits.tree {
            self.grow(automaton, state, most, limits)
        } else {
            self.chain(automaton, state, most, limits)
        }
        if self.next.score > self.best.score {
            std::mem::swap(&mut self.next, &mut self.best);
        }
    }

    fn chain(&mut self, automaton: &Automaton, mut state: State, most: usize, limits: &Limits) {
        let (mut parent, mut probability) = (None, 1.0);
        while self.next.nodes.len() < most {
            let Some(next) = followed(automaton, state).and_then(|state| automaton.best(state)) else { return };
            probability *= next.probability;
            if probability < limits.probability || next.token == END {
                return;
            }
            self.next.nodes.push((parent, next.token));
            self.next.score += probability;
            parent = Some(self.next.nodes.len() as NodeId - 1);
            state = next.state;
        }
    }

    fn grow(&mut self, automaton: &Automaton, state: State, most: usize, limits: &Limits) {
        self.open.clear();
        self.offer(automaton, state, None, 1.0, limits);
        while self.next.nodes.len() < most {
            let Some(Open { probability, parent, token, state }) = self.open.pop() else { return };
            self.next.nodes.push((parent, token));
            self.next.score += probability;
            let node = self.next.nodes.len() as NodeId - 1;
            self.offer(automaton, state, Some(node), probability, limits);
        }
    }

    fn offer(&mut self, automaton: &Automaton, state: State, parent: Option<NodeId>, of: f64, limits: &Limits) {
        let Some(state) = followed(automaton, state) else { return };
        for Continuation { token, probability, state } in automaton.continuations(state).take(WIDTH) {
            let probability = of * probability;
            if probability >= limits.probability && token != END {
                self.open.push(Open { probability, parent, token, state });
            }
        }
    }
}

/// The state, or at the end of the text its longest suffix that something followed: so a loop goes on.
fn followed(automaton: &Automaton, state: State) -> Option<State> {
    let mut at = state;
    while automaton.best(at).is_none() {
        at = automaton.shorter(at)?;
    }
    (automaton.len(at) > 0).then_some(at)
}
