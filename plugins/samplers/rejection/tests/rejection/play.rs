//! The engine's part of a step, in small: draft a tree, lay out the rows, verify, append. Repeated up to a horizon.

use foretoken_plugin_api::types::sampling::Purpose;
use foretoken_plugin_api::types::verdict::DraftTree;
use foretoken_plugin_api::{
    ChildMode, NO_PARENT, NodeId, NoiseKey, Sampler, SeqId, TensorView, Token, Verdicts, VerifyBatch, VerifySequence,
};
use foretoken_rejection::chance::Chance;

use crate::world::World;

/// What is drafted in every step: a parent per node, and how children are made.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    pub parents: &'static [NodeId],
    pub mode: ChildMode,
    /// Draws stop where the greatest draft_prob is below this: early stopping by the distribution.
    pub stop_below: f32,
}

pub const CHAINS: [&[NodeId]; 4] = [&[], &[NO_PARENT], &[NO_PARENT, 0], &[NO_PARENT, 0, 1]];
pub const TREES: [&[NodeId]; 4] = [
    &[NO_PARENT, NO_PARENT],
    &[NO_PARENT, NO_PARENT, NO_PARENT],
    &[NO_PARENT, NO_PARENT, 0, 0],
    &[NO_PARENT, NO_PARENT, 0, 0, 1, 2],
];
pub const MODES: [ChildMode; 3] = [ChildMode::Deterministic, ChildMode::WithReplacement, ChildMode::WithoutReplacement];

impl Shape {
    pub fn new(parents: &'static [NodeId], mode: ChildMode) -> Self {
        Self { parents, mode, stop_below: 0.0 }
    }
}

/// A rule: what it keeps of a batch's only sequence, and the next token.
pub type Rule<'a> = dyn FnMut(&VerifyBatch<'_>, &mut dyn Chance) -> (Vec<NodeId>, Token) + 'a;

/// `Chance` behind a pointer.
pub struct Through<'a>(pub &'a mut dyn Chance);

impl Chance for Through<'_> {
    fn coin(&mut self, key: NoiseKey, probability: f64) -> bool {
        self.0.coin(key, probability)
    }

    fn draw(&mut self, key: NoiseKey, weights: &[f32]) -> Token {
        self.0.draw(key, weights)
    }
}

/// A draft and the batch's rows.
#[derive(Default)]
struct Step {
    tokens: Vec<Token>,
    parents: Vec<NodeId>,
    modes: Vec<ChildMode>,
    prob_rows: Vec<u32>,
    draft_probs: Vec<f32>,
    logits: Vec<f32>,
}

/// The first `horizon` tokens of a completion with the noise of `seed`.
pub fn play(
    world: &World,
    shape: &Shape,
    horizon: usize,
    seed: u64,
    chance: &mut dyn Chance,
    rule: &mut Rule<'_>,
) -> Vec<Token> {
    let mut output = Vec::new();
    while output.len() < horizon {
        let noise = NoiseKey::new(seed, 0);
        let step = draft(world, shape, &output, noise, chance);
        let sequence = VerifySequence::new(SeqId(1), 0, output.len() as u32, world.sampling, noise);
        let tree = DraftTree::new(&step.tokens, &step.parents, &step.modes, &step.prob_rows);
        let sequences = [sequence.with_tree(tree)];
        let logits = TensorView::from_f32(&step.logits, step.tokens.len() + 1, world.vocab);
        let draft_probs = TensorView::from_f32(&step.draft_probs, step.draft_probs.len() / world.vocab, world.vocab);
        let (keep, next_token) = rule(&VerifyBatch::new(logits, draft_probs, &sequences), chance);
        output.extend(keep.iter().map(|node| step.tokens[*node as usize]));
        output.push(next_token);
    }
    output.truncate(horizon);
    output
}

fn draft(world: &World, shape: &Shape, prefix: &[Token], noise: NoiseKey, chance: &mut dyn Chance) -> Step {
    let mut step = Step { modes: vec![shape.mode], prob_rows: vec![u32::MAX], ..Step::default() };
    let mut paths = vec![prefix.to_vec()];
    // A node that could not be drafted takes its descendants with it.
    let mut nodes: Vec<Option<NodeId>> = Vec::new();
    for parent in shape.parents {
        let parent = if *parent == NO_PARENT { Some(NO_PARENT) } else { nodes[*parent as usize] };
        let node = parent.and_then(|parent| {
            let path = &paths[parent.wrapping_add(1) as usize];
            let key = noise.for_node(prefix.len() as u32, step.tokens.len() as u32 + 1, Purpose::Draft);
            let token = step.guess(world, shape, parent, path, |weights| chance.draw(key, weights))?;
            paths.push([path, &[token][..]].concat());
            step.tokens.push(token);
            step.parents.push(parent);
            step.modes.push(shape.mode);
            step.prob_rows.push(u32::MAX);
            Some(step.tokens.len() as NodeId - 1)
        });
        nodes.push(node);
    }
    step.logits = paths.iter().flat_map(|path| world.target_logits(path)).collect();
    step
}

impl Step {
    fn guess(
        &mut self,
        world: &World,
        shape: &Shape,
        parent: NodeId,
        path: &[Token],
        draw: impl FnOnce(&[f32]) -> Token,
    ) -> Option<Token> {
        let mut row = world.draft_prob(path);
        let siblings = self.tokens.iter().zip(&self.parents).filter(|(_, found)| **found == parent).map(|(t, _)| *t);
        if shape.mode == ChildMode::Deterministic {
            let logits = world.draft_logits(path);
            let taken: Vec<Token> = siblings.collect();
            let free = (0..world.vocab as Token).filter(|token| !taken.contains(token));
            return free.max_by(|a, b| logits[*a as usize].total_cmp(&logits[*b as usize]));
        }
        if row.iter().all(|prob| *prob < shape.stop_below) {
            return None;
        }
        let recorded = row.clone();
        if shape.mode == ChildMode::WithoutReplacement {
            siblings.for_each(|token| row[token as usize] = 0.0);
        }
        if row.iter().all(|prob| *prob == 0.0) {
            return None;
        }
        let prob_row = &mut self.prob_rows[parent.wrapping_add(1) as usize];
        if *prob_row == u32::MAX {
            *prob_row = (self.draft_probs.len() / world.vocab) as u32;
            self.draft_probs.extend(recorded);
        }
        Some(draw(&row))
    }
}

/// The verdict of a sampler part on a batch of one sequence.
pub fn verdict(sampler: &mut impl Sampler, batch: &VerifyBatch<'_>) -> (Vec<NodeId>, Token) {
    let (mut next_tokens, mut keep_lens, mut keep) = ([Token::MAX], [0], [0; 8]);
    let mut verdicts = Verdicts::new(&mut next_tokens, &mut keep_lens, &mut keep, 8);
    sampler.verify(batch, &mut verdicts).expect("rows are distributions");
    let (keep, next_token) = verdicts.get(0);
    (keep.to_vec(), next_token)
}
