//! A draft as it was recorded: the tree, how each parent's children were made, and from which distribution.

use crate::types::{ChildMode, NodeId, Token};

/// One sequence's draft.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RecordedDraft {
    tokens: Vec<Token>,
    parents: Vec<Option<NodeId>>,
    /// Per possible parent that has children: the anchor is key 0, node `i` is key `i + 1`.
    modes: Vec<Option<ChildMode>>,
    probs: Vec<Option<Vec<f64>>>,
}

fn key(parent: Option<NodeId>) -> usize {
    parent.map_or(0, |parent| parent as usize + 1)
}

impl RecordedDraft {
    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was drafted.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The tokens, in topological order.
    pub fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The parent of `node`; `None` is the anchor.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        self.parents[node as usize]
    }

    /// The children of `parent`, in the order they were made.
    pub fn children(&self, parent: Option<NodeId>) -> impl Iterator<Item = NodeId> + '_ {
        (0..self.len() as NodeId).filter(move |&node| self.parent(node) == parent)
    }

    /// How the children of `parent` were made, if it has any.
    pub fn children_mode(&self, parent: Option<NodeId>) -> Option<ChildMode> {
        self.modes.get(key(parent)).copied().flatten()
    }

    /// The distribution that the children of `parent` were drawn from.
    pub fn draft_prob(&self, parent: Option<NodeId>) -> Option<&[f64]> {
        self.probs.get(key(parent))?.as_deref()
    }

    /// The number of nodes from the first level down to `node`; 0 for the anchor.
    pub fn depth(&self, node: Option<NodeId>) -> u32 {
        std::iter::successors(node, |&node| self.parent(node)).count() as u32
    }

    /// The tokens from the first level down to `node`.
    pub fn path_tokens(&self, node: Option<NodeId>) -> Vec<Token> {
        let up = std::iter::successors(node, |&node| self.parent(node));
        let mut tokens: Vec<Token> = up.map(|node| self.tokens[node as usize]).collect();
        tokens.reverse();
        tokens
    }

    /// Whether any node was drawn.
    pub fn has_draws(&self) -> bool {
        self.modes.iter().flatten().any(|mode| *mode != ChildMode::Deterministic)
    }

    /// Whether some parent has two children.
    pub fn branches(&self) -> bool {
        (0..self.len()).any(|node| self.parents[..node].contains(&self.parents[node]))
    }

    /// Adds a node without any check.
    pub fn add(&mut self, parent: Option<NodeId>, token: Token, mode: ChildMode) -> NodeId {
        let node = self.tokens.len() as NodeId;
        self.tokens.push(token);
        self.parents.push(parent);
        self.modes.resize(self.tokens.len() + 1, None);
        self.modes[key(parent)] = Some(mode);
        node
    }

    pub(super) fn record(&mut self, parent: Option<NodeId>, probs: Vec<f64>) {
        self.probs.resize(self.tokens.len() + 1, None);
        self.probs[key(parent)] = Some(probs);
    }
}
