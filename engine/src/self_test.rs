//! A first look at every proposer with a network: does it guess what the target says next?
//!
//! A head for another target, read at another layer or rotated in another style loads and runs like a good one; only its
//! guesses are worthless. So before any request, on slots that nobody holds, the target reads a short text, and the
//! proposer guesses one token behind each of its later words. Near chance, one warning names the usual causes.

use foretoken_plugin_api::types::batch::SequenceSlices;
use foretoken_plugin_api::{
    ForwardSequence, LogitRows, NoiseKey, ProposeBatch, ProposeSequence, SamplingParams, SeqId, Slot,
};

use crate::drafts::TreeSetup;
use crate::engine::{Core, Target};
use crate::model::ForwardOut;
use crate::plugins::proposers::HiddenLanes;

const TEXT: &str = "The first line of the file says what it is for. The second line of the file says who wrote it, and the \
    third line of the file says when it was written.";
/// Tokens of the text that are read, and how many of them nothing is guessed behind.
const LEN: usize = 26;
const LEAD: usize = 10;
/// Fewer than one right guess in so many is near chance.
const CHANCE: usize = 8;

/// How a proposer did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FirstGuesses {
    /// The proposer.
    pub name: String,
    /// Places at which it guessed.
    pub asked: usize,
    /// Guesses that were the target's most probable token.
    pub right: usize,
}

impl FirstGuesses {
    /// Whether a proposer that knows nothing of the target might do as well.
    pub fn is_near_chance(&self) -> bool {
        self.right * CHANCE < self.asked
    }
}

/// Looks at the proposers that keep state in lanes, and warns of those that guess badly.
pub(crate) fn look(core: &mut Core) -> Vec<FirstGuesses> {
    let has_network = |which: &usize| !core.proposers[*which].needs.lanes.is_empty();
    let networks: Vec<usize> = (0..core.proposers.len()).filter(has_network).collect();
    let mut tokens = core.tokenizer.encode(TEXT).unwrap_or_default();
    tokens.truncate(LEN.min(core.num_slots).min(core.target.decoder.architecture().max_positions));
    if networks.is_empty() || tokens.len() <= LEAD {
        return Vec::new();
    }
    let slots: Vec<Slot> = (0..tokens.len() as u32).map(Slot).collect();
    let wanted = read(core, &tokens, &slots);
    HiddenLanes(&core.proposers).mark(&slots);
    let looked = networks.into_iter().map(|which| {
        let guesses = guess(core, which, (&tokens, &slots), &wanted);
        core.proposers[which].lanes.invalidate(&slots);
        if guesses.is_near_chance() {
            let FirstGuesses { name, asked, right } = &guesses;
            tracing::warn!(
                "proposer `{name}` guessed {right} of {asked} next tokens of a short text, which is near chance; outputs \
                stay right, but drafts will rarely be kept. Usual causes: it was made for another model; it reads the \
                hidden rows of other layers (some files count them from the embedding); its rotary positions are of \
                another style or base; its vocabulary is offset (d2t)"
            );
        }
        guesses
    });
    let looked = looked.collect();
    core.shared.counters.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clear();
    looked
}

/// The target's most probable token behind each token; lanes get the hidden rows that they hold.
fn read(core: &mut Core, tokens: &[u32], slots: &[Slot]) -> Vec<u32> {
    let Target { decoder, kv, rows } = &mut core.target;
    let vocab = decoder.architecture().vocab_size;
    let mut logits = vec![0.0; tokens.len() * vocab];
    let sequence = ForwardSequence::chain(tokens, &[], slots, LogitRows::All);
    let out = ForwardOut { logits: &mut logits, hidden: &mut HiddenLanes(&core.proposers) };
    rows.forward(decoder, &[sequence], &mut kv.view_mut(), out);
    let best = |row: &[f32]| (0..row.len()).fold(0, |best, id| if row[id] > row[best] { id } else { best }) as u32;
    logits.chunks_exact(vocab).map(best).collect()
}

/// One guess behind each token from [`LEAD`] on, as if so many sequences shared the text.
fn guess(core: &mut Core, which: usize, (tokens, slots): (&[u32], &[Slot]), wanted: &[u32]) -> FirstGuesses {
    // From the end, where no request's sequence will ever be.
    let ids: Vec<SeqId> = (LEAD..tokens.len()).map(|place| SeqId(u64::MAX - place as u64)).collect();
    let proposer = &mut core.proposers[which];
    let params = SamplingParams::GREEDY;
    core.drafts.begin();
    let setup = TreeSetup { budget: 1, branches: false, params, noise: NoiseKey::new(0, 0), output_index: 0 };
    let trees: Vec<usize> = ids.iter().map(|_| core.drafts.add_tree(setup)).collect();
    let mut valid = vec![Vec::new(); ids.len()];
    for (anchor, valid) in (LEAD..).zip(&mut valid) {
        proposer.lanes.extend_valid(&slots[..anchor], valid);
    }
    let mut batch: Vec<ProposeSequence<'_>> = Vec::with_capacity(ids.len());
    for (anchor, (id, valid_until)) in (LEAD..).zip(ids.iter().zip(&valid)) {
        let slices = SequenceSlices { tokens: &tokens[..=anchor], slots: &slots[..anchor], valid_until };
        batch.push(ProposeSequence::new(*id, 0, 1, params, slices));
    }
    core.drafts.set_batch(trees.iter().copied(), proposer.needs.tree);
    proposer.propose(ProposeBatch::new(&batch), &mut core.drafts, &trees);
    let mut guesses = FirstGuesses { name: proposer.name.clone(), asked: 0, right: 0 };
    for (tree, anchor) in trees.iter().zip(LEAD..) {
        if let Some(token) = core.drafts.tree(*tree).tokens.first() {
            guesses.asked += 1;
            guesses.right += usize::from(*token == wanted[anchor]);
        }
    }
    ids.iter().for_each(|id| proposer.finish(*id));
    guesses
}
