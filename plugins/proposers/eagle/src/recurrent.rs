//! The proposers: the head as a drafting network, its keys and values and the target's hidden rows in lanes.
//!
//! The row of token s lies in the lane at that token's slot: it depends on the tokens up to s alone, so forks, prefix hits
//! and preemption need no word from here. The first token has no row, since nothing comes before it.

use foretoken_kernels::blocks::KvViewMut;
use foretoken_kernels::ops::AttentionSeq;
use foretoken_kernels::plugin::dtype_named;
use foretoken_plugin_api::drafting::{
    DraftLane, DraftNetwork, DraftPass, DraftShape, Drafting, HiddenLane, Stretch, group_len,
};
use foretoken_plugin_api::{
    Drafts, Error, Host, LaneId, LaneNeed, LaneSource, Needs, ProposeBatch, Proposer, Result, Slot, Token,
};

use crate::network::{HeadRows, Network};
use crate::{EagleOptions, MtpOptions, load};

/// The head's keys and values.
const KV: LaneId = LaneId(0);
/// The target's hidden rows.
const HIDDEN: LaneId = LaneId(1);
/// Most rows of one pass.
const MAX_ROWS: usize = 512;

/// Drafts with an EAGLE head.
pub struct Eagle(Recurrent);

/// Drafts with multi-token-prediction modules.
pub struct Mtp(Recurrent);

impl Proposer for Eagle {
    type Options = EagleOptions;

    fn new(options: EagleOptions, host: Host) -> Result<Self> {
        let shape = match DraftShape::of_tree("eagle", options.tree, options.choices.as_deref())? {
            Some(shape) => shape,
            None => DraftShape::chain("eagle", options.num_speculative_tokens, options.draft_sampling)?,
        };
        let dtype = options.dtype.as_deref().map(|name| dtype_named("eagle", name)).transpose()?;
        let network = load::eagle(&options.model, dtype, &host)?;
        Ok(Self(Recurrent::new(network, shape, host)))
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        self.0.propose(batch, drafts)
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }
}

impl Proposer for Mtp {
    type Options = MtpOptions;

    fn new(options: MtpOptions, host: Host) -> Result<Self> {
        let shape = match DraftShape::of_tree("mtp", options.tree, options.choices.as_deref())? {
            Some(shape) => shape,
            None => DraftShape::chain("mtp", options.num_speculative_tokens, options.draft_sampling)?,
        };
        let dtype = options.dtype.as_deref().map(|name| dtype_named("mtp", name)).transpose()?;
        let path = options.model.unwrap_or_else(|| host.target().path);
        let network = load::mtp(&path, dtype, &host)?;
        Ok(Self(Recurrent::new(network, shape, host)))
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        self.0.propose(batch, drafts)
    }

    fn needs(&self) -> Needs {
        self.0.needs()
    }
}

/// What both are: a network whose rows read the target's hidden rows, then its own features.
struct Recurrent {
    host: Host,
    shape: DraftShape,
    lane: DraftLane,
    head: Head,
    drafting: Drafting,
}

/// The head between lanes.
struct Head {
    host: Host,
    network: Network,
    embeddings: Vec<f32>,
    /// Features of the pass, and of the pass before, `[modules, rows, hidden_size]`.
    features: Vec<f32>,
    before: Vec<f32>,
    /// Tokens guessed before those of this pass.
    depth: usize,
    hidden: HiddenLane,
    asked: Vec<f32>,
}

impl Recurrent {
    fn new(network: Network, shape: DraftShape, host: Host) -> Self {
        let target = host.target();
        let lane = DraftLane {
            lane: KV,
            skipped: 1,
            scratch_rows: shape.scratch_rows(),
            group_len: group_len(&target),
            max_rows: MAX_ROWS,
            vocab_size: target.vocab_size,
        };
        let hidden = HiddenLane::new(HIDDEN, network.hidden_layers().to_vec(), network.width());
        let (embeddings, features, before, depth, asked) = Default::default();
        let head = Head { host: host.clone(), network, embeddings, features, before, depth, hidden, asked };
        Self { host, shape, lane, head, drafting: Drafting::default() }
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let can_draft =
            |&number: &usize| drafts.remaining(number) > 0 && self.head.hidden.reaches_anchor(batch, number);
        let wanted: Vec<usize> = (0..batch.sequences().len()).filter(can_draft).collect();
        let growth = |_: usize, remaining: usize| self.shape.growth(remaining);
        self.drafting.run((&self.host, self.lane), &mut self.head, (batch, &wanted), drafts, &growth)
    }

    fn needs(&self) -> Needs {
        let network = &self.head.network;
        let kv = LaneNeed {
            name: "head-kv".to_owned(),
            bytes_per_slot: row_bytes(network),
            scratch_rows: self.lane.total_scratch(),
            source: LaneSource::Plugin,
        };
        self.shape.needs(vec![kv, self.head.hidden.need()])
    }
}

