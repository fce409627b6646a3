//! The draft store: what it refuses, and that a recorded draft_prob is always the row that was drawn from.

use foretoken::drafts::{DraftStore, NO_ROW, TreeSetup, kernel_key, warp_params};
use foretoken_kernels::ops::{WarpScratch, gumbel_argmax, warp};
use foretoken_plugin_api::author::DraftSink;
use foretoken_plugin_api::{ChildMode, DraftError, NoiseKey, SamplingParams};

const VOCAB: usize = 4;

/// A store of one tree with room for `budget` nodes, for a sampler that reads draft_prob if `records`.
fn store(records: bool, budget: u32, params: SamplingParams) -> DraftStore {
    let mut store = DraftStore::new(VOCAB, records);
    store.begin();
    let tree = store.add_tree(TreeSetup { budget, params, ..TreeSetup::default() });
    store.set_batch(std::iter::once(tree), true);
    store
}

fn one_hot(token: usize) -> [f32; VOCAB] {
    std::array::from_fn(|index| if index == token { 50.0 } else { 0.0 })
}

type Lie = fn(&mut DraftStore) -> DraftError;

#[test]
fn lies_are_refused_and_remembered() {
    let cases: [(Lie, bool); 5] = [
        (|store| store.push(0, None, VOCAB as u32).unwrap_err(), true),
        (|store| store.push(0, Some(0), 1).unwrap_err(), true),
        (|store| store.draw(0, None, &[f32::NAN; VOCAB]).unwrap_err(), true),
        (|store| store.draw(0, None, &[0.0; 3]).unwrap_err(), true),
        (
            |store| {
                store.push(0, None, 1).unwrap();
                store.push(0, Some(0), 1).unwrap();
                store.push(0, Some(1), 1).unwrap_err()
            },
            false,
        ),
    ];
    for (lie, is_fault) in cases {
        let mut store = store(true, 2, SamplingParams::default());
        let error = lie(&mut store);
        assert_eq!(store.tree(0).fault, is_fault.then_some(error), "{error}");
    }
    assert_eq!(store(true, 2, SamplingParams::GREEDY).push(1, None, 0), Err(DraftError::NoSuchSequence));
}

#[test]
fn a_chain_has_one_child_per_parent() {
    let mut store = store(true, 4, SamplingParams::default());
    store.set_batch(std::iter::once(0), false);
    store.push(0, None, 1).unwrap();
    assert_eq!(store.push(0, None, 2), Err(DraftError::NotAChain));
}

/// Drafter-invariant samplers: a draw takes the numbers that the target's own sample of that token will take.
#[test]
fn draws_take_the_noise_of_the_token_they_guess() {
    let (params, logits) = (SamplingParams::default(), [0.1, 0.2, 0.3, 0.4]);
    let mut probs = [0.0; VOCAB];
    warp(&logits, &warp_params(params), &mut probs, &mut WarpScratch::new()).unwrap();
    for seed in 0..64 {
        let mut store = DraftStore::new(VOCAB, false);
        let noise = NoiseKey::new(seed, 1);
        let tree = store.add_tree(TreeSetup { budget: 2, branches: false, params, noise, output_index: 5 });
        store.set_batch(std::iter::once(tree), false);
        let (node, first) = store.draw(0, None, &logits).unwrap();
        let (_, second) = store.draw(0, Some(node), &logits).unwrap();
        let sampled = |index| gumbel_argmax(&probs, kernel_key(noise.for_output(index)));
        assert_eq!([first, second], [sampled(5), sampled(6)], "seed {seed}");
    }
}

/// A second draw with other logits would break the law if it were believed: draft_prob is one row per parent.
#[test]
fn a_second_draw_is_from_the_recorded_row() {
    let mut store = store(true, 8, SamplingParams::default());
    assert_eq!(store.draw(0, None, &one_hot(2)).unwrap().1, 2);
    assert_eq!(store.draw(0, None, &one_hot(3)).unwrap().1, 2, "drawn from logits that were not recorded");
    let (probs, rows) = store.probs();
    assert_eq!(rows, 1);
    assert!(probs[2] > 0.99);
    assert_eq!(store.tree(0).modes[0], ChildMode::WithReplacement);
}

#[test]
fn draws_without_replacement_are_distinct_and_come_once() {
    let mut store = store(true, 8, SamplingParams::default());
    let mut out = [(0, 0); 6];
    assert_eq!(store.draw_n(0, None, &[0.1, 0.2, 0.3, 0.4], &mut out), Ok(VOCAB), "no more than the support");
    let mut tokens: Vec<u32> = out[..VOCAB].iter().map(|(_, token)| *token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 1, 2, 3]);
    assert_eq!(store.draw_n(0, None, &[0.0; VOCAB], &mut out), Err(DraftError::MixedChildren));
    assert_eq!(store.push(0, None, 1), Err(DraftError::MixedChildren));
}

/// Without a sampler that reads draft_prob, and at temperature 0, a draw is a guess like any other.
#[test]
fn draws_are_recorded_only_where_they_are_read() {
    for (records, params) in [(false, SamplingParams::default()), (true, SamplingParams::GREEDY)] {
        let mut store = store(records, 4, params);
        store.draw(0, None, &one_hot(1)).unwrap();
        assert_eq!((store.tree(0).prob_rows[0], store.tree(0).modes[0]), (NO_ROW, ChildMode::Deterministic));
    }
}
