//! The recording sink refuses what the engine refuses, one refusal a test row, and leaves the draft as it was.

use foretoken_plugin_api::testkit::{DrawNoise, RecordingDrafts, SinkRules, SinkSequence, target_prob};
use foretoken_plugin_api::{ChildMode, DraftError, Drafts, NoiseKey, SamplingParams};

const LOGITS: [f32; 4] = [0.5, -1.0, 2.0, 0.0];

fn sink(tree: bool, budget: usize, sampling: SamplingParams) -> RecordingDrafts {
    let sequence = SinkSequence { budget, output_index: 3, sampling, noise: NoiseKey::new(9, 0) };
    RecordingDrafts::new(SinkRules { vocab_size: 4, tree, noise: DrawNoise::ByOutput }, vec![sequence])
}

#[test]
fn every_wrong_guess_is_refused_by_its_own_error() {
    type Guess = fn(&mut Drafts<'_>) -> Result<(), DraftError>;
    let cases: [(DraftError, Guess); 10] = [
        (DraftError::NoSuchSequence, |drafts| drafts.push(1, None, 0).map(drop)),
        (DraftError::TokenOutOfVocabulary, |drafts| drafts.push(0, Some(0), 4).map(drop)),
        (DraftError::NoSuchParent, |drafts| drafts.push(0, Some(1), 0).map(drop)),
        (DraftError::NotAChain, |drafts| drafts.push(0, None, 0).map(drop)),
        (DraftError::MixedChildren, |drafts| drafts.draw(0, None, &LOGITS).map(drop)),
        (DraftError::MixedChildren, |drafts| drafts.draw_n(0, None, &LOGITS, 1, &mut Vec::new())),
        (DraftError::BadLogits, |drafts| drafts.draw(0, Some(0), &LOGITS[1..]).map(drop)),
        (DraftError::BadLogits, |drafts| drafts.draw(0, Some(0), &[0.0, f32::NAN, 0.0, 0.0]).map(drop)),
        (DraftError::BadLogits, |drafts| drafts.draw(0, Some(0), &[0.0, f32::INFINITY, 0.0, 0.0]).map(drop)),
        (DraftError::BadLogits, |drafts| drafts.draw(0, Some(0), &[f32::NEG_INFINITY; 4]).map(drop)),
    ];
    for (expected, guess) in cases {
        let mut sink = sink(false, 3, SamplingParams::default());
        let mut drafts = Drafts::new(&mut sink);
        drafts.push(0, None, 1).unwrap();
        assert_eq!(guess(&mut drafts).unwrap_err(), expected);
        assert_eq!(sink.drafts()[0].tokens(), [1]);
        assert!(sink.faults().count() == 1 || expected == DraftError::NoSuchSequence, "{expected}");
    }
}

#[test]
fn a_used_up_budget_is_not_a_fault() {
    let mut sink = sink(true, 1, SamplingParams::default());
    let mut drafts = Drafts::new(&mut sink);
    drafts.push(0, None, 1).unwrap();
    assert_eq!(drafts.remaining(0), 0);
    assert_eq!(drafts.push(0, Some(0), 1).unwrap_err(), DraftError::BudgetExhausted);
    assert_eq!((sink.faults().count(), sink.refusals().len()), (0, 1));
}

#[test]
fn draws_record_the_distribution_they_came_from() {
    let sampling = SamplingParams { temperature: 0.5, top_k: 3, ..SamplingParams::default() };
    let mut sink = sink(true, 8, sampling);
    let mut drafts = Drafts::new(&mut sink);
    let mut children = Vec::new();
    drafts.draw_n(0, None, &LOGITS, 4, &mut children).unwrap();
    let (node, _) = drafts.draw(0, Some(1), &LOGITS).unwrap();
    let draft = &sink.drafts()[0];
    // top_k leaves three tokens, and without replacement none comes twice.
    let mut tokens: Vec<u32> = children.iter().map(|(_, token)| *token).collect();
    tokens.sort_unstable();
    assert_eq!(tokens, [0, 2, 3]);
    assert_eq!(draft.children_mode(None), Some(ChildMode::WithoutReplacement));
    assert_eq!(draft.children_mode(Some(1)), Some(ChildMode::WithReplacement));
    assert_eq!(draft.draft_prob(None).unwrap(), target_prob(&LOGITS, &sampling));
    assert_eq!((draft.parent(node), draft.depth(Some(node))), (Some(1), 2));
}

#[test]
fn a_parent_has_one_draft_prob_whatever_comes_later() {
    let mut sink = sink(true, 8, SamplingParams::default());
    let mut drafts = Drafts::new(&mut sink);
    let only_token_1 = [f32::NEG_INFINITY, 0.0, f32::NEG_INFINITY, f32::NEG_INFINITY];
    drafts.draw(0, None, &only_token_1).unwrap();
    assert_eq!(drafts.draw(0, None, &LOGITS).unwrap(), (1, 1));
    drafts.draw_n(0, Some(0), &LOGITS, 2, &mut Vec::new()).unwrap();
    let again = drafts.draw_n(0, Some(0), &LOGITS, 1, &mut Vec::new());
    assert_eq!(again.unwrap_err(), DraftError::MixedChildren);
    assert_eq!(sink.drafts()[0].draft_prob(None).unwrap(), [0.0, 1.0, 0.0, 0.0]);
}

#[test]
fn at_temperature_0_a_draw_is_a_push_of_the_argmax() {
    let mut sink = sink(true, 8, SamplingParams::GREEDY);
    let mut drafts = Drafts::new(&mut sink);
    assert_eq!(drafts.draw(0, None, &LOGITS).unwrap(), (0, 2));
    drafts.push(0, None, 1).unwrap();
    let draft = &sink.drafts()[0];
    assert_eq!((draft.children_mode(None), draft.draft_prob(None)), (Some(ChildMode::Deterministic), None));
}

#[test]
fn the_warp_keeps_what_its_parameters_keep() {
    let kept = |params: SamplingParams| -> Vec<usize> {
        let probs = target_prob(&LOGITS, &params);
        assert!((probs.iter().sum::<f64>() - 1.0).abs() < 1e-12);
        (0..4).filter(|&token| probs[token] > 0.0).collect()
    };
    let all = SamplingParams::default();
    assert_eq!(kept(all), [0, 1, 2, 3]);
    assert_eq!(kept(SamplingParams { top_k: 2, ..all }), [0, 2]);
    assert_eq!(kept(SamplingParams { top_p: 0.5, ..all }), [2]);
    assert_eq!(kept(SamplingParams { top_p: 0.8, ..all }), [0, 2]);
    assert_eq!(kept(SamplingParams { min_p: 0.2, ..all }), [0, 2]);
    assert_eq!(kept(SamplingParams::GREEDY), [2]);
}
