//! What is drafted, what is kept, and how many rows that takes.
#![forbid(unsafe_code)]

mod support;

use foretoken_draft_model::DraftModel;
use foretoken_plugin_api::testkit::{FakeHost, Runner, ToyModel};
use foretoken_plugin_api::{Proposer, SamplingParams, SeqId, Token, TokenText};
use support::host::pack;
use support::{Rig, Setup, VOCAB};

const DISCARD: &str = "kv_strategy = \"discard\"";

fn prompt(len: usize) -> Vec<Token> {
    (0..len as Token).map(|index| (index * 7 + index / 5) % VOCAB as Token).collect()
}

#[test]
fn the_draft_is_the_models_own_greedy_continuation() {
    for options in ["", DISCARD, "draft_sampling = \"deterministic\"", "num_speculative_tokens = 1"] {
        let mut rig = Rig::new(Setup { options, ..Setup::default() });
        rig.admit(1, &prompt(9));
        for keep_len in [0, 5, 2, 1, 5, 5, 0, 4, 3] {
            let expected = rig.expected(1, rig.proposer.needs().max_draft);
            assert_eq!(rig.step(&[(1, 5)], keep_len), [expected], "{options}");
        }
    }
}

#[test]
fn a_draft_ends_where_the_model_is_unsure() {
    let mut rig = Rig::new(Setup { options: "min_draft_prob = 0.11", ..Setup::default() });
    rig.admit(1, &prompt(9));
    let mut lengths = Vec::new();
    for keep_len in [0, 5, 2, 1, 5, 5, 0, 4, 3] {
        let mut context = rig.live[&1].tokens.clone();
        let sure = rig.expected(1, 5).into_iter().take_while(|&token| {
            let logits = rig.host.toy.logits(&context);
            context.push(token);
            let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
            logits[token as usize].exp() / total >= 0.11
        });
        let expected: Vec<Token> = sure.collect();
        lengths.push(expected.len());
        assert_eq!(rig.step(&[(1, 5)], keep_len.min(expected.len())), [expected]);
    }
    lengths.sort_unstable();
    assert!(lengths[0] < lengths[8], "drafts of several lengths: {lengths:?}");
}

#[test]
fn a_steady_step_runs_one_row_per_drafted_token() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(40));
    rig.admit(2, &prompt(30));
    let both = [(1, 5), (2, 5)];
    rig.step(&both, 2);
    assert_eq!(rig.passes(), [40 + 30, 2, 2, 2, 2], "the prompts once, anchors included");
    for keep_len in [0, 1, 4, 5] {
        rig.step(&both, keep_len);
        assert_eq!(rig.passes(), [2, 2, 2, 2, 2], "what was kept of the last step had run");
    }
    rig.step(&both, 0);
    assert_eq!(rig.passes(), [4, 2, 2, 2, 2], "all five were kept, and the last one had not run");
}

#[test]
fn discarding_runs_the_kept_tokens_again() {
    let mut rig = Rig::new(Setup { options: DISCARD, ..Setup::default() });
    rig.admit(1, &prompt(10));
    rig.step(&[(1, 5)], 3);
    rig.passes();
    rig.step(&[(1, 5)], 0);
    assert_eq!(rig.passes(), [1 + 3 + 1, 1, 1, 1, 1], "the old anchor, three kept tokens, the anchor");
}

#[test]
fn kept_rows_hold_what_their_slots_should() {
    for keep_len in 0..=5 {
        let mut rig = Rig::new(Setup::default());
        rig.admit(1, &prompt(10));
        rig.step(&[(1, 5)], keep_len);
        let committed = rig.live[&1].clone();
        assert_eq!(rig.valid(1), 9 + 1 + keep_len.min(4), "the fifth drafted token never ran");
        for (position, slot) in committed.slots[..rig.valid(1)].iter().enumerate() {
            assert_eq!(rig.row(*slot), pack(committed.tokens[position], position as u32), "position {position}");
        }
    }
}

