//! What a sampler sees and what it decides.

use abi_stable::StableAbi;
use abi_stable::std_types::{RSlice, RSliceMut};

use super::{ChildMode, NO_PARENT, NodeId, NoiseKey, SamplingParams, SeqId, TensorView, Token};

/// One decoding sequence to verify: its draft tree and where its rows are. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct VerifySequence<'a> {
    /// Which sequence.
    pub id: SeqId,
    /// The row of logits that judges the first-level nodes (the anchor's); node `i` has row `first_row + 1 + i`.
    pub first_row: u32,
    /// How many tokens the completion already has.
    pub output_index: u32,
    /// The request's sampling parameters.
    pub sampling: SamplingParams,
    /// Seed and completion of the request.
    pub noise: NoiseKey,
    tree: DraftTree<'a>,
}

/// A draft tree as verification reads it. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct DraftTree<'a> {
    tokens: RSlice<'a, Token>,
    parents: RSlice<'a, NodeId>,
    modes: RSlice<'a, ChildMode>,
    prob_rows: RSlice<'a, u32>,
}

impl<'a> DraftTree<'a> {
    /// A tree of `tokens.len()` nodes. `parents` holds [`NO_PARENT`] for first-level nodes. `modes` and `prob_rows` have one
    /// entry per possible parent: the anchor's first, then one per node; `prob_rows` indexes the batch's draft_prob
    /// rows and is `u32::MAX` where there is none.
    ///
    /// # Panics
    /// If the lengths do not fit.
    pub fn new(tokens: &'a [Token], parents: &'a [NodeId], modes: &'a [ChildMode], prob_rows: &'a [u32]) -> Self {
        let nodes = tokens.len();
        assert!(parents.len() == nodes && modes.len() == nodes + 1 && prob_rows.len() == nodes + 1, "DraftTree");
        Self {
            tokens: RSlice::from_slice(tokens),
            parents: RSlice::from_slice(parents),
            modes: RSlice::from_slice(modes),
            prob_rows: RSlice::from_slice(prob_rows),
        }
    }
}

impl<'a> VerifySequence<'a> {
    /// A sequence to verify.
    pub fn new(id: SeqId, first_row: u32, output_index: u32, sampling: SamplingParams, noise: NoiseKey) -> Self {
        let tree =
            DraftTree { tokens: RSlice::EMPTY, parents: RSlice::EMPTY, modes: RSlice::EMPTY, prob_rows: RSlice::EMPTY };
        Self { id, first_row, output_index, sampling, noise, tree }
    }

    /// The same with a draft.
    pub fn with_tree(self, tree: DraftTree<'a>) -> Self {
        Self { tree, ..self }
    }

    /// The drafted tokens, in topological order.
    pub fn tokens(&self) -> &'a [Token] {
        self.tree.tokens.as_slice()
    }

    /// The parent of node `node`; `None` is the anchor.
    pub fn parent(&self, node: NodeId) -> Option<NodeId> {
        let parent = self.tree.parents.as_slice()[node as usize];
        (parent != NO_PARENT).then_some(parent)
    }

    /// The children of `parent` (`None` is the anchor), in the order they were pushed or drawn.
    pub fn children(&self, parent: Option<NodeId>) -> impl Iterator<Item = NodeId> + 'a {
        let wanted = parent.unwrap_or(NO_PARENT);
        let first = parent.map_or(0, |parent| parent as usize + 1);
        let parents = self.tree.parents.as_slice().get(first..).unwrap_or(&[]);
        (first as u32..).zip(parents).filter(move |(_, found)| **found == wanted).map(|(node, _)| node)
    }

    /// How the children of `parent` were made.
    pub fn mode(&self, parent: Option<NodeId>) -> ChildMode {
        let index = parent.map_or(0, |parent| parent as usize + 1);
        self.tree.modes.get(index).copied().unwrap_or(ChildMode::Deterministic)
    }

    fn prob_row(&self, parent: Option<NodeId>) -> Option<usize> {
        let index = parent.map_or(0, |parent| parent as usize + 1);
        self.tree.prob_rows.get(index).copied().filter(|&row| row != u32::MAX).map(|row| row as usize)
    }
}

