//! Temperature 0 is plain decoding's text under any draft; broken rows are errors that name their sequence.

use foretoken_plugin_api::types::verdict::DraftTree;
use foretoken_plugin_api::{
    ChildMode, NO_PARENT, NoiseKey, Sampler, SamplingParams, SeqId, TensorView, Token, Verdicts, VerifyBatch,
    VerifySequence,
};
use foretoken_rejection::chance::Philox;
use foretoken_rejection::{Block, Rejection};

use crate::play::{CHAINS, MODES, Shape, TREES, play, verdict};
use crate::world::{RELATIONS, World};

fn argmax(row: &[f32]) -> Token {
    (1..row.len() as Token).fold(0, |best, id| if row[id as usize] > row[best as usize] { id } else { best })
}

fn plain(world: &World, len: usize) -> Vec<Token> {
    let mut output = Vec::new();
    (0..len).for_each(|_| output.push(argmax(&world.target_logits(&output))));
    output
}

fn assert_plain(sampler: &mut impl Sampler) {
    for relation in RELATIONS {
        let world = World { sampling: SamplingParams::GREEDY, ..World::new(7, 4, relation) };
        let plain = plain(&world, 400);
        for parents in CHAINS.into_iter().chain(TREES) {
            for mode in MODES {
                let rule = &mut |batch: &VerifyBatch<'_>, _: &mut dyn foretoken_rejection::chance::Chance| {
                    verdict(sampler, batch)
                };
                let output = play(&world, &Shape::new(parents, mode), 400, 1, &mut Philox, rule);
                assert_eq!(output, plain, "{relation:?}, {parents:?}, {mode:?}");
            }
        }
    }
}

#[test]
fn greedy_text_is_the_argmax_path_whatever_is_drafted() {
    assert_plain(&mut Rejection::default());
    assert_plain(&mut Block::default());
}

/// Verifies a chain of two under sequence 42, with these rows.
fn verify(sampler: &mut impl Sampler, sampling: SamplingParams, rows: &[[f32; 3]; 3], mode: ChildMode) -> String {
    let (prob_rows, modes) = ([u32::MAX; 3], [mode; 3]);
    let tree = DraftTree::new(&[1, 1], &[NO_PARENT, 0], &modes, &prob_rows);
    let sequences = [VerifySequence::new(SeqId(42), 0, 0, sampling, NoiseKey::new(7, 0)).with_tree(tree)];
    let batch =
        VerifyBatch::new(TensorView::from_f32(rows.as_flattened(), 3, 3), TensorView::from_f32(&[], 0, 3), &sequences);
    let (mut next_tokens, mut keep_lens, mut keep) = ([0], [0], [0; 2]);
    let mut verdicts = Verdicts::new(&mut next_tokens, &mut keep_lens, &mut keep, 2);
    sampler.verify(&batch, &mut verdicts).map_or_else(|error| error.to_string(), |()| "no error".to_owned())
}

fn assert_named(sampler: &mut impl Sampler) {
    const SURE: [f32; 3] = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];
    for (broken, what) in
        [([0.0, f32::NAN, 0.0], "NaN"), ([f32::NEG_INFINITY; 3], "inf"), ([0.0, f32::INFINITY, 0.0], "inf")]
    {
        for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
            let anchor = verify(sampler, sampling, &[broken, SURE, SURE], ChildMode::Deterministic);
            assert!(anchor.starts_with("sequence 42, row of the anchor: ") && anchor.contains(what), "{anchor}");
            let node = verify(sampler, sampling, &[SURE, SURE, broken], ChildMode::Deterministic);
            assert!(node.starts_with("sequence 42, row of draft node 1: ") && node.contains(what), "{node}");
        }
    }
    let unrecorded = verify(sampler, SamplingParams::default(), &[SURE; 3], ChildMode::WithReplacement);
    assert!(unrecorded.contains("no draft_prob is recorded"), "{unrecorded}");
}

#[test]
fn broken_rows_are_errors_that_name_the_sequence_and_the_row() {
    assert_named(&mut Rejection::default());
    assert_named(&mut Block::default());
}

#[test]
fn a_broken_row_off_the_kept_path_harms_nobody() {
    let rows = [[0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], [f32::NAN; 3], [f32::NAN; 3]];
    for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
        assert_eq!(verify(&mut Rejection::default(), sampling, &rows, ChildMode::Deterministic), "no error");
        assert_eq!(verify(&mut Block::default(), sampling, &rows, ChildMode::Deterministic), "no error");
    }
}