#[test]
fn budgets_may_differ_and_be_zero() {
    let mut rig = Rig::new(Setup::default());
    (1..=4).for_each(|id| rig.admit(id, &prompt(5 + id as usize)));
    let expected = [rig.expected(1, 3), vec![], rig.expected(3, 5), rig.expected(4, 1)];
    assert_eq!(rig.step(&[(1, 3), (2, 0), (3, 9), (4, 1)], 2), expected);
    assert_eq!(rig.passes(), [6 + 8 + 9, 2, 2, 1, 1]);
    assert_eq!(rig.valid(2), 0, "not asked, not brought up");
    assert!(rig.step(&[(2, 0)], 0)[0].is_empty());
    assert!(rig.passes().is_empty());
}

#[test]
fn a_batch_larger_than_the_scratch_drafts_in_groups_and_keeps_the_last() {
    let mut rig = Rig::new(Setup { max_sequences: 3, ..Setup::default() });
    assert_eq!(rig.proposer.needs().lanes[0].scratch_rows, 3 * 5);
    (1..=7).for_each(|id| rig.admit(id, &prompt(4 + id as usize)));
    let all: Vec<(u64, u32)> = (1..=7).map(|id| (id, 5)).collect();
    for keep_len in [2, 5, 0] {
        let expected: Vec<_> = all.iter().map(|&(id, _)| rig.expected(id, 5)).collect();
        assert_eq!(rig.step(&all, keep_len), expected);
    }
    let missing = |id: u64| rig.live[&id].slots.len() - rig.valid(id);
    assert_eq!((1..=7).map(missing).collect::<Vec<_>>(), [1, 1, 1, 1, 0, 0, 0], "groups of 1, 3 and 3");
}

#[test]
fn a_long_prompt_is_brought_up_in_bounded_passes() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(1300));
    rig.admit(2, &prompt(20));
    let expected = [rig.expected(1, 2), rig.expected(2, 2)];
    assert_eq!(rig.step(&[(1, 2), (2, 2)], 0), expected);
    assert_eq!(rig.passes(), [512, 512, 276 + 20, 2]);
}

#[test]
fn forks_compute_the_shared_prompt_once() {
    for mark_first in [false, true] {
        let mut rig = Rig::new(Setup::default());
        rig.admit(1, &prompt(100));
        if mark_first {
            rig.step(&[(1, 5)], 5);
            rig.finish(1);
            rig.admit(1, &prompt(100));
        }
        rig.passes();
        (2..=4).for_each(|child| rig.fork(1, child, child as Token));
        let all: Vec<(u64, u32)> = (1..=4).map(|id| (id, 3)).collect();
        for keep_len in [1, 3, 0] {
            let expected: Vec<_> = all.iter().map(|&(id, _)| rig.expected(id, 3)).collect();
            assert_eq!(rig.step(&all, keep_len), expected);
        }
        assert_eq!(rig.passes()[..4], [100, 3, 4, 4], "the prompt and one anchor, then the other anchors");
    }
}

#[test]
fn a_preempted_sequence_is_brought_up_again() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(10));
    rig.admit(2, &prompt(12));
    rig.step(&[(1, 5), (2, 5)], 3);
    rig.preempt(1);
    assert_eq!(rig.valid(1), 0);
    let expected = [rig.expected(2, 5), rig.expected(1, 5)];
    assert_eq!(rig.step(&[(2, 5), (1, 5)], 1), expected);
    rig.finish(2);
    let expected = rig.expected(1, 5);
    assert_eq!(rig.step(&[(1, 5)], 1), [expected]);
}

#[test]
fn a_sequence_preempted_after_its_draft_keeps_nothing() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(10));
    let draft = rig.propose(&[(1, 5)]).unwrap()[0].tokens().to_vec();
    rig.proposer.finish(SeqId(1));
    rig.accept(&[(1, draft[..2].to_vec(), 9)]);
    assert_eq!(rig.valid(1), 9, "the prompt's slots, nothing of the draft");
    let expected = rig.expected(1, 5);
    assert_eq!(rig.step(&[(1, 5)], 0), [expected]);
}

#[test]
fn another_proposers_draft_keeps_only_what_agrees() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(10));
    let draft = rig.propose(&[(1, 5)]).unwrap()[0].tokens().to_vec();
    let other = (draft[2] + 1) % VOCAB as Token;
    rig.accept(&[(1, vec![draft[0], draft[1], other, draft[3]], 9)]);
    assert_eq!(rig.valid(1), 9 + 1 + 2, "the old anchor and two tokens that both drafts had");
    let expected = rig.expected(1, 5);
    assert_eq!(rig.step(&[(1, 5)], 0), [expected]);
}

