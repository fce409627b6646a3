//! Faulty parts: a proposer's faults cost speed only; the faults of other kinds end the requests they touch, clearly.

use foretoken::{Engine, Event, FinishReason, Request};

use super::support::*;

fn faulty(name: &str, max_faults: u32) -> Engine {
    let dirs = format!("dirs = [{:?}, {:?}]", build_folder(), build_folder().join("examples"));
    let (proposer, plugins) = (format!("[proposer]\nplugin = \"{name}\"\n"), format!("[plugins]\n{dirs}\n"));
    engine(&format!("{proposer}{plugins}max_faults = {max_faults}\n"))
}

fn contained(sampling: &foretoken::config::Sampling) {
    let mut plain = engine(PLAIN);
    let prompts: Vec<Vec<u32>> = (0..100).map(|index| vec![0, 5 + index, 40 + index % 9, 11]).collect();
    let reference = tokens(&run(&mut plain, &prompts, sampling, 10));
    for name in ["panics", "out-of-vocabulary", "cycles", "too-many", "nan", "errs"] {
        for max_faults in [3, 1_000_000] {
            let mut engine = faulty(name, max_faults);
            let found = tokens(&run(&mut engine, &prompts, sampling, 10));
            assert!(found == reference, "{name}, max_faults {max_faults}: tokens differ from plain decoding");
            let (_, faults, last) = engine.faults().next().expect("one proposer");
            if name == "too-many" {
                // Being told that the budget is used up is no fault.
                assert_eq!(faults, 0);
                continue;
            }
            assert!(faults >= 3, "{name}: only {faults} faults were noticed");
            assert!(max_faults != 3 || faults == 3, "{name}: called {faults} times after its quarantine");
            assert!(last.is_some_and(|last| !last.is_empty()));
        }
    }
}

#[test]
fn faulty_proposers_change_no_token_greedy() {
    contained(&greedy(20));
}

#[test]
fn faulty_proposers_change_no_token_gumbel() {
    contained(&sampled(20, 5));
}

/// Runs two requests and returns how they ended and how many tokens each has.
fn ends(parts: &str) -> Vec<(FinishReason, usize)> {
    let mut engine = engine(parts);
    for prompt in [vec![0, 1, 2], vec![0, 9]] {
        engine.submit(Request { prompt, sampling: greedy(12), text: false }).expect("a good request");
    }
    let mut ends = Vec::new();
    engine.run(&mut |event| {
        if let Event::Finished(completion) = event {
            ends.push((completion.request, completion.reason.clone(), completion.tokens().len()));
        }
    });
    ends.sort_by_key(|(request, ..)| *request);
    ends.into_iter().map(|(_, reason, tokens)| (reason, tokens)).collect()
}

fn error(reason: &FinishReason) -> &str {
    match reason {
        FinishReason::Error(error) => error,
        other => panic!("expected an error, found {other:?}"),
    }
}

#[test]
fn a_lying_sampler_ends_the_request_it_lied_about() {
    let ends = ends("[sampler]\nplugin = \"lying-sampler\"\n");
    assert!(error(&ends[0].0).contains("lying-sampler") && error(&ends[0].0).contains("verdict"), "{ends:?}");
    assert_eq!(ends[0].1, 5, "what it had so far is delivered");
    // The second request becomes the first of the batch once the first has ended, and is lied about in turn.
    assert!(ends[1].1 >= 6, "{ends:?}");
}

#[test]
fn a_sequence_without_slots_waits_for_them() {
    let prompts = [vec![0; 10], vec![0; 24]];
    let reference = tokens(&run(&mut engine(PLAIN), &prompts, &greedy(8), 2));
    for parts in [PLAIN, NGRAM] {
        let tight = format!("{parts}[scheduler]\nplugin = \"reckless-scheduler\"\n[kv]\nnum_slots = 32\n");
        assert_eq!(tokens(&run(&mut engine(&tight), &prompts, &greedy(8), 2)), reference, "{parts}");
    }
}

