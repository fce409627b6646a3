//! The proposer: committed tokens' keys and values in a lane, a block of scratch rows behind them for each draft.

use foretoken_kernels::blocks::KvViewMut;
use foretoken_kernels::plugin::dtype_named;
use foretoken_plugin_api::drafting::{DraftShape, HiddenLane, Marginals, group_len};
use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{
    DraftError, Drafts, Error, Host, LaneId, LaneNeed, LaneSource, Needs, ProposeBatch, Proposer, Result, Slot, Token,
};

use crate::DFlashOptions;
use crate::network::{Network, RowPlaces};

/// The network's keys and values.
const KV: LaneId = LaneId(0);
/// The target's hidden rows.
const HIDDEN: LaneId = LaneId(1);
/// Most committed rows of one pass.
const MAX_ROWS: usize = 512;

/// Drafts with a DFlash network.
pub struct DFlash {
    host: Host,
    network: Network,
    marginals: Marginals,
    vocab_size: usize,
    group_len: usize,
    hidden: HiddenLane,
    rows: Vec<f32>,
    logits: Vec<f32>,
}

impl Proposer for DFlash {
    type Options = DFlashOptions;

    fn new(options: DFlashOptions, host: Host) -> Result<Self> {
        let dtype = options.dtype.as_deref().map(|name| dtype_named("dflash", name)).transpose()?;
        let network = Network::load(&options.model, dtype, &host)?;
        let target = host.target();
        let (most, vocab_size) = (network.block_size() - 1, target.vocab_size);
        let bad = |what: String| Err(Error::options(format!("dflash: {what}, the block without its anchor")));
        let shape = match DraftShape::of_tree("dflash", options.tree, options.choices.as_deref())? {
            Some(DraftShape::Grown(tree)) => {
                let (depth, branch) = (tree.depth.min(most), tree.branch.min(vocab_size));
                DraftShape::Grown(TreeShape { depth, branch, ..tree })
            }
            Some(shape) if shape.depth() > most => {
                return bad(format!("choices has paths of {} tokens, expected at most {most}", shape.depth()));
            }
            Some(shape) => shape,
            None => {
                let len = options.num_speculative_tokens.unwrap_or(most);
                if len == 0 || len > most {
                    return bad(format!("num_speculative_tokens is {len}, expected 1 to {most}"));
                }
                DraftShape::chain("dflash", len, options.draft_sampling)?
            }
        };
        let group_len = group_len(&target);
        let hidden = HiddenLane::new(HIDDEN, network.hidden_layers().to_vec(), network.width());
        let (rows, logits) = Default::default();
        let marginals = Marginals::new(shape);
        Ok(Self { host, network, marginals, vocab_size, group_len, hidden, rows, logits })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let can_draft = |&number: &usize| drafts.remaining(number) > 0 && self.hidden.reaches_anchor(batch, number);
        let wanted: Vec<usize> = (0..batch.sequences().len()).filter(can_draft).collect();
        self.bring_up(batch, &wanted)?;
        for group in wanted.chunks(self.group_len) {
            self.fill(batch, group)?;
            let (depth, vocab_size) = (self.marginals.shape().depth(), self.vocab_size);
            for (index, &number) in group.iter().enumerate() {
                let logits = |place: usize| &self.logits[(index * depth + place) * vocab_size..][..vocab_size];
                match self.marginals.draft(number, logits, drafts) {
                    Ok(()) | Err(DraftError::BudgetExhausted) => {}
                    Err(error) => return Err(error.into()),
                }
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let kv = LaneNeed {
            name: "block-kv".to_owned(),
            bytes_per_slot: self.network.kv().bytes_per_slot(),
            scratch_rows: self.group_len * self.block(),
            source: LaneSource::Plugin,
        };
        self.marginals.shape().needs(vec![kv, self.hidden.need()])
    }
}

impl DFlash {
    /// Rows of a draft's block.
    fn block(&self) -> usize {
        1 + self.marginals.shape().depth()
    }

    /// Stores keys and values of the committed tokens that have none, of several sequences in a pass.
    fn bring_up(&mut self, batch: &ProposeBatch<'_>, wanted: &[usize]) -> Result<()> {
        let (mut positions, mut slots): (Vec<u32>, Vec<Slot>) = Default::default();
        for &number in wanted {
            let sequence = &batch.sequences()[number];
            let anchor = sequence.tokens().len() - 1;
            for place in sequence.valid_until(KV).min(anchor)..anchor {
                positions.push(place as u32);
                slots.push(sequence.slots()[place]);
            }
        }
        let Self { host, network, hidden, .. } = self;
        for (positions, slots) in positions.chunks(MAX_ROWS).zip(slots.chunks(MAX_ROWS)) {
            let hidden = hidden.read(host, slots)?;
            let places = RowPlaces { positions, slots: Slot::as_u32s(slots) };
            with_lane(host, network, |network, kv| network.store(hidden, places, kv))?;
            host.lanes().mark(KV, slots)?;
            host.metric("context_rows", slots.len() as f64);
        }
        Ok(())
    }

    /// Logits of the group's blocks, `[sequences, depth, vocabulary]`.
    fn fill(&mut self, batch: &ProposeBatch<'_>, group: &[usize]) -> Result<()> {
        let block = self.block();
        let Self { host, network, rows, logits, vocab_size, .. } = self;
        let lane_rows = host.lanes().rows(KV);
        let short = || Error::failed(format!("the lane of {lane_rows} rows has no {block} scratch rows for a draft"));
        let first = lane_rows.checked_sub(self.group_len * block).ok_or_else(short)? as u32;
        let slots: Vec<u32> = (first..).take(group.len() * block).collect();
        let (mut positions, mut tokens): (Vec<u32>, Vec<Token>) = Default::default();
        let mut contexts: Vec<&[u32]> = Vec::with_capacity(group.len());
        for &number in group {
            let sequence = &batch.sequences()[number];
            let anchor = sequence.tokens().len() - 1;
            contexts.push(&Slot::as_u32s(sequence.slots())[..anchor]);
            positions.extend((anchor as u32..).take(block));
            tokens.push(sequence.tokens()[anchor]);
            tokens.extend(std::iter::repeat_n(network.mask(), block - 1));
        }
        let width = network.width();
        rows.resize(tokens.len() * width, 0.0);
        host.embed(&tokens, rows)?;
        let places = RowPlaces { positions: &positions, slots: &slots };
        with_lane(host, network, |network, kv| network.fill(rows, (places, block), &contexts, kv))?;
        host.metric("block_passes", 1.0);
        // The anchor's row guesses nothing: masks guess what stands in their own place.
        let kept = rows.len() / block * (block - 1);
        for index in 0..group.len() {
            let from = (index * block + 1) * width;
            rows.copy_within(from..from + (block - 1) * width, index * (block - 1) * width);
        }
        logits.resize(kept / width * *vocab_size, 0.0);
        host.lm_head(&rows[..kept], logits)
    }
}

/// Lends the lane of keys and values to `work`.
fn with_lane(host: &Host, network: &mut Network, mut work: impl FnMut(&mut Network, &mut KvViewMut<'_>)) -> Result<()> {
    let (shape, mut outcome) = (network.kv(), Ok(()));
    host.lanes().lend(KV, &mut |memory| match KvViewMut::over_lane(memory, shape, shape.bytes_per_slot()) {
        Ok(mut kv) => work(network, &mut kv),
        Err(error) => outcome = Err(Error::failed(format!("dflash: the lane: {error}"))),
    })?;
    outcome
}
