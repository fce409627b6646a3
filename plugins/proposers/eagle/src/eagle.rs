//! The proposer: the head as a drafting network, its keys and values and the target's hidden rows in lanes.
//!
//! The row of token s lies in the lane at that token's slot: it depends on the tokens up to s alone, so forks, prefix hits
//! and preemption need no word from here. The first token has no row, since nothing comes before it.

use std::sync::Arc;

use foretoken_kernels::blocks::KvViewMut;
use foretoken_kernels::ops::AttentionSeq;
use foretoken_kernels::plugin::dtype_named;
use foretoken_plugin_api::drafting::{DraftLane, DraftNetwork, DraftPass, Drafting, Growth};
use foretoken_plugin_api::tree::{StaticTree, TreeGrower};
use foretoken_plugin_api::{
    DraftSampling, Drafts, Error, Host, LaneId, LaneNeed, LaneSource, Needs, ProposeBatch, Proposer, Result, Slot,
    Token,
};

use crate::EagleOptions;
use crate::network::{HeadRows, Network};

/// The head's keys and values.
const KV: LaneId = LaneId(0);
/// The target's hidden rows.
const HIDDEN: LaneId = LaneId(1);
/// Most rows of one pass.
const MAX_ROWS: usize = 512;
/// Most sequences that draft together.
const MAX_GROUP: usize = 64;

/// Drafts with an EAGLE head.
pub struct Eagle {
    host: Host,
    options: EagleOptions,
    choices: Option<Arc<StaticTree>>,
    lane: DraftLane,
    head: Head,
    drafting: Drafting,
}

/// The head between lanes.
struct Head {
    host: Host,
    network: Network,
    embeddings: Vec<f32>,
    /// Features of the pass, and of the pass before.
    features: Vec<f32>,
    before: Vec<f32>,
    hidden: Vec<f32>,
    bytes: Vec<u8>,
    asked: Vec<f32>,
}

impl Proposer for Eagle {
    type Options = EagleOptions;

    fn new(options: EagleOptions, host: Host) -> Result<Self> {
        let bad = |what: &str| Err(Error::options(format!("eagle: {what}")));
        if options.num_speculative_tokens == 0 {
            return bad("num_speculative_tokens is 0, expected at least 1");
        }
        if options.tree.is_some() && options.choices.is_some() {
            return bad("tree and choices are both given, expected one of them");
        }
        if let Some(tree) = options.tree
            && (tree.nodes == 0 || tree.depth == 0 || tree.branch == 0)
        {
            return bad(&format!("tree is {tree:?}, expected nodes, depth and branch above 0"));
        }
        let choices = options.choices.as_deref().map(StaticTree::new).transpose();
        let choices = choices.map_err(|error| Error::options(format!("eagle: {}", error.message)))?;
        let dtype = options.dtype.as_deref().map(|name| dtype_named("eagle", name)).transpose()?;
        let network = Network::load(&options.model, dtype, &host)?;
        let lane = DraftLane {
            lane: KV,
            skipped: 1,
            scratch_rows: match (options.tree, &choices) {
                (Some(tree), _) => 1 + tree.branch * (tree.depth - 1),
                (None, Some(choices)) => 1 + choices.inner_nodes(),
                (None, None) => options.num_speculative_tokens,
            },
            group_len: match host.target().max_sequences {
                0 => MAX_GROUP,
                most => most.min(MAX_GROUP),
            },
            max_rows: MAX_ROWS,
            vocab_size: host.target().vocab_size,
        };
        let (embeddings, features, before, hidden, bytes, asked) = Default::default();
        let head = Head { host: host.clone(), network, embeddings, features, before, hidden, bytes, asked };
        Ok(Self { host, options, choices: choices.map(Arc::new), lane, head, drafting: Drafting::default() })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        // Hidden rows are not computed again here, so a sequence whose rows were lost waits for the target to come by.
        let can_draft = |&number: &usize| {
            let sequence = &batch.sequences()[number];
            let anchor = sequence.tokens().len().saturating_sub(1);
            drafts.remaining(number) > 0 && anchor > 0 && sequence.valid_until(HIDDEN) >= anchor
        };
        let wanted: Vec<usize> = (0..batch.sequences().len()).filter(can_draft).collect();
        let (options, choices) = (&self.options, &self.choices);
        let growth = |_: usize, remaining: usize| match (options.tree, choices) {
            (Some(shape), _) => Growth::grown(TreeGrower::new(shape)),
            (None, Some(tree)) => Growth::fixed(Arc::clone(tree), DraftSampling::Deterministic),
            (None, None) => Growth::chain(options.draft_sampling, options.num_speculative_tokens.min(remaining)),
        };
        self.drafting.run((&self.host, self.lane), &mut self.head, (batch, &wanted), drafts, &growth)
    }

