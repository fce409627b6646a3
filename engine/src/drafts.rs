//! Where the engine keeps the drafts of one step: checks every guess, draws where the proposer asks it to, and records
//! the distribution it drew from.
//!
//! Trees and rows are reused from step to step. A node is accepted only if its parent is already there, so a cycle
//! cannot be said; a guess that lies is refused and remembered as a fault of its proposer.

use foretoken_kernels::NoiseKey as KernelKey;
use foretoken_kernels::noise;
use foretoken_kernels::ops::{WarpParams, WarpScratch, gumbel_argmax, sample, warp};
use foretoken_plugin_api::author::DraftSink;
use foretoken_plugin_api::types::sampling::Purpose;
use foretoken_plugin_api::{ChildMode, DraftError, NO_PARENT, NodeId, NoiseKey, SamplingParams, Token};

/// Marks a parent without recorded draft_prob.
pub const NO_ROW: u32 = u32::MAX;

/// One sequence's draft in this step.
#[derive(Debug, Default)]
pub struct Tree {
    /// Drafted tokens in topological order.
    pub tokens: Vec<Token>,
    /// Parents, [`NO_PARENT`] for first-level nodes.
    pub parents: Vec<NodeId>,
    /// How each possible parent's children were made: the anchor's first, then one per node.
    pub modes: Vec<ChildMode>,
    /// Rows of draft_prob per possible parent.
    pub prob_rows: Vec<u32>,
    /// Depth per node; first-level nodes have 0.
    pub depths: Vec<u32>,
    /// The first guess that was refused for another reason than the budget.
    pub fault: Option<DraftError>,
    setup: TreeSetup,
}

/// What a tree is checked against.
#[derive(Debug, Clone, Copy)]
pub struct TreeSetup {
    /// Most nodes.
    pub budget: u32,
    /// Whether a parent may have several children.
    pub branches: bool,
    /// The request's sampling parameters.
    pub params: SamplingParams,
    /// Seed and completion.
    pub noise: NoiseKey,
    /// How many tokens the completion already has.
    pub output_index: u32,
}

impl Default for TreeSetup {
    fn default() -> Self {
        Self { budget: 0, branches: false, params: SamplingParams::GREEDY, noise: NoiseKey::new(0, 0), output_index: 0 }
    }
}

impl Tree {
    /// Empties the tree.
    pub fn reset(&mut self, setup: TreeSetup) {
        self.tokens.clear();
        self.parents.clear();
        self.depths.clear();
        self.modes.clear();
        self.modes.push(ChildMode::Deterministic);
        self.prob_rows.clear();
        self.prob_rows.push(NO_ROW);
        self.fault = None;
        self.setup = setup;
    }

    /// Forgets guesses and fault: the next proposer of the list may try, or the sequence decodes plainly.
    pub fn drop_guesses(&mut self) {
        self.reset(self.setup);
    }

    /// Sets the most nodes it may have.
    pub fn set_budget(&mut self, budget: u32) {
        self.setup.budget = budget;
    }

    /// Number of nodes.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether nothing was guessed.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// Whether every node's parent is the one before it.
    pub fn is_chain(&self) -> bool {
        let chain = |(node, &parent): (u32, &NodeId)| parent == node.wrapping_sub(1);
        (0u32..).zip(&self.parents).all(chain)
    }

    fn add(&mut self, parent: Option<NodeId>, token: Token) -> NodeId {
        let node = self.tokens.len() as NodeId;
        self.tokens.push(token);
        self.parents.push(parent.unwrap_or(NO_PARENT));
        self.depths.push(parent.map_or(0, |parent| self.depths[parent as usize] + 1));
        self.modes.push(ChildMode::Deterministic);
        self.prob_rows.push(NO_ROW);
        node
    }

    fn has_children(&self, parent: Option<NodeId>) -> bool {
        self.parents.contains(&parent.unwrap_or(NO_PARENT))
    }

    /// Whether `parent` may have another child of this mode.
    fn check(&self, parent: Option<NodeId>, mode: ChildMode) -> Result<(), DraftError> {
        if parent.is_some_and(|parent| parent as usize >= self.tokens.len()) {
            return Err(DraftError::NoSuchParent);
        }
        if self.tokens.len() >= self.setup.budget as usize {
            return Err(DraftError::BudgetExhausted);
        }
        if self.has_children(parent) {
            if !self.setup.branches {
                return Err(DraftError::NotAChain);
            }
            if self.modes[slot_of(parent)] != mode {
                return Err(DraftError::MixedChildren);
            }
        }
        Ok(())
    }
}

