//! The proposer: looks up the last tokens, drafts what followed them.
//!
//! Where fewer tokens follow than the budget asks for, the draft goes on with its own beginning: a match `d` tokens back
//! says that the text repeats with period `d`, and a loop is where prompt lookup is at its best. (vLLM stops at the end of
//! the context, so that a loop of period 1 drafts a single token.) An index is made when a sequence is first drafted for,
//! from its committed tokens, and brought up only when it drafts again, so a sequence that is not drafted for costs nothing.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use foretoken_plugin_api::{Drafts, Error, Host, Needs, ProposeBatch, Proposer, Result, SeqId, Token};

use crate::NgramOptions;
use crate::index::NgramIndex;

const DEFAULT_SIZES: RangeInclusive<usize> = 2..=5;

/// Drafts what followed the latest earlier occurrence of the longest suffix.
pub struct Ngram {
    sizes: RangeInclusive<usize>,
    max_draft: usize,
    indexes: HashMap<SeqId, NgramIndex>,
}

impl Proposer for Ngram {
    type Options = NgramOptions;

    fn new(options: NgramOptions, _host: Host) -> Result<Self> {
        if options.num_speculative_tokens == 0 {
            return Err(Error::options(
                "ngram: num_speculative_tokens is 0, expected at least 1 (leave out [proposer] for plain decoding)",
            ));
        }
        let sizes = lookup_sizes(&options)?;
        Ok(Self { sizes, max_draft: options.num_speculative_tokens, indexes: HashMap::new() })
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        for (number, sequence) in batch.sequences().iter().enumerate() {
            let len = self.max_draft.min(sequence.budget as usize).min(drafts.remaining(number));
            if len == 0 {
                continue;
            }
            let index = self.indexes.entry(sequence.id).or_insert_with(|| NgramIndex::new(self.sizes.clone()));
            index.update(sequence.tokens());
            let Some(end) = index.find(sequence.tokens()) else { continue };
            let mut parent = None;
            for token in continuation(sequence.tokens(), end).take(len) {
                parent = Some(drafts.push(number, parent, token)?);
            }
        }
        Ok(())
    }

    fn needs(&self) -> Needs {
        Needs { max_draft: self.max_draft, ..Needs::default() }
    }

    fn finish(&mut self, sequence: SeqId) {
        self.indexes.remove(&sequence);
    }
}

/// vLLM's meaning of the two options: one alone stands for both.
fn lookup_sizes(options: &NgramOptions) -> Result<RangeInclusive<usize>> {
    let sizes = match (options.prompt_lookup_min, options.prompt_lookup_max) {
        (None, None) => DEFAULT_SIZES,
        (Some(both), None) | (None, Some(both)) => both..=both,
        (Some(min), Some(max)) => min..=max,
    };
    if *sizes.start() == 0 || sizes.is_empty() {
        let (min, max) = sizes.into_inner();
        return Err(Error::options(format!(
            "ngram: prompt_lookup_min = {min} and prompt_lookup_max = {max}, expected 1 <= min <= max"
        )));
    }
    Ok(sizes)
}

/// The tokens from `end` on, over and over.
fn continuation(tokens: &[Token], end: usize) -> impl Iterator<Item = Token> {
    tokens[end..].iter().copied().cycle()
}
