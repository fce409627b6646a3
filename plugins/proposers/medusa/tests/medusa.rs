//! The proposer on a toy: it conforms, and drafts what its heads say.
#![forbid(unsafe_code)]

use foretoken_medusa::Medusa;
use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, FakeTensors, RecordedDraft, Runner, ToyModel};
use foretoken_plugin_api::{Proposer, SeqId};

const VOCAB: usize = 16;

/// Three plain heads for the toy, whose hidden rows are its logits: head i shifts them by i + 1 places. No bias, and an
/// inner layer that only silu bends, which keeps the order of what is positive.
fn heads() -> FakeTensors {
    (0..3).fold(FakeTensors::new(), |tensors, head| {
        let matrix = |shift: usize| {
            let at = |index: usize| f32::from(u8::from(index % VOCAB == (index / VOCAB + shift) % VOCAB));
            (0..VOCAB * VOCAB).map(at).collect::<Vec<f32>>()
        };
        tensors
            .with(&format!("{head}.0.weight"), &[VOCAB, VOCAB], matrix(0))
            .with(&format!("{head}.0.bias"), &[VOCAB], vec![20.0; VOCAB])
            .with(&format!("{head}.2.weight"), &[VOCAB, VOCAB], matrix(head + 1))
    })
}

fn host() -> FakeHost {
    FakeHost::new(ToyModel::new(VOCAB, 5)).with_tensors("heads", heads())
}

fn options(text: &str) -> String {
    format!("model = \"heads\"\n{text}")
}

#[test]
fn it_conforms() {
    for text in [
        "",
        "num_speculative_tokens = 2\ndraft_sampling = \"deterministic\"",
        "tree = { nodes = 9, depth = 3, branch = 4 }",
        "choices = [[0], [1], [0, 0], [0, 1], [0, 0, 0]]",
    ] {
        conformance::proposer::<Medusa>(&Fixture::new(&options(text)).with_host(host)).assert_passed();
    }
}

/// The draft after a prompt, and the toy's logits of the token before the anchor in falling order.
fn draft(text: &str, budget: u32) -> (RecordedDraft, Vec<usize>) {
    let host = host().shared();
    let mut part = Medusa::new(toml::from_str(&options(text)).unwrap(), host.handle()).unwrap();
    let mut runner = Runner::new(&host, &mut part, 64).unwrap();
    runner.admit(&mut part, SeqId(1), &[3, 9, 4, 1], usize::MAX).unwrap();
    let logits = host.toy().logits(&[3, 9, 4, 1]);
    let mut order: Vec<usize> = (0..VOCAB).collect();
    order.sort_by(|&a, &b| logits[b].total_cmp(&logits[a]));
    let draft = runner.propose(&mut part, &[SeqId(1)], budget).unwrap().into_drafts().remove(0);
    (draft, order)
}

/// The token that head `head` ranks at `rank`: its output row o reads input o + head + 1.
fn guess(order: &[usize], head: usize, rank: usize) -> u32 {
    ((order[rank] + VOCAB - head - 1) % VOCAB) as u32
}

#[test]
fn a_chain_is_each_head_s_best_guess() {
    let (draft, order) = draft("draft_sampling = \"deterministic\"", 9);
    assert_eq!(draft.tokens(), [0, 1, 2].map(|head| guess(&order, head, 0)));
}

#[test]
fn choices_are_ranks_and_a_small_budget_takes_the_first() {
    let text = "choices = [[0, 0], [0], [1], [1, 2], [0, 0, 1]]";
    let (whole, order) = draft(text, 9);
    let expected = [(0, 0), (0, 1), (1, 0), (1, 2), (2, 1)].map(|(head, rank)| guess(&order, head, rank));
    assert_eq!(whole.tokens(), expected);
    assert_eq!(whole.children(None).collect::<Vec<_>>(), [0, 1]);
    assert_eq!(whole.children(Some(0)).collect::<Vec<_>>(), [2]);
    assert_eq!(whole.children(Some(1)).collect::<Vec<_>>(), [3]);
    assert_eq!(whole.children(Some(2)).collect::<Vec<_>>(), [4]);
    assert_eq!(draft(text, 3).0.tokens(), &expected[..3]);
}

#[test]
fn options_that_do_not_fit_are_refused() {
    let refusal = |text: &str| {
        let host = host().shared();
        let made = Medusa::new(toml::from_str(&options(text)).unwrap(), host.handle());
        made.err().map(|error| error.message).unwrap_or_default()
    };
    assert!(refusal("num_speculative_tokens = 4").contains("expected 1 to 3"));
    assert!(refusal("num_speculative_tokens = 0").contains("expected 1 to 3"));
    assert!(refusal("tree = {}\nchoices = [[0]]").contains("both given"));
    assert!(refusal("choices = []").contains("choices is empty"));
    assert!(refusal("choices = [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]]").contains("at most 3"));
    assert!(refusal("choices = [[16]]").contains("below 16"));
    assert!(refusal("tree = { depth = 0 }").contains("above 0"));
}
