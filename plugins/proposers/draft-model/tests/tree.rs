//! Trees: they conform, follow the draft model, do not depend on when the proposer was last asked, and leave the text alone.
#![forbid(unsafe_code)]

#[path = "../../same_text.rs"]
mod same_text;

use std::path::{Path, PathBuf};

use foretoken::config;
use foretoken::plugins::registry::Registry;
use foretoken_draft_model::Tree;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{
    FakeHost, RecordedDraft, Runner, ToyModel, assert_a_pause_changes_no_draft, drafts_when_asked, library,
};
use foretoken_plugin_api::{NodeId, Proposer, SamplingParams, SeqId, Token};
use same_text::assert_same_text_in_fewer_passes;

const VOCAB: usize = 16;
const OPTIONS: [&str; 4] = [
    "tree = { nodes = 9, depth = 4, branch = 3 }",
    "tree = { nodes = 4, depth = 1, branch = 6 }",
    "choices = [[0], [2], [0, 0], [0, 3], [2, 0], [0, 3, 0]]",
    "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 1, 0]]\ncandidates = \"without_replacement\"",
];

fn small() -> ToyModel {
    ToyModel::new(VOCAB, 6).with_order(usize::MAX)
}

fn host() -> FakeHost {
    let host = FakeHost::new(ToyModel::new(VOCAB, 5).with_order(usize::MAX)).with_model("small", small());
    host.with_model("../examples/models/tiny-draft", small())
}

fn options(text: &str) -> String {
    format!("model = \"small\"\n{text}")
}

#[test]
fn it_conforms() {
    for text in OPTIONS {
        conformance::proposer::<Tree>(&Fixture::new(&options(text)).with_host(host)).assert_passed();
    }
}

#[test]
fn a_pause_changes_no_draft() {
    for text in OPTIONS {
        assert_a_pause_changes_no_draft::<Tree>(host, &options(text));
    }
}

/// Tokens by falling logit of the toy after `context`.
fn ranked(context: &[Token]) -> Vec<Token> {
    let logits = small().logits(context);
    let mut order: Vec<Token> = (0..VOCAB as Token).collect();
    order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
    order
}

fn path_to(draft: &RecordedDraft, node: NodeId) -> Vec<Token> {
    let above = (0..draft.len() as NodeId).find(|&other| draft.children(Some(other)).any(|child| child == node));
    let mut path = above.map_or_else(Vec::new, |above| path_to(draft, above));
    path.push(draft.tokens()[node as usize]);
    path
}

#[test]
fn choices_are_the_draft_model_s_ranks_after_each_node_s_own_path() {
    let expected = [vec![0], vec![2], vec![0, 0], vec![0, 3], vec![2, 0], vec![0, 3, 0]];
    for (tokens, draft) in drafts_when_asked::<Tree>(host(), &options(OPTIONS[2]), SamplingParams::GREEDY, |_| false) {
        let ranks_of = |node: NodeId| {
            let (mut context, mut ranks) = (tokens.clone(), Vec::new());
            for token in path_to(&draft, node) {
                ranks.push(ranked(&context).iter().position(|other| *other == token).unwrap());
                context.push(token);
            }
            ranks
        };
        let mut found: Vec<Vec<usize>> = (0..draft.len() as NodeId).map(ranks_of).collect();
        found.sort_by_key(|ranks| (ranks.len(), ranks.clone()));
        let mut wanted = expected.to_vec();
        wanted.sort_by_key(|ranks| (ranks.len(), ranks.clone()));
        assert_eq!(found, wanted);
    }
}

#[test]
fn a_grown_tree_holds_the_most_probable_paths() {
    // With as many branches as tokens and nodes for one level and a bit, the best nodes can be found by hand.
    let text = "tree = { nodes = 20, depth = 2, branch = 16 }";
    let softmax = |context: &[Token]| {
        let logits = small().logits(context);
        let total: f64 = logits.iter().map(|logit| f64::from(*logit).exp()).sum();
        logits.iter().map(|logit| f64::from(*logit).exp() / total).collect::<Vec<f64>>()
    };
    let host = host().shared();
    let mut part = Tree::new(toml::from_str(&options(text)).unwrap(), host.handle()).unwrap();
    let mut runner = Runner::new(&host, &mut part, 256).unwrap();
    runner.admit(&mut part, SeqId(1), &[3, 9, 4, 1], usize::MAX).unwrap();
    let draft = runner.propose(&mut part, &[SeqId(1)], 20).unwrap().into_drafts().remove(0);
    let tokens = runner.tokens(SeqId(1)).to_vec();
    let mut all = Vec::new();
    for (first, probability) in softmax(&tokens).into_iter().enumerate() {
        all.push((vec![first as Token], probability));
        let context: Vec<Token> = tokens.iter().copied().chain([first as Token]).collect();
        let second = softmax(&context).into_iter().enumerate();
        all.extend(second.map(|(token, own)| (vec![first as Token, token as Token], probability * own)));
    }
    all.sort_by(|a, b| b.1.total_cmp(&a.1));
    let mut expected: Vec<Vec<Token>> = all.into_iter().take(20).map(|(path, _)| path).collect();
    let mut found: Vec<Vec<Token>> = (0..draft.len() as NodeId).map(|node| path_to(&draft, node)).collect();
    expected.sort();
    found.sort();
    assert_eq!(found, expected);
}

fn config_file(name: &str) -> PathBuf {
    library("foretoken-draft-model", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(name)
}

#[test]
fn the_config_loads_it_and_it_conforms() {
    let config = config::load(&config_file("tree.toml"), &[]).unwrap();
    let loaded = Registry::new(config.plugins).find(&config.proposers[0]).unwrap();
    assert_eq!(loaded.name(), "tree");
    conformance::part(&loaded, &Fixture::new(&config.proposers[0].options).with_host(host)).assert_passed();
}

#[test]
fn the_text_is_that_of_plain_decoding_in_fewer_passes() {
    let small = "model = \"../examples/models/tiny-draft\"";
    let options = [
        "tree = { nodes = 32, depth = 8, branch = 8 }",
        "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]]",
        "choices = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0]], candidates = \"without_replacement\"",
    ];
    let options = options.map(|shape| format!("{small}, {shape}"));
    assert_same_text_in_fewer_passes(&config_file("tree.toml"), &options.each_ref().map(String::as_str));
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let refusal = |text: &str| {
        let host = host().shared();
        let made = Tree::new(toml::from_str(&options(text)).unwrap(), host.handle());
        made.err().map(|error| error.message).unwrap_or_default()
    };
    assert!(refusal("tree = {}\nchoices = [[0]]").contains("both given"));
    assert!(refusal("tree = { branch = 0 }").contains("above 0"));
    assert!(refusal("choices = [[0, 0]]").contains("without [0]"));
    assert!(refusal("candidates = \"without_replacement\"").contains("needs choices"));
    let message = refusal("choices = [[1]]\ncandidates = \"without_replacement\"");
    assert!(message.contains("ranks"), "{message}");
}