#[test]
fn a_draft_is_kept_at_its_own_anchor_only() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(10));
    rig.propose(&[(1, 5)]).unwrap();
    // It missed a commit; the anchor is the same token again, three positions later.
    let anchor = rig.live[&1].tokens[9];
    rig.append(1, &[6, 7], anchor);
    rig.accept(&[(1, vec![], 4)]);
    let marks = rig.host.fake.fake_lanes();
    assert_eq!((rig.valid(1), marks.valid_until(&rig.live[&1].slots[12..])), (9, vec![0]));
    let expected = rig.expected(1, 5);
    assert_eq!(rig.step(&[(1, 5)], 0), [expected]);
}

#[test]
fn the_draft_models_context_ends_the_draft() {
    let mut rig = Rig::new(Setup { max_positions: 16, ..Setup::default() });
    rig.admit(1, &prompt(14));
    // Positions 13, 14 and 15 can run: the anchor's and two drafted tokens', which give three guesses.
    let expected = rig.expected(1, 3);
    assert_eq!(rig.step(&[(1, 5)], 3), [expected]);
    assert_eq!(rig.step(&[(1, 5)], 0), [Vec::<Token>::new()], "the anchor is at position 17");
}

#[test]
fn a_failed_pass_is_an_error_and_costs_nothing_later() {
    let mut rig = Rig::new(Setup::default());
    rig.admit(1, &prompt(10));
    rig.step(&[(1, 5)], 2);
    rig.set_broken(true);
    assert_eq!(rig.propose(&[(1, 5)]).unwrap_err().message, "the draft model is broken");
    rig.accept(&[(1, vec![], 5)]);
    rig.set_broken(false);
    let expected = rig.expected(1, 5);
    assert_eq!(rig.step(&[(1, 5)], 5), [expected]);
}

#[test]
fn above_temperature_0_tokens_are_drawn_unless_told_otherwise() {
    let sampling = SamplingParams { temperature: 1.0, ..SamplingParams::GREEDY };
    let drafts = |options| {
        let mut rig = Rig::new(Setup { options, sampling, ..Setup::default() });
        rig.admit(1, &prompt(10));
        let expected = rig.expected(1, 5);
        (rig.propose(&[(1, 5)]).unwrap().remove(0), expected)
    };
    let (drawn, greedy) = drafts("");
    assert!(drawn.has_draws() && drawn.tokens() != greedy);
    let (pushed, greedy) = drafts("draft_sampling = \"deterministic\"");
    assert!(!pushed.has_draws());
    assert_eq!(pushed.tokens(), greedy);
}

#[test]
fn drafts_of_another_vocabulary_are_its_best_shared_tokens() {
    let text = |byte: u8| TokenText { bytes: vec![byte], is_special: false };
    // Of the draft model's 20 tokens, 12 are the target's: token i is the target's i + 4, wherever there is one.
    let (target, draft): (Vec<_>, Vec<_>) = ((100..116).map(text).collect(), (104..124).map(text).collect());
    let small = ToyModel::new(20, 6).with_order(usize::MAX);
    let host = FakeHost::new(ToyModel::new(16, 5).with_order(usize::MAX)).with_model("small", small.clone());
    let host = host.with_token_texts("toy", target).with_token_texts("small", draft).shared();
    let options = "model = \"small\"\nvocabulary = \"intersection\"\nnum_speculative_tokens = 4";
    let mut part = DraftModel::new(toml::from_str(options).unwrap(), host.handle()).unwrap();
    let mut runner = Runner::new(&host, &mut part, 256).unwrap();
    let prompt = [7, 12, 5, 15, 9];
    runner.admit(&mut part, SeqId(1), &prompt, usize::MAX).unwrap();
    let drafts = runner.propose(&mut part, &[SeqId(1)], 4).unwrap().into_drafts();
    let mut context: Vec<Token> = runner.tokens(SeqId(1)).iter().map(|token| token.saturating_sub(4)).collect();
    for drafted in drafts[0].tokens() {
        let logits = small.logits(&context);
        let best = (0..12).fold(0, |best, token| if logits[token] > logits[best] { token } else { best });
        assert_eq!(*drafted, best as Token + 4);
        context.push(best as Token);
    }
    assert_eq!(drafts[0].len(), 4);
}
