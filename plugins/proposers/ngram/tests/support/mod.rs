//! What the tests share: a proposer from a table of options, and its draft for one text.
#![allow(dead_code)]

use foretoken_ngram::Ngram;
use foretoken_plugin_api::testkit::{
    DrawNoise, FakeHost, ProposeInput, RecordingDrafts, SinkRules, SinkSequence, ToyModel, with_propose_batch,
};
use foretoken_plugin_api::{Drafts, Proposer, Result, Token};

pub const VOCAB: usize = 64;

/// A proposer with these options, in TOML.
pub fn proposer(options: &str) -> Result<Ngram> {
    let options = toml::from_str(options).map_err(|error| foretoken_plugin_api::Error::options(error.to_string()))?;
    Ngram::new(options, FakeHost::new(ToyModel::new(VOCAB, 1)).shared().handle())
}

/// One draft per `(id, tokens, budget)`, in one batch.
pub fn drafts(ngram: &mut Ngram, sequences: &[(u64, &[Token], u32)]) -> Vec<Vec<Token>> {
    let inputs: Vec<_> = sequences.iter().map(|(id, tokens, budget)| ProposeInput::new(*id, tokens, *budget)).collect();
    let rules = SinkRules { vocab_size: VOCAB, tree: false, noise: DrawNoise::ByOutput };
    let mut sink = RecordingDrafts::new(rules, inputs.iter().map(|input| SinkSequence::of(&input.view())).collect());
    with_propose_batch(&inputs, |batch| ngram.propose(&batch, &mut Drafts::new(&mut sink))).unwrap();
    assert_eq!(sink.refusals(), []);
    sink.drafts().iter().map(|draft| draft.path_tokens(draft.len().checked_sub(1).map(|last| last as u32))).collect()
}

/// The draft for one text.
pub fn drafted(ngram: &mut Ngram, id: u64, tokens: &[Token], budget: u32) -> Vec<Token> {
    drafts(ngram, &[(id, tokens, budget)]).remove(0)
}