/// The rows and trees of one verify call. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct VerifyBatch<'a> {
    logits: TensorView<'a>,
    draft_probs: TensorView<'a>,
    sequences: RSlice<'a, VerifySequence<'a>>,
}

impl<'a> VerifyBatch<'a> {
    /// `logits` is `[rows, vocab]` f32, guided and penalised; `draft_probs` is `[drawn parents, vocab]` f32.
    pub fn new(logits: TensorView<'a>, draft_probs: TensorView<'a>, sequences: &'a [VerifySequence<'a>]) -> Self {
        Self { logits, draft_probs, sequences: RSlice::from_slice(sequences) }
    }

    /// The sequences, in the order that `Verdicts` counts them.
    pub fn sequences(&self) -> &'a [VerifySequence<'a>] {
        self.sequences.as_slice()
    }

    /// The target's vocabulary size.
    pub fn vocab_size(&self) -> usize {
        self.logits.columns()
    }

    /// The target's logits `[vocab]` after `node` (`None` is the anchor): they judge its children or give the bonus token.
    pub fn logits(&self, sequence: &VerifySequence<'_>, node: Option<NodeId>) -> &'a [f32] {
        let row = sequence.first_row as usize + node.map_or(0, |node| node as usize + 1);
        self.logits.row_f32(row).expect("the engine gives f32 logits")
    }

    /// The recorded draft_prob `[vocab]` that the children of `parent` were drawn from; `None` for pushed children.
    pub fn draft_prob(&self, sequence: &VerifySequence<'_>, parent: Option<NodeId>) -> Option<&'a [f32]> {
        self.draft_probs.row_f32(sequence.prob_row(parent)?)
    }
}

/// Where a sampler writes its verdicts: caller-owned, one per sequence. Frozen.
#[repr(C)]
#[derive(StableAbi)]
pub struct Verdicts<'a> {
    next_tokens: RSliceMut<'a, Token>,
    keep_lens: RSliceMut<'a, u32>,
    keep: RSliceMut<'a, NodeId>,
    width: usize,
}

impl<'a> Verdicts<'a> {
    /// Buffers for `next_tokens.len()` verdicts of at most `width` kept nodes each.
    ///
    /// # Panics
    /// If the buffers' lengths do not fit.
    pub fn new(next_tokens: &'a mut [Token], keep_lens: &'a mut [u32], keep: &'a mut [NodeId], width: usize) -> Self {
        assert!(keep_lens.len() == next_tokens.len() && keep.len() == width * next_tokens.len(), "Verdicts");
        let (next_tokens, keep_lens) = (RSliceMut::from_mut_slice(next_tokens), RSliceMut::from_mut_slice(keep_lens));
        Self { next_tokens, keep_lens, keep: RSliceMut::from_mut_slice(keep), width }
    }

    /// Keeps one more node for `sequence`: the next of its path, root to leaf.
    ///
    /// # Panics
    /// If the sequence or its room does not exist.
    pub fn keep(&mut self, sequence: usize, node: NodeId) {
        let len = self.keep_lens[sequence] as usize;
        assert!(len < self.width, "Verdicts: more than {} nodes kept for sequence {sequence}", self.width);
        self.keep[sequence * self.width + len] = node;
        self.keep_lens[sequence] += 1;
    }

    /// Sets the token that follows the kept path of `sequence`.
    ///
    /// # Panics
    /// If the sequence does not exist.
    pub fn next(&mut self, sequence: usize, token: Token) {
        self.next_tokens[sequence] = token;
    }

    /// The verdict so far: kept path and next token.
    pub fn get(&self, sequence: usize) -> (&[NodeId], Token) {
        let start = sequence * self.width;
        (&self.keep[start..start + self.keep_lens[sequence] as usize], self.next_tokens[sequence])
    }
}
