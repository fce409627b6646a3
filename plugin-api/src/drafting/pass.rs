//! The rows of one pass of a drafting network.

use std::ops::Range;

use super::DraftLane;
use super::draft::Draft;
use crate::types::{ProposeBatch, Slot, Token};

/// Rows of one sequence that follow each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stretch {
    /// Index of the sequence in the batch.
    pub number: usize,
    /// Where in [`DraftPass::contexts`] the lane rows of everything before lie.
    pub context: Range<usize>,
    /// The rows in the pass.
    pub rows: Range<usize>,
    /// The token's place in the sequence, for a stretch of committed rows and the anchor's; `None` for a drafted token.
    pub first_token: Option<usize>,
}

/// The rows of one pass, flattened.
#[derive(Debug, Default)]
pub struct DraftPass {
    /// Token of each row.
    pub tokens: Vec<Token>,
    /// Position of each row, as the network counts: its place in the context.
    pub positions: Vec<u32>,
    /// Lane row that takes each row's keys and values.
    pub slots: Vec<Slot>,
    /// For rows of drafted tokens: the row of the pass before whose logits guessed it, one for each row. Empty while
    /// bringing up.
    pub parents: Vec<usize>,
    /// The sequences' rows.
    pub stretches: Vec<Stretch>,
    /// Lane rows attended to.
    pub contexts: Vec<Slot>,
    /// Rows whose logits are asked for: the draft, and the row.
    pub(super) asked: Vec<(usize, usize)>,
    /// Which draft each stretch belongs to.
    drafts: Vec<usize>,
}

impl DraftPass {
    /// Rows whose logits are asked for, ascending.
    pub fn asked_rows(&self) -> impl Iterator<Item = usize> + '_ {
        self.asked.iter().map(|(_, row)| *row)
    }

    /// What a stretch attends to besides itself.
    pub fn context(&self, stretch: &Stretch) -> &[Slot] {
        &self.contexts[stretch.context.clone()]
    }

    fn clear(&mut self) {
        let Self { tokens, positions, slots, parents, stretches, contexts, asked, drafts } = self;
        [slots, contexts].into_iter().for_each(Vec::clear);
        [parents, drafts].into_iter().for_each(Vec::clear);
        tokens.clear();
        positions.clear();
        stretches.clear();
        asked.clear();
    }

    fn add(&mut self, draft: usize, number: usize, (tokens, slots): (&[Token], &[Slot]), context: [&[Slot]; 2]) {
        let (row, start) = (self.tokens.len(), self.contexts.len());
        self.tokens.extend_from_slice(tokens);
        self.slots.extend_from_slice(slots);
        context.into_iter().for_each(|slots| self.contexts.extend_from_slice(slots));
        let context = start..self.contexts.len();
        self.positions.extend((context.len() as u32..).take(tokens.len()));
        self.stretches.push(Stretch { number, context, rows: row..self.tokens.len(), first_token: None });
        self.drafts.push(draft);
    }

    /// The next rows that are missing: those of draft i from `starts[i]` on, which moves. All anchors run in the last pass,
    /// since what a row gave is kept for the next pass only; whether this is the last.
    pub(super) fn fill_missing(
        &mut self,
        batch: &ProposeBatch<'_>,
        growing: &[Draft],
        lane: DraftLane,
        starts: &mut [usize],
    ) -> bool {
        self.clear();
        let anchor = |draft: &Draft| batch.sequences()[draft.number()].tokens().len() - 1;
        let left: usize = growing.iter().zip(&*starts).map(|(draft, start)| anchor(draft) + 1 - start).sum();
        let is_last = left <= lane.max_rows.max(growing.len());
        for (index, (draft, start)) in growing.iter().zip(starts).enumerate() {
            let anchor = anchor(draft);
            let room = lane.max_rows.saturating_sub(self.tokens.len());
            let end = if is_last { anchor + 1 } else { anchor.min(*start + room) };
            if *start >= end {
                continue;
            }
            let own = *start - lane.skipped..end - lane.skipped;
            let tokens = &batch.sequences()[draft.number()].tokens()[*start..end];
            let rows = (tokens, &draft.context()[own.clone()]);
            self.add(index, draft.number(), rows, [&draft.context()[..own.start], &[]]);
            if let Some(stretch) = self.stretches.last_mut() {
                stretch.first_token = Some(*start);
            }
            if is_last {
                self.asked.push((index, self.tokens.len() - 1));
            }
            *start = end;
        }
        is_last
    }

    /// The frontiers of all drafts.
    pub(super) fn fill_frontiers(&mut self, growing: &[Draft]) {
        self.clear();
        for (index, draft) in growing.iter().enumerate() {
            for front in draft.frontier() {
                let [above @ .., own] = &front.path[..] else { continue };
                self.asked.push((index, self.tokens.len()));
                self.parents.push(front.parent_row);
                self.add(index, draft.number(), (&[front.token], &[*own]), [draft.context(), above]);
            }
        }
    }

    /// The committed slots whose rows the pass computed, with those of the tokens that have none.
    pub(super) fn committed(&self, batch: &ProposeBatch<'_>, growing: &[Draft], skipped: usize) -> Vec<Slot> {
        let mut marks = Vec::new();
        for (stretch, draft) in self.stretches.iter().zip(&self.drafts) {
            let slots = batch.sequences()[growing[*draft].number()].slots();
            let Some(first) = stretch.first_token else { continue };
            let from = if first == skipped { 0 } else { first };
            // The anchor has no slot yet; its row is a scratch row.
            marks.extend_from_slice(&slots[from..(first + stretch.rows.len()).min(slots.len())]);
        }
        marks
    }
}