/// Bytes of a lane row: keys and values, then what every module but the last gave, for the row behind it.
fn row_bytes(network: &Network) -> usize {
    network.kv().bytes_per_slot() + (network.modules() - 1) * network.width() * size_of::<f32>()
}

impl DraftNetwork for Head {
    fn run(&mut self, pass: &DraftPass, batch: &ProposeBatch<'_>, logits: &mut Vec<f32>) -> Result<()> {
        let are_chained = pass.parents.is_empty();
        if are_chained {
            self.depth = 0;
            self.read_features(pass, batch)?;
        } else {
            self.depth += 1;
            self.own_features(pass);
        }
        let Self { host, network, embeddings, features, depth, asked, .. } = self;
        let width = network.width();
        embeddings.resize(pass.tokens.len() * width, 0.0);
        host.embed(&pass.tokens, embeddings)?;
        let slots = Slot::as_u32s(&pass.slots);
        let seq = |stretch: &Stretch| AttentionSeq {
            context: Slot::as_u32s(pass.context(stretch)),
            rows: stretch.rows.clone(),
            new_slots: &slots[stretch.rows.clone()],
            tree: None,
        };
        let seqs: Vec<AttentionSeq<'_>> = pass.stretches.iter().map(seq).collect();
        let (shape, mut outcome) = (network.kv(), Ok(()));
        let tail = Tail { stride: row_bytes(network), start: shape.bytes_per_slot() };
        let positions = &pass.positions[..];
        host.lanes().lend(KV, &mut |memory| {
            if are_chained {
                read_given(memory, tail, (&seqs, slots.len()), features, width);
            }
            match KvViewMut::over_lane(memory, shape, tail.stride) {
                Ok(mut kv) => {
                    let rows = HeadRows { embeddings, features, are_chained, positions, slots, seqs: &seqs };
                    network.forward(rows, &mut kv);
                }
                Err(error) => outcome = Err(Error::failed(format!("the head's lane: {error}"))),
            }
            if are_chained {
                write_given(memory, tail, slots, features, width);
            }
        })?;
        outcome?;
        host.metric("head_passes", 1.0);
        host.metric("head_rows", pass.tokens.len() as f64);
        let module = *depth % network.modules();
        let given = &features[module * pass.tokens.len() * width..];
        asked.clear();
        for row in pass.asked_rows() {
            asked.extend_from_slice(&given[row * width..(row + 1) * width]);
        }
        logits.resize(asked.len() / width * network.vocab_size(), 0.0);
        network.logits(module, asked, host, logits)
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
        let Self { host, network, features, hidden, .. } = self;
        let hidden = hidden.read(host, &slots)?;
        let rows = slots.len() * network.width();
        features.clear();
        features.resize(network.modules() * rows, 0.0);
        network.fuse(hidden, &mut features[..rows]);
        Ok(())
    }

    /// Rows of drafted tokens read the head's own feature of the row that guessed them, each module the one before it.
    fn own_features(&mut self, pass: &DraftPass) {
        let (width, modules) = (self.network.width(), self.network.modules());
        std::mem::swap(&mut self.before, &mut self.features);
        let rows = self.before.len() / modules;
        self.features.clear();
        for module in 0..modules {
            let given = &self.before[(module + modules - 1) % modules * rows..];
            for parent in &pass.parents {
                self.features.extend_from_slice(&given[parent * width..(parent + 1) * width]);
            }
        }
    }
}

/// Where a lane row keeps what modules gave: its length, and the bytes of keys and values before.
#[derive(Clone, Copy)]
struct Tail {
    stride: usize,
    start: usize,
}

/// A sequence's first row reads what the modules gave for the row before it; the very first reads zeros.
fn read_given(
    memory: &[u8],
    tail: Tail,
    (seqs, rows): (&[AttentionSeq<'_>], usize),
    features: &mut [f32],
    width: usize,
) {
    for seq in seqs {
        let Some(before) = seq.context.last() else { continue };
        let given = &memory[*before as usize * tail.stride..][tail.start..tail.stride];
        for (read, given) in features.chunks_exact_mut(rows * width).skip(1).zip(given.as_chunks().0.chunks(width)) {
            let read = &mut read[seq.rows.start * width..][..width];
            read.iter_mut().zip(given).for_each(|(read, given)| *read = f32::from_le_bytes(*given));
        }
    }
}

/// Keeps what all modules but the last gave.
fn write_given(memory: &mut [u8], tail: Tail, slots: &[u32], features: &[f32], width: usize) {
    for (row, slot) in slots.iter().enumerate() {
        let kept = &mut memory[*slot as usize * tail.stride..][tail.start..tail.stride];
        for (given, kept) in features.chunks_exact(slots.len() * width).zip(kept.as_chunks_mut().0.chunks_mut(width)) {
            let given = &given[row * width..][..width];
            kept.iter_mut().zip(given).for_each(|(kept, given)| *kept = given.to_le_bytes());
        }
    }
}
