//! The proposer: one pass of all heads over every sequence's last hidden row.
//!
//! It keeps no state but a lane of hidden rows, of which it reads one: that of the token before the anchor, from which the
//! target chose the anchor.

use foretoken_plugin_api::guess::most_probable;
use foretoken_plugin_api::tree::{StaticTree, TreeGrower};
use foretoken_plugin_api::{
    DraftError, DraftSampling, Drafts, Error, Host, LaneId, LaneNeed, LaneSource, Needs, NodeId, ProposeBatch,
    Proposer, Result, Slot, Token,
};

use foretoken_kernels::plugin::dtype_named;

use crate::MedusaOptions;
use crate::heads::Heads;

/// The target's last hidden rows.
const HIDDEN: LaneId = LaneId(0);

/// How drafts are made of the heads' guesses.
enum Form {
    Chain { len: usize, sampling: DraftSampling },
    Grown(TreeGrower),
    Static(StaticTree),
}

/// Drafts with Medusa heads.
pub struct Medusa {
    host: Host,
    heads: Heads,
    form: Form,
    vocab_size: usize,
    hidden_size: usize,
    bytes: Vec<u8>,
    hidden: Vec<f32>,
    logits: Vec<f32>,
    top: Vec<(Token, f32)>,
}

impl Proposer for Medusa {
    type Options = MedusaOptions;

    fn new(options: MedusaOptions, host: Host) -> Result<Self> {
        let dtype = options.dtype.as_deref().map(|name| dtype_named("medusa", name)).transpose()?;
        let heads = Heads::load(&options.model, dtype, &host)?;
        let (vocab_size, hidden_size) = (host.target().vocab_size, host.target().hidden_size);
        let form = match (options.tree, &options.choices) {
            (Some(_), Some(_)) => {
                return Err(Error::options("medusa: tree and choices are both given, expected one of them"));
            }
            (Some(tree), None) => {
                if tree.nodes == 0 || tree.depth == 0 || tree.branch == 0 {
                    return Err(Error::options(format!(
                        "medusa: tree is {tree:?}, expected nodes, depth and branch above 0"
                    )));
                }
                Form::Grown(TreeGrower::new(tree))
            }
            (None, Some(paths)) => {
                let tree =
                    StaticTree::new(paths).map_err(|error| Error::options(format!("medusa: {}", error.message)))?;
                if tree.depth() > heads.len() || tree.width() > vocab_size {
                    let (depth, rank, heads) = (tree.depth(), tree.width() - 1, heads.len());
                    return Err(Error::options(format!(
                        "medusa: choices has paths of {depth} ranks up to {rank}, expected at most {heads} (one per head), \
                        each below {vocab_size}"
                    )));
                }
                Form::Static(tree)
            }
            (None, None) => {
                let len = options.num_speculative_tokens.unwrap_or(heads.len());
                if len == 0 || len > heads.len() {
                    let message =
                        format!("num_speculative_tokens is {len}, expected 1 to {}, one per head", heads.len());
                    return Err(Error::options(format!("medusa: {message}")));
                }
                Form::Chain { len, sampling: options.draft_sampling }
            }
        };
        let (bytes, hidden, logits, top) = Default::default();
        Ok(Self { host, heads, form, vocab_size, hidden_size, bytes, hidden, logits, top })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let (mut wanted, mut slots): (Vec<usize>, Vec<Slot>) = Default::default();
        for (number, sequence) in batch.sequences().iter().enumerate() {
            let anchor = sequence.tokens().len().saturating_sub(1);
            if drafts.remaining(number) > 0 && anchor > 0 && sequence.valid_until(HIDDEN) >= anchor {
                wanted.push(number);
                slots.push(sequence.slots()[anchor - 1]);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        self.bytes.resize(slots.len() * self.hidden_size * size_of::<f32>(), 0);
        self.host.lanes().read(HIDDEN, &slots, &mut self.bytes)?;
        self.hidden.clear();
        self.hidden.extend(self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        let depth = self.depth();
        self.heads.logits(&self.hidden, depth, &mut self.logits);
        for (row, &number) in wanted.iter().enumerate() {
            match self.draft(row, wanted.len(), number, drafts) {
                Ok(()) | Err(DraftError::BudgetExhausted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        let hidden = LaneNeed {
            name: "hidden".to_owned(),
            bytes_per_slot: 0,
            scratch_rows: 0,
            source: LaneSource::Hidden(vec![self.host.target().num_layers]),
        };
        let (max_draft, tree, draws) = match &self.form {
            Form::Chain { len, sampling } => (*len, false, *sampling == DraftSampling::Drawn),
            Form::Grown(grower) => (grower.shape().nodes, true, false),
            Form::Static(tree) => (tree.len(), tree.branches(), false),
        };
        Needs { max_draft, tree, draws, lanes: vec![hidden], ..Needs::default() }
    }
}

impl Medusa {
    /// Heads that a draft asks.
    fn depth(&self) -> usize {
        match &self.form {
            Form::Chain { len, .. } => *len,
            Form::Grown(grower) => grower.shape().depth.min(self.heads.len()),
            Form::Static(tree) => tree.depth(),
        }
    }

    /// Drafts for batch sequence `number`, whose logits are row `row` of `rows` of every head.
    fn draft(&mut self, row: usize, rows: usize, number: usize, drafts: &mut Drafts<'_>) -> Result<(), DraftError> {
        let (depth, vocab_size) = (self.depth(), self.vocab_size);
        let all = &self.logits;
        let logits = |head: usize| &all[(head * rows + row) * vocab_size..][..vocab_size];
        let width = match &self.form {
            Form::Chain { sampling, .. } => {
                let mut last = None;
                for head in 0..depth {
                    last = Some(sampling.guess(drafts, number, last, logits(head))?.0);
                }
                return Ok(());
            }
            Form::Grown(grower) => grower.shape().branch.min(vocab_size),
            Form::Static(tree) => tree.width(),
        };
        self.top.clear();
        for head in 0..depth {
            self.top.extend(most_probable(logits(head), width));
        }
        match &mut self.form {
            Form::Chain { .. } => Ok(()),
            Form::Grown(grower) => {
                grower.grow_marginals(&self.top, width);
                grower.emit(number, drafts)
            }
            Form::Static(tree) => {
                let mut pushed: Vec<NodeId> = Vec::with_capacity(tree.len());
                // A small budget takes the first ones, which are the upper levels.
                for (parent, head, rank) in tree.nodes().take(drafts.remaining(number)) {
                    let token = self.top[head * width + rank].0;
                    pushed.push(drafts.push(number, parent.map(|parent| pushed[parent]), token)?);
                }
                Ok(())
            }
        }
    }
}
