//! A proposer from outside Foretoken's own workspace: it needs `foretoken-plugin-api` and nothing else of the engine's.
//!
//! This file holds the options and the export line; the idea is in [`table`]. The part remembers successors across all
//! requests, which lookup in a sequence's own text (`ngram`) cannot: the tenth request gains from the nine before.
#![forbid(unsafe_code)]

mod table;
#[cfg(test)]
mod tests;

use std::collections::HashMap;

use foretoken_plugin_api::{
    CommitBatch, Drafts, Error, Host, Needs, ProposeBatch, Proposer, Result, SeqId, export_plugin,
};
use schemars::JsonSchema;
use serde::Deserialize;
use table::BigramTable;

/// Options of `bigram-table`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct Options {
    /// Longest draft.
    pub num_speculative_tokens: usize,
    /// How often a successor must have been seen before it is guessed.
    pub min_count: u32,
}

impl Default for Options {
    fn default() -> Self {
        Self { num_speculative_tokens: 4, min_count: 2 }
    }
}

/// Drafts the chain of most frequent successors.
pub struct Bigram {
    options: Options,
    table: BigramTable,
    /// How many tokens of each live sequence the table has seen.
    learned_len: HashMap<SeqId, usize>,
}

impl Proposer for Bigram {
    type Options = Options;

    fn new(options: Options, _: Host) -> Result<Self> {
        if options.num_speculative_tokens == 0 {
            return Err(Error::options("num_speculative_tokens is 0; leave [proposer] out for plain decoding"));
        }
        Ok(Self { options, table: BigramTable::default(), learned_len: HashMap::new() })
    }

    fn needs(&self) -> Needs {
        Needs { max_draft: self.options.num_speculative_tokens, ..Needs::default() }
    }

    fn propose(&mut self, batch: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        for (index, sequence) in batch.sequences().iter().enumerate() {
            let Some(&anchor) = sequence.tokens().last() else { continue };
            let (mut token, mut parent) = (anchor, None);
            for _ in 0..drafts.remaining(index).min(self.options.num_speculative_tokens) {
                let Some(next) = self.table.successor(token, self.options.min_count) else { break };
                parent = Some(drafts.push(index, parent, next)?);
                token = next;
            }
        }
        Ok(())
    }

    fn commit(&mut self, batch: &CommitBatch<'_>) -> Result<()> {
        for sequence in batch.sequences() {
            let learned_len = self.learned_len.entry(sequence.id).or_default();
            // From the last token already seen on, so that no pair is counted twice and none is missed.
            let new = sequence.tokens().get(learned_len.saturating_sub(1)..).unwrap_or(&[]);
            self.table.learn(new);
            *learned_len = sequence.tokens().len();
        }
        Ok(())
    }

    fn finish(&mut self, sequence: SeqId) {
        self.learned_len.remove(&sequence);
    }
}

export_plugin! { proposer "bigram-table" => Bigram, "the most frequent successor of each token, over all requests" }
