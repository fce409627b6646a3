//! Where a proposer puts its guesses.
//!
//! There are two ways in and no third: a token is pushed (then draft_prob is one-hot) or drawn by the engine from logits
//! the proposer gives (then the engine records the very distribution it drew from). A proposer cannot claim a
//! draft_prob, and cannot take a drawn node back after seeing its token; both are what losslessness rests on.

use crate::abi::drafts::DraftsObject;
use crate::error::DraftError;
use crate::types::{NodeId, Token};

/// Takes guesses; the engine's side of [`Drafts`]. Sequences count as in the batch.
pub trait DraftSink {
    /// See [`Drafts::push`].
    fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError>;

    /// See [`Drafts::draw`].
    fn draw(&mut self, sequence: usize, parent: Option<NodeId>, logits: &[f32]) -> Result<(NodeId, Token), DraftError>;

    /// See [`Drafts::draw_n`]: `out` takes up to `out.len()` nodes and tokens; returns how many.
    fn draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError>;

    /// How many more nodes fit.
    fn remaining(&self, sequence: usize) -> usize;
}

/// The drafts of one propose call, being made.
pub struct Drafts<'a> {
    object: DraftsObject<'a>,
}

impl<'a> Drafts<'a> {
    /// Drafts that go to `sink`.
    pub fn new<S: DraftSink>(sink: &'a mut S) -> Self {
        Self { object: DraftsObject::new(sink) }
    }

    pub(crate) fn from_object(object: DraftsObject<'a>) -> Self {
        Self { object }
    }

    pub(crate) fn object(&mut self) -> DraftsObject<'_> {
        self.object.reborrow()
    }

    /// Adds a deterministic guess for batch sequence `sequence` under `parent` (`None`: the anchor).
    ///
    /// # Errors
    /// The draft stays as it was; see [`DraftError`].
    pub fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        self.object.push(sequence, parent, token)
    }

    /// Has the engine warp `logits` `[vocab]` with the request's sampling parameters, draw with its own noise, record
    /// draft_prob and add the node. At temperature 0 this pushes the argmax.
    ///
    /// Whether a node is drawn at all may depend on `logits` and earlier tokens, never on the token drawn. A second draw
    /// under one parent is from the first one's logits: a parent has one draft_prob.
    ///
    /// # Errors
    /// The draft stays as it was; see [`DraftError`].
    pub fn draw(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
    ) -> Result<(NodeId, Token), DraftError> {
        self.object.draw(sequence, parent, logits)
    }

    /// Draws up to `count` distinct children at once, without replacement, appending them to `out`; fewer where the
    /// distribution's support or the budget is smaller. Once per parent.
    ///
    /// # Errors
    /// The draft stays as it was; see [`DraftError`].
    pub fn draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        count: usize,
        out: &mut Vec<(NodeId, Token)>,
    ) -> Result<(), DraftError> {
        let start = out.len();
        out.resize(start + count, (0, 0));
        let drawn = self.object.draw_n(sequence, parent, logits, &mut out[start..]);
        out.truncate(start + drawn.as_ref().copied().unwrap_or(0));
        drawn.map(drop)
    }

    /// How many more nodes fit into the draft of `sequence`.
    pub fn remaining(&self, sequence: usize) -> usize {
        self.object.remaining(sequence)
    }
}