    fn needs(&self) -> Needs {
        let network = &self.head.network;
        let kv = LaneNeed {
            name: "head-kv".to_owned(),
            bytes_per_slot: network.kv().bytes_per_slot(),
            scratch_rows: self.lane.total_scratch(),
            source: LaneSource::Plugin,
        };
        let hidden = LaneNeed {
            name: "hidden".to_owned(),
            bytes_per_slot: 0,
            scratch_rows: 0,
            source: LaneSource::Hidden(network.hidden_layers().to_vec()),
        };
        let (max_draft, tree) = match (self.options.tree, &self.choices) {
            (Some(tree), _) => (tree.nodes, true),
            (None, Some(choices)) => (choices.len(), choices.branches()),
            (None, None) => (self.options.num_speculative_tokens, false),
        };
        let is_chain = self.options.tree.is_none() && self.choices.is_none();
        let draws = is_chain && self.options.draft_sampling == DraftSampling::Drawn;
        Needs { max_draft, tree, draws, lanes: vec![kv, hidden], ..Needs::default() }
    }
}

impl DraftNetwork for Head {
    fn run(&mut self, pass: &DraftPass, batch: &ProposeBatch<'_>, logits: &mut Vec<f32>) -> Result<()> {
        if pass.parents.is_empty() {
            self.read_features(pass, batch)?;
        } else {
            self.own_features(pass);
        }
        let Self { host, network, embeddings, features, asked, .. } = self;
        let width = network.width();
        embeddings.resize(pass.tokens.len() * width, 0.0);
        host.embed(&pass.tokens, embeddings)?;
        let slots = Slot::as_u32s(&pass.slots);
        let seq = |stretch: &foretoken_plugin_api::drafting::Stretch| AttentionSeq {
            context: Slot::as_u32s(pass.context(stretch)),
            rows: stretch.rows.clone(),
            new_slots: &slots[stretch.rows.clone()],
            tree: None,
        };
        let seqs: Vec<AttentionSeq<'_>> = pass.stretches.iter().map(seq).collect();
        let (shape, mut outcome) = (network.kv(), Ok(()));
        let positions = &pass.positions[..];
        host.lanes().lend(KV, &mut |memory| match KvViewMut::over_lane(memory, shape, shape.bytes_per_slot()) {
            Ok(mut kv) => network.forward(HeadRows { embeddings, features, positions, slots, seqs: &seqs }, &mut kv),
            Err(error) => outcome = Err(Error::failed(format!("eagle: the lane: {error}"))),
        })?;
        outcome?;
        host.metric("head_passes", 1.0);
        host.metric("head_rows", pass.tokens.len() as f64);
        asked.clear();
        for row in pass.asked_rows() {
            asked.extend_from_slice(&features[row * width..(row + 1) * width]);
        }
        logits.resize(asked.len() / width * network.vocab_size(), 0.0);
        network.logits(asked, host, logits)
    }

    fn vocab_size(&self) -> usize {
        self.network.vocab_size()
    }

    fn targets(&self) -> &[Token] {
        self.network.targets()
    }
}

impl Head {
    /// Committed rows and the anchor's read the target's hidden row of the token before.
    fn read_features(&mut self, pass: &DraftPass, batch: &ProposeBatch<'_>) -> Result<()> {
        let mut slots: Vec<Slot> = Vec::with_capacity(pass.tokens.len());
        for stretch in &pass.stretches {
            let before = stretch.first_token.unwrap_or(1) - 1;
            slots.extend_from_slice(&batch.sequences()[stretch.number].slots()[before..before + stretch.rows.len()]);
        }
        let Self { host, network, features, hidden, bytes, .. } = self;
        bytes.resize(slots.len() * network.hidden_layers().len() * network.width() * size_of::<f32>(), 0);
        host.lanes().read(HIDDEN, &slots, bytes)?;
        hidden.clear();
        hidden.extend(bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        network.fuse(hidden, features);
        Ok(())
    }

    /// Rows of drafted tokens read the head's own feature of the row that guessed them.
    fn own_features(&mut self, pass: &DraftPass) {
        let width = self.network.width();
        std::mem::swap(&mut self.before, &mut self.features);
        self.features.clear();
        for parent in &pass.parents {
            self.features.extend_from_slice(&self.before[parent * width..(parent + 1) * width]);
        }
    }
}
