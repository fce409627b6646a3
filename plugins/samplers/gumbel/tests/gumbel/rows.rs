//! Broken rows are errors that name their sequence, unless nothing looks at them.

use foretoken_gumbel::Gumbel;
use foretoken_plugin_api::testkit::{RecordedDraft, VerifyInput, with_verify_batch};
use foretoken_plugin_api::{ChildMode, NoiseKey, Sampler, SamplingParams, SeqId};

/// Verifies a chain of two under sequence 42, with these rows.
fn verify(sampling: SamplingParams, rows: [[f32; 3]; 3]) -> String {
    let mut draft = RecordedDraft::default();
    let first = draft.add(None, 1, ChildMode::Deterministic);
    draft.add(Some(first), 1, ChildMode::Deterministic);
    let logits = rows.iter().map(|row| row.to_vec()).collect();
    let input = VerifyInput { id: SeqId(42), output_index: 0, sampling, noise: NoiseKey::new(7, 0), draft, logits };
    let done = with_verify_batch(&[input], false, |batch, verdicts| Gumbel::default().verify(&batch, verdicts));
    done.map_or_else(|error| error.to_string(), |_| "no error".to_owned())
}

const SURE: [f32; 3] = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY];

#[test]
fn broken_rows_are_errors_that_name_the_sequence_and_the_row() {
    for (broken, what) in
        [([0.0, f32::NAN, 0.0], "NaN"), ([f32::NEG_INFINITY; 3], "inf"), ([0.0, f32::INFINITY, 0.0], "inf")]
    {
        for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
            let anchor = verify(sampling, [broken, SURE, SURE]);
            assert!(anchor.starts_with("sequence 42, row of the anchor: ") && anchor.contains(what), "{anchor}");
            let node = verify(sampling, [SURE, SURE, broken]);
            assert!(node.starts_with("sequence 42, row of draft node 1: ") && node.contains(what), "{node}");
        }
    }
}

#[test]
fn a_broken_row_off_the_kept_path_harms_nobody() {
    let rows = [[0.0, f32::NEG_INFINITY, f32::NEG_INFINITY], [f32::NAN; 3], [f32::NAN; 3]];
    for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
        assert_eq!(verify(sampling, rows), "no error");
    }
}
