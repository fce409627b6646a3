//! One sequence's part in a step: which of its rows have run, what was guessed, where its KV is.
//!
//! A sequence's rows are counted by position: those before the anchor are committed and have slots, the anchor and the
//! drafted tokens have none yet and take the rows of a scratch block. `path` joins both, so that any run of rows is one
//! contiguous slice of it, and so is the context before it. The last drafted token is never run.

use std::ops::Range;

use crate::passes::Wanted;
use foretoken_plugin_api::{ForwardSequence, LogitRows, NodeId, ProposeSequence, Slot, Token};

/// The rows of one sequence in one pass.
#[derive(Debug, Clone)]
pub struct Segment {
    /// Index of the chain.
    pub chain: usize,
    /// Positions.
    pub rows: Range<usize>,
}

/// One sequence being drafted for. Reused from step to step.
#[derive(Debug, Default)]
pub struct Chain {
    /// Index of the sequence in the batch.
    pub number: usize,
    /// Position of the anchor: how many slots are committed.
    pub anchor: usize,
    /// The lane row of every position: the committed slots, then a scratch block.
    pub path: Vec<Slot>,
    /// How long the draft is to be.
    pub draft_len: usize,
    /// The last node, the parent of the next.
    pub last: Option<NodeId>,
    /// The anchor and what was guessed after it.
    tokens: Vec<Token>,
}

impl Chain {
    /// Starts on `sequence` with the scratch rows `block`.
    pub fn start(&mut self, wanted: Wanted, sequence: &ProposeSequence<'_>, block: Range<u32>) {
        let anchor = sequence.tokens().len() - 1;
        self.path.clear();
        self.path.extend_from_slice(&sequence.slots()[..anchor]);
        self.path.extend(block.map(Slot));
        self.tokens.clear();
        self.tokens.push(sequence.tokens()[anchor]);
        (self.number, self.draft_len) = (wanted.number, wanted.draft_len);
        (self.anchor, self.last) = (anchor, None);
    }

    /// How many tokens are guessed so far.
    pub fn drafted_len(&self) -> usize {
        self.tokens.len() - 1
    }

    /// Takes in a guess.
    pub fn push(&mut self, node: NodeId, token: Token) {
        self.last = Some(node);
        self.tokens.push(token);
    }

    /// Ends the draft as it is.
    pub fn stop(&mut self) {
        self.draft_len = self.drafted_len();
    }

    /// The next row to run, if another guess is wanted: that of the last guess.
    pub fn next_row(&self) -> Option<Range<usize>> {
        let row = self.anchor + self.drafted_len();
        (self.drafted_len() < self.draft_len).then_some(row..row + 1)
    }

    /// Whether guessing goes on after these rows have run.
    pub fn asks(&self, rows: &Range<usize>) -> bool {
        rows.end > self.anchor
    }

    /// These rows of `committed` (all committed tokens of the sequence) or of the draft, for a pass.
    pub fn rows<'a>(&'a self, rows: &Range<usize>, committed: &'a [Token]) -> ForwardSequence<'a> {
        let tokens = match rows.start.checked_sub(self.anchor) {
            Some(guess @ 1..) => &self.tokens[guess..guess + rows.len()],
            _ => &committed[rows.clone()],
        };
        let logits = if self.asks(rows) { LogitRows::Last } else { LogitRows::None };
        ForwardSequence::chain(tokens, &self.path[..rows.start], &self.path[rows.clone()], logits)
    }

    /// The slots among these rows, which the pass leaves valid.
    pub fn committed_slots(&self, rows: &Range<usize>) -> &[Slot] {
        &self.path[rows.start.min(self.anchor)..rows.end.min(self.anchor)]
    }

    /// The scratch rows whose KV is that of `tokens`, the committed tokens from the anchor's position on. Tokens are
    /// compared rather than node ids trusted: the step may have verified another proposer's draft.
    pub fn scratch_of(&self, tokens: &[Token]) -> &[Slot] {
        let has_run = &self.tokens[..self.drafted_len().max(1)];
        let agreeing = has_run.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        &self.path[self.anchor..self.anchor + agreeing]
    }
}
