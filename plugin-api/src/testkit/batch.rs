//! Builders of propose and verify batches: owned inputs, lent as the frozen views that cross the border.

use super::recorded::RecordedDraft;
use crate::types::batch::SequenceSlices;
use crate::types::verdict::DraftTree;
use crate::types::{
    ChildMode, NO_PARENT, NodeId, NoiseKey, ProposeBatch, ProposeSequence, SamplingParams, SeqId, Slot, TensorView,
    Token, Verdicts, VerifyBatch, VerifySequence,
};

/// One sequence of a propose batch.
#[derive(Debug, Clone)]
pub struct ProposeInput {
    /// Which sequence.
    pub id: SeqId,
    /// All committed tokens; the last is the anchor.
    pub tokens: Vec<Token>,
    /// The slots of all tokens but the anchor.
    pub slots: Vec<Slot>,
    /// Per lane: leading valid slots.
    pub valid_until: Vec<u32>,
    /// Tokens the completion has.
    pub output_index: u32,
    /// Nodes it may have.
    pub budget: u32,
    /// Sampling parameters.
    pub sampling: SamplingParams,
}

impl ProposeInput {
    /// A greedy sequence in slots 0, 1, .. whose first token was the prompt.
    pub fn new(id: u64, tokens: &[Token], budget: u32) -> Self {
        let slots = (0..tokens.len().saturating_sub(1) as u32).map(Slot).collect();
        Self {
            id: SeqId(id),
            tokens: tokens.to_vec(),
            slots,
            valid_until: Vec::new(),
            output_index: tokens.len().saturating_sub(1) as u32,
            budget,
            sampling: SamplingParams::GREEDY,
        }
    }

    /// The view that crosses.
    pub fn view(&self) -> ProposeSequence<'_> {
        let slices = SequenceSlices { tokens: &self.tokens, slots: &self.slots, valid_until: &self.valid_until };
        ProposeSequence::new(self.id, self.output_index, self.budget, self.sampling, slices)
    }
}

/// Calls `call` with the batch of these inputs.
pub fn with_propose_batch<T>(inputs: &[ProposeInput], call: impl FnOnce(ProposeBatch<'_>) -> T) -> T {
    let sequences: Vec<ProposeSequence<'_>> = inputs.iter().map(ProposeInput::view).collect();
    call(ProposeBatch::new(&sequences))
}

/// One sequence of a verify batch.
#[derive(Debug, Clone)]
pub struct VerifyInput {
    /// Which sequence.
    pub id: SeqId,
    /// Tokens the completion has.
    pub output_index: u32,
    /// Sampling parameters.
    pub sampling: SamplingParams,
    /// Seed and completion.
    pub noise: NoiseKey,
    /// The draft.
    pub draft: RecordedDraft,
    /// The target's rows `[1 + nodes, vocab]`: the anchor's, then one per node.
    pub logits: Vec<Vec<f32>>,
}

/// What a sampler decided for one sequence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Verdict {
    /// The kept path.
    pub keep: Vec<NodeId>,
    /// The token after it.
    pub next: Token,
}

impl Verdict {
    /// The tokens that the step commits.
    pub fn tokens(&self, draft: &RecordedDraft) -> Vec<Token> {
        self.keep.iter().map(|&node| draft.tokens()[node as usize]).chain([self.next]).collect()
    }
}

struct Parts {
    parents: Vec<NodeId>,
    modes: Vec<ChildMode>,
    prob_rows: Vec<u32>,
}

/// Calls `call` with the batch of these inputs and fresh verdicts, and returns what it wrote. draft_prob is left out
/// unless `with_draft_prob`, as the engine leaves it out for samplers that do not ask.
///
/// # Errors
/// What `call` returned.
pub fn with_verify_batch<E>(
    inputs: &[VerifyInput],
    with_draft_prob: bool,
    call: impl FnOnce(VerifyBatch<'_>, &mut Verdicts<'_>) -> Result<(), E>,
) -> Result<Vec<Verdict>, E> {
    let vocab = inputs.first().map_or(1, |input| input.logits[0].len());
    let logits: Vec<f32> = inputs.iter().flat_map(|input| input.logits.iter().flatten().copied()).collect();
    let mut probs: Vec<f32> = Vec::new();
    let parts: Vec<Parts> = inputs.iter().map(|input| lay_out(&input.draft, with_draft_prob, &mut probs)).collect();
    let mut row = 0;
    let mut sequences = Vec::with_capacity(inputs.len());
    for (input, parts) in inputs.iter().zip(&parts) {
        let tree = DraftTree::new(input.draft.tokens(), &parts.parents, &parts.modes, &parts.prob_rows);
        let sequence = VerifySequence::new(input.id, row, input.output_index, input.sampling, input.noise);
        sequences.push(sequence.with_tree(tree));
        row += input.logits.len() as u32;
    }
    let logits = TensorView::from_f32(&logits, row as usize, vocab);
    let draft_probs = TensorView::from_f32(&probs, probs.len() / vocab, vocab);
    let width = inputs.iter().map(|input| input.draft.len()).max().unwrap_or(0);
    let (mut next, mut lens) = (vec![0; inputs.len()], vec![0; inputs.len()]);
    let mut keep = vec![0; inputs.len() * width];
    let mut verdicts = Verdicts::new(&mut next, &mut lens, &mut keep, width);
    call(VerifyBatch::new(logits, draft_probs, &sequences), &mut verdicts)?;
    let read = |sequence| {
        let (keep, next) = verdicts.get(sequence);
        Verdict { keep: keep.to_vec(), next }
    };
    Ok((0..inputs.len()).map(read).collect())
}

fn lay_out(draft: &RecordedDraft, with_draft_prob: bool, probs: &mut Vec<f32>) -> Parts {
    let nodes = draft.len() as NodeId;
    let candidates = || std::iter::once(None).chain((0..nodes).map(Some));
    let mut prob_rows = Vec::with_capacity(draft.len() + 1);
    for parent in candidates() {
        match draft.draft_prob(parent).filter(|_| with_draft_prob) {
            Some(row) => {
                prob_rows.push((probs.len() / row.len()) as u32);
                probs.extend(row.iter().map(|&prob| prob as f32));
            }
            None => prob_rows.push(u32::MAX),
        }
    }
    let mode = |parent| draft.children_mode(parent).unwrap_or(ChildMode::Deterministic);
    Parts {
        parents: (0..nodes).map(|node| draft.parent(node).unwrap_or(NO_PARENT)).collect(),
        modes: candidates().map(mode).collect(),
        prob_rows,
    }
}