/// The index of a parent in `modes` and `prob_rows`.
fn slot_of(parent: Option<NodeId>) -> usize {
    parent.map_or(0, |parent| parent as usize + 1)
}

/// The drafts of one step.
#[derive(Debug)]
pub struct DraftStore {
    trees: Vec<Tree>,
    used: usize,
    /// Which tree each sequence of the current propose call has.
    batch: Vec<usize>,
    probs: Vec<f32>,
    prob_rows: usize,
    vocab: usize,
    /// Whether the sampler reads draft_prob; then draws use the noise of nodes and are recorded.
    records: bool,
    scratch: WarpScratch,
    warped: Vec<f32>,
}

impl DraftStore {
    /// A store for a vocabulary; `records` is the sampler's `needs_draft_prob`.
    pub fn new(vocab: usize, records: bool) -> Self {
        Self {
            trees: Vec::new(),
            used: 0,
            batch: Vec::new(),
            probs: Vec::new(),
            prob_rows: 0,
            vocab,
            records,
            scratch: WarpScratch::new(),
            warped: vec![0.0; vocab],
        }
    }

    /// Forgets the last step.
    pub fn begin(&mut self) {
        self.used = 0;
        self.prob_rows = 0;
        self.batch.clear();
    }

    /// Adds an empty tree and returns its index.
    pub fn add_tree(&mut self, setup: TreeSetup) -> usize {
        if self.used == self.trees.len() {
            self.trees.push(Tree::default());
        }
        self.trees[self.used].reset(setup);
        self.used += 1;
        self.used - 1
    }

    /// Says which trees the sequences of the next propose call have, and whether its proposer branches.
    pub fn set_batch(&mut self, trees: impl Iterator<Item = usize>, branches: bool) {
        self.batch.clear();
        self.batch.extend(trees);
        for &tree in &self.batch {
            self.trees[tree].setup.branches = branches;
        }
    }

    /// One tree.
    pub fn tree(&self, index: usize) -> &Tree {
        &self.trees[index]
    }

    /// One tree, to change.
    pub fn tree_mut(&mut self, index: usize) -> &mut Tree {
        &mut self.trees[index]
    }

    /// All recorded draft_prob rows `[rows, vocab]`, and how many.
    pub fn probs(&self) -> (&[f32], usize) {
        (&self.probs[..self.prob_rows * self.vocab], self.prob_rows)
    }

    fn tree_of(&mut self, sequence: usize) -> Result<usize, DraftError> {
        self.batch.get(sequence).copied().ok_or(DraftError::NoSuchSequence)
    }

    /// Notes a refusal as a fault of the proposer, unless it only ran out of budget.
    fn noted<T>(&mut self, tree: usize, result: Result<T, DraftError>) -> Result<T, DraftError> {
        if let Err(error) = &result
            && *error != DraftError::BudgetExhausted
        {
            self.trees[tree].fault.get_or_insert(*error);
        }
        result
    }

    /// Warps a row with the request's parameters into `self.warped`.
    fn warp_row(&mut self, tree: usize, logits: &[f32]) -> Result<(), DraftError> {
        if logits.len() != self.vocab {
            return Err(DraftError::BadLogits);
        }
        let params = warp_params(self.trees[tree].setup.params);
        warp(logits, &params, &mut self.warped, &mut self.scratch).map_err(|_| DraftError::BadLogits)
    }

    /// Keeps `self.warped` as the draft_prob of a parent's children, once.
    fn record(&mut self, tree: usize, parent: Option<NodeId>, mode: ChildMode) {
        let tree = &mut self.trees[tree];
        tree.modes[slot_of(parent)] = mode;
        if tree.prob_rows[slot_of(parent)] != NO_ROW {
            return;
        }
        tree.prob_rows[slot_of(parent)] = self.prob_rows as u32;
        let start = self.prob_rows * self.vocab;
        if self.probs.len() < start + self.vocab {
            self.probs.resize(start + self.vocab, 0.0);
        }
        self.probs[start..start + self.vocab].copy_from_slice(&self.warped);
        self.prob_rows += 1;
    }

