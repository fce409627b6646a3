//! One pass of a model the host loaded for a plugin (a draft model), its KV in one of the plugin's lanes.

use abi_stable::StableAbi;
use abi_stable::std_types::RSlice;

use super::{LaneId, NO_PARENT, NodeId, Slot, Token};

/// Which rows of a [`ForwardSequence`] want logits. Frozen.
#[repr(u8)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogitRows {
    /// None: state is only brought up.
    None = 0,
    /// The last row.
    Last = 1,
    /// Every row.
    All = 2,
}

/// The rows of one sequence: each attends to `context`, to its own ancestors among the rows, and to itself. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ForwardSequence<'a> {
    /// Which rows want logits.
    pub logits: LogitRows,
    tokens: RSlice<'a, Token>,
    context: RSlice<'a, Slot>,
    slots: RSlice<'a, Slot>,
    parents: RSlice<'a, NodeId>,
}

impl<'a> ForwardSequence<'a> {
    /// A chain of `tokens` after `context` (in position order); the KV of row `i` goes to lane row `slots[i]`, which may
    /// be one of the lane's scratch rows.
    ///
    /// # Panics
    /// If `slots` and `tokens` differ in length.
    pub fn chain(tokens: &'a [Token], context: &'a [Slot], slots: &'a [Slot], logits: LogitRows) -> Self {
        assert_eq!(tokens.len(), slots.len(), "ForwardSequence: one slot per token");
        let (tokens, context) = (RSlice::from_slice(tokens), RSlice::from_slice(context));
        Self { logits, tokens, context, slots: RSlice::from_slice(slots), parents: RSlice::EMPTY }
    }

    /// The same rows as a tree in topological order: `parents[i]` is a row index or `None`'s stand-in
    /// [`NO_PARENT`] for rows that follow the context directly.
    ///
    /// # Panics
    /// If `parents` has another length or is not topological.
    pub fn with_parents(self, parents: &'a [NodeId]) -> Self {
        let topological = (0u32..).zip(parents).all(|(row, &parent)| parent == NO_PARENT || parent < row);
        assert!(parents.len() == self.tokens.len() && topological, "ForwardSequence: parents");
        Self { parents: RSlice::from_slice(parents), ..self }
    }

    /// The tokens, a row each.
    pub fn tokens(&self) -> &'a [Token] {
        self.tokens.as_slice()
    }

    /// The lane rows of everything before, in position order.
    pub fn context(&self) -> &'a [Slot] {
        self.context.as_slice()
    }

    /// The lane row that takes each row's KV.
    pub fn slots(&self) -> &'a [Slot] {
        self.slots.as_slice()
    }

    /// The parents, or `None` for a chain.
    pub fn parents(&self) -> Option<&'a [NodeId]> {
        (!self.parents.is_empty()).then(|| self.parents.as_slice())
    }

    /// How many rows of logits this sequence asks for.
    pub fn logit_rows(&self) -> usize {
        match self.logits {
            LogitRows::None => 0,
            LogitRows::Last => 1,
            LogitRows::All => self.tokens.len(),
        }
    }
}

/// One pass over several sequences. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct ForwardBatch<'a> {
    /// The lane that holds the model's KV; its bytes per slot are `ModelFacts::kv_bytes_per_slot`.
    pub lane: LaneId,
    sequences: RSlice<'a, ForwardSequence<'a>>,
}

impl<'a> ForwardBatch<'a> {
    /// A pass over these sequences.
    pub fn new(lane: LaneId, sequences: &'a [ForwardSequence<'a>]) -> Self {
        Self { lane, sequences: RSlice::from_slice(sequences) }
    }

    /// The sequences, in row order.
    pub fn sequences(&self) -> &'a [ForwardSequence<'a>] {
        self.sequences.as_slice()
    }
}
