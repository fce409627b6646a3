//! The proposer of trees: the draft model's most probable continuations, or a tree of fixed shape.
//!
//! Deterministic trees are lossless whatever their shape; a drawn one has its shape fixed before its tokens are drawn.

use std::sync::Arc;

use foretoken_plugin_api::drafting::{DraftLane, DraftNetwork, DraftPass, DraftShape, Drafting, Growth, group_len};
use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{
    DraftSampling, Drafts, Error, ForwardBatch, ForwardSequence, Host, LaneId, LaneNeed, LaneSource, LogitRows, Model,
    ModelFacts, Needs, ProposeBatch, Proposer, Result,
};

use crate::passes::{LANE, MAX_ROWS};
use crate::{Candidates, TreeOptions, drafter};

/// What a tree is where the options name no shape.
const DEFAULT_SHAPE: TreeShape = TreeShape { nodes: 32, depth: 8, branch: 8 };

/// Drafts trees with a smaller model.
pub struct Tree {
    host: Host,
    facts: ModelFacts,
    shape: DraftShape,
    lane: DraftLane,
    network: Service,
    drafting: Drafting,
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
        let bad = |what: &str| Err(Error::options(format!("tree: {what}")));
        let drawn = options.candidates == Candidates::WithoutReplacement;
        let given = DraftShape::of_tree("tree", options.tree, options.choices.as_deref())?;
        let shape = match given.unwrap_or(DraftShape::Grown(DEFAULT_SHAPE)) {
            DraftShape::Fixed { tree, .. } if drawn => {
                if !tree.is_contiguous() {
                    return bad(
                        "choices leave ranks out, but tokens drawn without replacement have no ranks to leave out",
                    );
                }
                DraftShape::Fixed { tree, sampling: DraftSampling::Drawn }
            }
            _ if drawn => {
                return bad(
                    "candidates = \"without_replacement\" needs choices: a shape that depends on the tokens drawn would \
                    not be lossless",
                );
            }
            shape => shape,
        };
        let source = (options.model.as_deref(), options.quantize, options.dtype.as_deref());
        let (model, facts) = drafter::load("tree", source, options.vocabulary, &host)?;
        let lane = DraftLane {
            lane: LANE,
            skipped: 0,
            scratch_rows: shape.scratch_rows(),
            group_len: group_len(&host.target()),
            max_rows: MAX_ROWS,
            vocab_size: facts.vocab_size,
        };
        let network = Service { host: host.clone(), model, lane: LANE, vocab_size: facts.vocab_size };
        Ok(Self { host, facts, shape, lane, network, drafting: Drafting::default() })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let depth = self.shape.depth();
        // The last level is never run; all above it need a position.
        let can_draft = |&number: &usize| {
            let len = batch.sequences()[number].tokens().len();
            drafts.remaining(number) > 0 && len > 0 && len + depth - 1 <= self.facts.max_positions
        };
        let wanted: Vec<usize> = (0..batch.sequences().len()).filter(can_draft).collect();
        let shape = &self.shape;
        let growth = |number: usize, remaining: usize| match shape {
            // At temperature 0 only one token can be drawn.
            DraftShape::Fixed { tree, .. } if batch.sequences()[number].sampling.is_greedy() => {
                Growth::fixed(Arc::clone(tree), DraftSampling::Deterministic)
            }
            shape => shape.growth(remaining),
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
        self.shape.needs(vec![lane])
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
