//! The proposer: one pass of all heads over every sequence's last hidden row.
//!
//! It keeps no state but a lane of hidden rows, of which it reads one: that of the token before the anchor, from which the
//! target chose the anchor.

use foretoken_plugin_api::drafting::{DraftShape, HiddenLane, Marginals};
use foretoken_plugin_api::tree::TreeShape;
use foretoken_plugin_api::{DraftError, Drafts, Error, Host, LaneId, Needs, ProposeBatch, Proposer, Result, Slot};

use foretoken_kernels::plugin::dtype_named;

use crate::MedusaOptions;
use crate::heads::Heads;

/// The target's last hidden rows.
const HIDDEN: LaneId = LaneId(0);

/// Drafts with Medusa heads.
pub struct Medusa {
    host: Host,
    heads: Heads,
    marginals: Marginals,
    vocab_size: usize,
    hidden: HiddenLane,
    logits: Vec<f32>,
}

impl Proposer for Medusa {
    type Options = MedusaOptions;

    fn new(options: MedusaOptions, host: Host) -> Result<Self> {
        let dtype = options.dtype.as_deref().map(|name| dtype_named("medusa", name)).transpose()?;
        let heads = Heads::load(&options.model, dtype, &host)?;
        let target = host.target();
        let vocab_size = target.vocab_size;
        let hidden = HiddenLane::new(HIDDEN, vec![target.num_layers], target.hidden_size);
        let bad = |message: String| Err(Error::options(format!("medusa: {message}")));
        let shape = match DraftShape::of_tree("medusa", options.tree, options.choices.as_deref())? {
            Some(DraftShape::Grown(tree)) => DraftShape::Grown(TreeShape {
                depth: tree.depth.min(heads.len()),
                branch: tree.branch.min(vocab_size),
                ..tree
            }),
            Some(DraftShape::Fixed { tree, .. }) if tree.depth() > heads.len() || tree.width() > vocab_size => {
                let (depth, rank, heads) = (tree.depth(), tree.width() - 1, heads.len());
                return bad(format!(
                    "choices has paths of {depth} ranks up to {rank}, expected at most {heads} (one per head), each below \
                    {vocab_size}"
                ));
            }
            Some(shape) => shape,
            None => {
                let len = options.num_speculative_tokens.unwrap_or(heads.len());
                if len == 0 || len > heads.len() {
                    return bad(format!(
                        "num_speculative_tokens is {len}, expected 1 to {}, one per head",
                        heads.len()
                    ));
                }
                DraftShape::chain("medusa", len, options.draft_sampling)?
            }
        };
        Ok(Self { host, heads, marginals: Marginals::new(shape), vocab_size, hidden, logits: Vec::new() })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let (mut wanted, mut slots): (Vec<usize>, Vec<Slot>) = Default::default();
        for (number, sequence) in batch.sequences().iter().enumerate() {
            if drafts.remaining(number) > 0 && self.hidden.reaches_anchor(batch, number) {
                wanted.push(number);
                slots.push(sequence.slots()[sequence.tokens().len() - 2]);
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        let hidden = self.hidden.read(&self.host, &slots)?;
        self.heads.logits(hidden, self.marginals.shape().depth(), &mut self.logits);
        for (row, &number) in wanted.iter().enumerate() {
            let logits = |head: usize| &self.logits[(head * wanted.len() + row) * self.vocab_size..][..self.vocab_size];
            match self.marginals.draft(number, logits, drafts) {
                Ok(()) | Err(DraftError::BudgetExhausted) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        self.marginals.shape().needs(vec![self.hidden.need()])
    }
}
