//! What the tests share: a proposer from a table of options, and its drafts.
#![allow(dead_code)]

use foretoken_plugin_api::testkit::{
    DrawNoise, FakeHost, ProposeInput, RecordedDraft, RecordingDrafts, SinkRules, SinkSequence, ToyModel,
    with_propose_batch,
};
use foretoken_plugin_api::{Drafts, NodeId, Proposer, Result, Token};
use foretoken_suffix::Suffix;

pub const VOCAB: usize = 64;

/// A proposer with these options, in TOML.
pub fn proposer(options: &str) -> Result<Suffix> {
    let options = toml::from_str(options).map_err(|error| foretoken_plugin_api::Error::options(error.to_string()))?;
    Suffix::new(options, FakeHost::new(ToyModel::new(VOCAB, 1)).shared().handle())
}

/// The drafts for a batch.
pub fn propose(suffix: &mut Suffix, inputs: &[ProposeInput], tree: bool) -> Vec<RecordedDraft> {
    let rules = SinkRules { vocab_size: VOCAB, tree, noise: DrawNoise::ByOutput };
    let mut sink = RecordingDrafts::new(rules, inputs.iter().map(|input| SinkSequence::of(&input.view())).collect());
    with_propose_batch(inputs, |batch| suffix.propose(&batch, &mut Drafts::new(&mut sink))).unwrap();
    assert_eq!(sink.refusals(), []);
    sink.into_drafts()
}

/// One chain per `(id, tokens, budget)`, in one batch.
pub fn drafts(suffix: &mut Suffix, sequences: &[(u64, &[Token], u32)]) -> Vec<Vec<Token>> {
    let inputs: Vec<_> = sequences.iter().map(|(id, tokens, budget)| ProposeInput::new(*id, tokens, *budget)).collect();
    let drafts = propose(suffix, &inputs, false);
    drafts.iter().map(|draft| draft.path_tokens(draft.len().checked_sub(1).map(|last| last as u32))).collect()
}

/// The chain for one text.
pub fn drafted(suffix: &mut Suffix, id: u64, tokens: &[Token], budget: u32) -> Vec<Token> {
    drafts(suffix, &[(id, tokens, budget)]).remove(0)
}

/// The tree for one text.
pub fn tree(suffix: &mut Suffix, tokens: &[Token], budget: u32) -> Vec<(Option<NodeId>, Token)> {
    let draft = propose(suffix, &[ProposeInput::new(1, tokens, budget)], true).remove(0);
    (0..draft.len()).map(|node| (draft.parent(node as NodeId), draft.tokens()[node])).collect()
}