#[test]
fn what_was_reserved_for_a_failed_sequence_is_rolled_back() {
    let ends = ends("[sampler]\nplugin = \"lying-sampler\"\n[kv]\nplugin = \"strict-kv\"\n");
    for (reason, _) in ends {
        assert!(error(&reason).contains("verdict"), "slots were lost with the first request: {reason:?}");
    }
}

#[test]
fn a_path_that_skips_a_parent_is_no_verdict() {
    let ends = ends("[proposer]\nplugin = \"too-many\"\n[sampler]\nplugin = \"orphan-sampler\"\n");
    for (reason, _) in ends {
        assert!(error(&reason).contains("orphan-sampler") && error(&reason).contains("path [1]"), "{reason:?}");
    }
}

#[test]
fn a_panicking_sampler_ends_the_step_with_what_there_is() {
    let ends = ends("[sampler]\nplugin = \"panicking-sampler\"\n");
    for (reason, tokens) in ends {
        assert!(error(&reason).contains("planted panic in verify"), "{reason:?}");
        assert_eq!(tokens, 5);
    }
}

#[test]
fn bad_schedulers_and_kv_managers_end_requests_clearly() {
    for (parts, what) in [
        ("[scheduler]\nplugin = \"panicking-scheduler\"\n", "planted panic in schedule"),
        ("[scheduler]\nplugin = \"idle-scheduler\"\n", "cannot run it"),
        ("[kv]\nplugin = \"bad-kv\"\n", "planted failure to reserve"),
        ("[kv]\nplugin = \"losing-kv\"\n", "does not add up"),
        ("[kv]\nplugin = \"greedy-kv\"\n", "slots for"),
    ] {
        for (reason, _) in ends(parts) {
            assert!(error(&reason).contains(what), "{parts}: {reason:?}");
        }
    }
}

/// Two libraries that both export a proposer `ngram`, in one process and one engine.
#[test]
fn two_libraries_of_one_kind_stay_themselves() {
    let other = fixture("other_ngram");
    let list = format!(
        "[[proposer]]\nplugin = \"ngram\"\nname = \"ours\"\n[[proposer]]\npath = {other:?}\nplugin = \"ngram\"\nname = \"other\"\n"
    );
    let mut engine = engine(&list);
    let prompt: Vec<u32> = (0..60).map(|index| 30 + index % 6).collect();
    let mut accepted = Vec::new();
    for name in ["ours", "other"] {
        let sampling = foretoken::config::Sampling { proposer: Some(name.to_owned()), ..greedy(40) };
        let done = run(&mut engine, std::slice::from_ref(&prompt), &sampling, 1);
        let report = done[0].stats.report(None);
        accepted.push((done[0].stats.drafted, report.accepted_per_position.len()));
        assert_eq!(done[0].tokens().len(), 40);
    }
    assert!(accepted[0].0 > 0 && accepted[1].0 > 0, "both draft: {accepted:?}");
    assert!(accepted[1].1 <= 1, "the other library drafts one token at most: {accepted:?}");
    let sampling = foretoken::config::Sampling { proposer: Some("third".to_owned()), ..greedy(4) };
    let error = engine.submit(Request { prompt: vec![1], sampling, text: false }).expect_err("there is no third");
    assert!(error.to_string().contains("ours, other"), "{error}");
}

#[test]
fn a_manager_that_only_goes_forward_refuses_speculation_and_serves_plain_decoding() {
    let forward = "[kv]\nplugin = \"forward-kv\"\n";
    let prompts = [vec![0; 10], vec![0; 24]];
    let reference = tokens(&run(&mut engine(PLAIN), &prompts, &greedy(8), 2));
    assert_eq!(tokens(&run(&mut engine(&format!("{PLAIN}{forward}")), &prompts, &greedy(8), 2)), reference);
    let config = try_config(&format!("{NGRAM}{forward}")).expect("a good config");
    let refusal = Engine::new(config).err().expect("nothing drafted could be taken back").to_string();
    for word in ["forward-kv", "ngram", "cannot roll back", "\"paged\""] {
        assert!(refusal.contains(word), "{word:?} is missing from: {refusal}");
    }
}
