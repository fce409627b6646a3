//! The proposer of trees: the draft model's most probable continuations, or a tree of fixed shape.
//!
//! Deterministic trees are lossless whatever their shape; a drawn one has its shape fixed before its tokens are drawn.

use std::sync::Arc;

use foretoken_plugin_api::drafting::{DraftLane, DraftNetwork, DraftPass, Drafting, Growth};
use foretoken_plugin_api::tree::{StaticTree, TreeGrower, TreeShape};
use foretoken_plugin_api::{
    DraftSampling, Drafts, Error, ForwardBatch, ForwardSequence, Host, LaneId, LaneNeed, LaneSource, LogitRows, Model,
    ModelFacts, Needs, ProposeBatch, Proposer, Result,
};

use crate::draft_model::{MAX_GROUP, check_vocabulary};
use crate::passes::{LANE, MAX_ROWS};
use crate::{Candidates, TreeOptions};

/// What a tree is where the options name no shape.
const DEFAULT_SHAPE: TreeShape = TreeShape { nodes: 32, depth: 8, branch: 8 };

/// Drafts trees with a smaller model.
pub struct Tree {
    host: Host,
    facts: ModelFacts,
    form: Form,
    candidates: Candidates,
    lane: DraftLane,
    network: Service,
    drafting: Drafting,
}

/// The shape of drafts.
enum Form {
    Grown(TreeShape),
    Static(Arc<StaticTree>),
}

/// The draft model as a drafting network.
struct Service {
    host: Host,
    model: Model,
    lane: LaneId,
    vocab_size: usize,
}

impl Proposer for Tree {
    type Options = TreeOptions;

    fn new(options: TreeOptions, host: Host) -> Result<Self> {
        let bad = |what: String| Err(Error::options(format!("tree: {what}")));
        let drawn = options.candidates == Candidates::WithoutReplacement;
        let form = match (options.tree, &options.choices) {
            (Some(_), Some(_)) => return bad("tree and choices are both given, expected one of them".to_owned()),
            (_, None) if drawn => {
                let why = "a shape that depends on the tokens drawn would not be lossless";
                return bad(format!("candidates = \"without_replacement\" needs choices: {why}"));
            }
            (shape, None) => {
                let shape = shape.unwrap_or(DEFAULT_SHAPE);
                if shape.nodes == 0 || shape.depth == 0 || shape.branch == 0 {
                    return bad(format!("tree is {shape:?}, expected nodes, depth and branch above 0"));
                }
                Form::Grown(shape)
            }
            (None, Some(paths)) => match StaticTree::new(paths) {
                Err(error) => return bad(error.message),
                Ok(tree) if drawn && !tree.is_contiguous() => {
                    let message =
                        "choices leave ranks out, but tokens drawn without replacement have no ranks to leave out";
                    return bad(message.to_owned());
                }
                Ok(tree) => Form::Static(Arc::new(tree)),
            },
        };
        let facts = host.model_facts(&options.model)?;
        check_vocabulary("tree", &options.model, &facts, &host)?;
        let model = host.load_model(&options.model, options.dtype.as_deref())?;
        let lane = DraftLane {
            lane: LANE,
            skipped: 0,
            scratch_rows: match &form {
                Form::Grown(shape) => 1 + shape.branch * (shape.depth - 1),
                Form::Static(tree) => 1 + tree.inner_nodes(),
            },
            group_len: match host.target().max_sequences {
                0 => MAX_GROUP,
                most => most.min(MAX_GROUP),
            },
            max_rows: MAX_ROWS,
            vocab_size: facts.vocab_size,
        };
        let network = Service { host: host.clone(), model, lane: LANE, vocab_size: facts.vocab_size };
        let (candidates, drafting) = (options.candidates, Drafting::default());
        Ok(Self { host, facts, form, candidates, lane, network, drafting })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let depth = match &self.form {
            Form::Grown(shape) => shape.depth,
            Form::Static(tree) => tree.depth(),
        };
        // The last level is never run; all above it need a position.
        let can_draft = |&number: &usize| {
            let len = batch.sequences()[number].tokens().len();
            drafts.remaining(number) > 0 && len > 0 && len + depth - 1 <= self.facts.max_positions
        };
        let wanted: Vec<usize> = (0..batch.sequences().len()).filter(can_draft).collect();
        let (form, candidates) = (&self.form, self.candidates);
        let growth = |number: usize, _: usize| match form {
            Form::Grown(shape) => Growth::grown(TreeGrower::new(*shape)),
            Form::Static(tree) => {
                // At temperature 0 only one token can be drawn.
                let draws =
                    candidates == Candidates::WithoutReplacement && !batch.sequences()[number].sampling.is_greedy();
                let sampling = if draws { DraftSampling::Drawn } else { DraftSampling::Deterministic };
                Growth::fixed(Arc::clone(tree), sampling)
            }
        };
        self.drafting.run((&self.host, self.lane), &mut self.network, (batch, &wanted), drafts, &growth)
    }

    fn needs(&self) -> Needs {
        let lane = LaneNeed {
            name: "draft-kv".to_owned(),
            bytes_per_slot: self.facts.kv_bytes_per_slot,
            scratch_rows: self.lane.total_scratch(),
            source: LaneSource::Plugin,
        };
        let (max_draft, tree) = match &self.form {
            Form::Grown(shape) => (shape.nodes, true),
            Form::Static(tree) => (tree.len(), tree.branches()),
        };
        let draws = self.candidates == Candidates::WithoutReplacement;
        Needs { max_draft, tree, draws, lanes: vec![lane], ..Needs::default() }
    }
}

impl DraftNetwork for Service {
    fn run(&mut self, pass: &DraftPass, _: &ProposeBatch<'_>, logits: &mut Vec<f32>) -> Result<()> {
        let mut asked = pass.asked_rows().peekable();
        let mut sequences = Vec::with_capacity(pass.stretches.len());
        for stretch in &pass.stretches {
            let rows = stretch.rows.clone();
            let wants = asked.next_if(|row| rows.contains(row)).is_some();
            let wanted = if wants { LogitRows::Last } else { LogitRows::None };
            let (tokens, slots) = (&pass.tokens[rows.clone()], &pass.slots[rows]);
            sequences.push(ForwardSequence::chain(tokens, pass.context(stretch), slots, wanted));
        }
        logits.resize(pass.asked_rows().count() * self.vocab_size, 0.0);
        self.model.forward(&ForwardBatch::new(self.lane, &sequences), logits)?;
        self.host.metric("draft_passes", 1.0);
        self.host.metric("draft_rows", pass.tokens.len() as f64);
        Ok(())
    }

    fn vocab_size(&self) -> usize {
        self.vocab_size
    }
}
