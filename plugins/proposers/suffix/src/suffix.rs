//! The proposer: the longest suffix that has occurred before, in this text or in earlier outputs, and what followed.
//!
//! The automaton of a sequence takes in its committed tokens when it is drafted for: where a scheduler stops drafting,
//! tokens are only kept. Where a suffix has occurred often and a shorter one oftener, the longer is the better witness but
//! the shorter has more to say; a few of them are tried and the draft that hopes for most is made.

use std::collections::HashMap;

use foretoken_plugin_api::{CommitBatch, Drafts, Error, Host, Needs, ProposeBatch, Proposer, Result, SeqId, Token};

use crate::SuffixOptions;
use crate::automaton::{Automaton, State};
use crate::guess::{Guesser, Limits};
use crate::outputs::{Outputs, Place};

/// Suffixes that are tried in each automaton, longest first.
const TRIED: usize = 4;

/// Drafts what most often followed the longest matches.
pub struct Suffix {
    limits: Limits,
    max_draft: usize,
    min_score: f64,
    sequences: HashMap<SeqId, Text>,
    outputs: Outputs,
    guesser: Guesser,
}

/// One sequence.
#[derive(Debug, Default)]
struct Text {
    tokens: Vec<Token>,
    prompt_len: usize,
    automaton: Automaton,
    place: Place,
}

impl Text {
    /// Keeps what is new. Fewer tokens than before are another text.
    fn update(&mut self, tokens: &[Token]) {
        if tokens.len() < self.tokens.len() {
            *self = Self { prompt_len: self.prompt_len, ..Self::default() };
        }
        self.tokens.extend_from_slice(&tokens[self.tokens.len()..]);
    }

    /// The automaton of all of it.
    fn automaton(&mut self) -> &Automaton {
        for &token in &self.tokens[self.automaton.text_len()..] {
            self.automaton.push(token);
        }
        &self.automaton
    }
}

impl Proposer for Suffix {
    type Options = SuffixOptions;

    fn new(options: SuffixOptions, _host: Host) -> Result<Self> {
        let SuffixOptions { num_speculative_tokens, max_spec_factor, min_token_prob, min_score, tree, max_shared_mb } =
            options;
        let refuse = |what: String| Err(Error::options(format!("suffix: {what}")));
        if num_speculative_tokens == 0 {
            return refuse(
                "num_speculative_tokens is 0, expected at least 1 (leave out [proposer] for plain decoding)".into(),
            );
        }
        if !(max_spec_factor.is_finite() && max_spec_factor > 0.0) {
            return refuse(format!("max_spec_factor is {max_spec_factor}, expected a number above 0"));
        }
        if !(0.0..=1.0).contains(&min_token_prob) {
            return refuse(format!("min_token_prob is {min_token_prob}, expected a probability, 0 to 1"));
        }
        if !(0.0..num_speculative_tokens as f64).contains(&min_score) {
            return refuse(format!(
                "min_score is {min_score}, expected at least 0 and less than num_speculative_tokens, \
                 {num_speculative_tokens}: no draft can hope for more"
            ));
        }
        Ok(Self {
            limits: Limits { factor: max_spec_factor, probability: min_token_prob, tree },
            max_draft: num_speculative_tokens,
            min_score,
            sequences: HashMap::new(),
            outputs: Outputs::new(max_shared_mb << 20),
            guesser: Guesser::default(),
        })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        let Self { limits, min_score, guesser, outputs, .. } = self;
        for (number, sequence) in batch.sequences().iter().enumerate() {
            let most = self.max_draft.min(sequence.budget as usize).min(drafts.remaining(number));
            if most == 0 {
                continue;
            }
            let tokens = sequence.tokens();
            let text = self.sequences.entry(sequence.id).or_default();
            text.prompt_len = tokens.len() - (sequence.output_index as usize).min(tokens.len());
            text.update(tokens);
            guesser.clear();
            let own = text.automaton();
            consider(guesser, (own, own.matched()), own.len(own.matched()), most, limits);
            for (automaton, found) in outputs.find(&mut text.place, tokens) {
                consider(guesser, (automaton, found.state), found.len, most, limits);
            }
            let best = guesser.best();
            // Under a budget below it, a draft that is sure of all it may have is enough.
            if best.score < min_score.min(most as f64) {
                continue;
            }
            for &(parent, token) in &best.nodes {
                drafts.push(number, parent, token)?;
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs { max_draft: self.max_draft, tree: self.limits.tree, ..Needs::default() }
    }

    fn commit(&mut self, batch: &CommitBatch<'_>) -> Result<()> {
        for sequence in batch.sequences() {
            if let Some(text) = self.sequences.get_mut(&sequence.id) {
                text.update(sequence.tokens());
            }
        }
        Ok(())
    }

    fn finish(&mut self, sequence: SeqId) {
        if let Some(text) = self.sequences.remove(&sequence) {
            self.outputs.add(&text.tokens[text.prompt_len.min(text.tokens.len())..]);
        }
    }
}

/// Tries a match of `len` tokens and the shorter suffixes behind it.
fn consider(
    guesser: &mut Guesser,
    (automaton, mut state): (&Automaton, State),
    mut len: usize,
    most: usize,
    limits: &Limits,
) {
    for _ in 0..TRIED {
        if len == 0 {
            return;
        }
        guesser.consider(automaton, state, len, most, limits);
        let Some(shorter) = automaton.shorter(state) else { return };
        (state, len) = (shorter, automaton.len(shorter));
    }
}