    /// Draws from `self.warped` for the node about to be added.
    fn pick(&self, tree: usize, parent: Option<NodeId>) -> Token {
        let Tree { setup, depths, tokens, .. } = &self.trees[tree];
        if self.records {
            let key = setup.noise.for_node(setup.output_index, tokens.len() as u32 + 1, Purpose::Draft);
            return sample(&self.warped, noise::uniform(kernel_key(key), 0));
        }
        // The noise the target itself will use for this token: the draws coincide as often as the distributions allow.
        let depth = parent.map_or(0, |parent| depths[parent as usize] + 1);
        gumbel_argmax(&self.warped, kernel_key(setup.noise.for_output(setup.output_index + depth)))
    }

    fn try_push(&mut self, tree: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        if token as usize >= self.vocab {
            return Err(DraftError::TokenOutOfVocabulary);
        }
        self.trees[tree].check(parent, ChildMode::Deterministic)?;
        Ok(self.trees[tree].add(parent, token))
    }

    fn try_draw(&mut self, tree: usize, parent: Option<NodeId>, logits: &[f32]) -> Result<(NodeId, Token), DraftError> {
        let mode = self.draw_mode(tree, ChildMode::WithReplacement);
        self.trees[tree].check(parent, mode)?;
        match self.trees[tree].prob_rows[slot_of(parent)] {
            NO_ROW => self.warp_row(tree, logits)?,
            // One draft_prob per parent: a second draw is from the first one's row, whatever logits come with it.
            row => self.warped.copy_from_slice(&self.probs[row as usize * self.vocab..][..self.vocab]),
        }
        let token = self.pick(tree, parent);
        if mode != ChildMode::Deterministic {
            self.record(tree, parent, mode);
        }
        Ok((self.trees[tree].add(parent, token), token))
    }

    /// A draw is verified as one only if the sampler reads draft_prob and the request samples at all.
    fn draw_mode(&self, tree: usize, mode: ChildMode) -> ChildMode {
        let drawn = self.records && !self.trees[tree].setup.params.is_greedy();
        if drawn { mode } else { ChildMode::Deterministic }
    }

    fn try_draw_n(
        &mut self,
        tree: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        let mode = self.draw_mode(tree, ChildMode::WithoutReplacement);
        self.trees[tree].check(parent, mode)?;
        if self.trees[tree].has_children(parent) {
            // A second round would draw again what the first one took.
            return Err(DraftError::MixedChildren);
        }
        self.warp_row(tree, logits)?;
        if mode != ChildMode::Deterministic {
            self.record(tree, parent, mode);
        }
        let room = self.remaining_of(tree).min(out.len());
        let mut count = 0;
        for out in &mut out[..room] {
            if !self.warped.iter().any(|&prob| prob > 0.0) {
                break;
            }
            let token = self.pick(tree, parent);
            // Without replacement: the next draw is from what is left, which `sample` renormalises.
            self.warped[token as usize] = 0.0;
            *out = (self.trees[tree].add(parent, token), token);
            count += 1;
        }
        Ok(count)
    }

    fn remaining_of(&self, tree: usize) -> usize {
        let tree = &self.trees[tree];
        (tree.setup.budget as usize).saturating_sub(tree.tokens.len())
    }
}

impl DraftSink for DraftStore {
    fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        let tree = self.tree_of(sequence)?;
        let result = self.try_push(tree, parent, token);
        self.noted(tree, result)
    }

    fn draw(&mut self, sequence: usize, parent: Option<NodeId>, logits: &[f32]) -> Result<(NodeId, Token), DraftError> {
        let tree = self.tree_of(sequence)?;
        let result = self.try_draw(tree, parent, logits);
        self.noted(tree, result)
    }

    fn draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        let tree = self.tree_of(sequence)?;
        let result = self.try_draw_n(tree, parent, logits, out);
        self.noted(tree, result)
    }

    fn remaining(&self, sequence: usize) -> usize {
        self.batch.get(sequence).map_or(0, |&tree| self.remaining_of(tree))
    }
}

/// The kernels' form of a request's parameters.
pub fn warp_params(params: SamplingParams) -> WarpParams {
    WarpParams { temperature: params.temperature, top_k: params.top_k, top_p: params.top_p, min_p: params.min_p }
}

/// The kernels' form of a noise key.
pub fn kernel_key(key: NoiseKey) -> KernelKey {
    KernelKey { seed: key.seed, completion: key.completion, stream: key.stream }
}
