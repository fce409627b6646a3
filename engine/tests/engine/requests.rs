//! Requests and their ends: completions that share a prompt, stop rules, streaming, abort, penalties, long service.

use foretoken::config::Sampling;
use foretoken::{Completion, Engine, Event, FinishReason, Request};

use super::support::*;

fn finish(engine: &mut Engine) -> Vec<Completion> {
    let mut done = Vec::new();
    engine.run(&mut |event| {
        if let Event::Finished(completion) = event {
            done.push(completion);
        }
    });
    done.sort_by_key(|completion| (completion.request, completion.index));
    balanced(engine);
    done
}

#[test]
fn completions_share_the_prompt_and_differ_by_their_noise() {
    for parts in [PLAIN, NGRAM, DRAFT_MODEL] {
        let mut engine = engine(parts);
        let prompt = prompts(&engine, 1).remove(0);
        let sampling = Sampling { n: 4, ..sampled(24, 9) };
        engine.submit(Request { prompt: prompt.clone(), sampling, text: false }).expect("a good request");
        let together = finish(&mut engine);
        assert_eq!(together.iter().map(|completion| completion.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let rows = engine.totals().rows as usize;
        assert!(rows < 2 * prompt.len() + 4 * 24 * 6, "the prompt was computed more than once: {rows} rows");
        let different: std::collections::HashSet<_> = together.iter().map(|one| one.tokens().to_vec()).collect();
        assert!(different.len() > 1, "the completions share their noise");
        // Completion 0 is what a request of one gives.
        engine.submit(Request { prompt, sampling: sampled(24, 9), text: false }).expect("a good request");
        assert_eq!(finish(&mut engine)[0].tokens(), together[0].tokens());
    }
}

#[test]
fn many_completions_with_few_slots_all_finish_the_same() {
    let sampling = Sampling { n: 12, ..sampled(30, 4) };
    let mut roomy = engine(PLAIN);
    let prompt = prompts(&roomy, 1).remove(0);
    roomy.submit(Request { prompt: prompt.clone(), sampling: sampling.clone(), text: false }).expect("good");
    let reference = tokens(&finish(&mut roomy));
    let slots = prompt.len() + 70;
    let mut tight = engine(&format!("{NGRAM}[kv]\nnum_slots = {slots}\n"));
    tight.submit(Request { prompt, sampling, text: false }).expect("good");
    assert_eq!(tokens(&finish(&mut tight)), reference);
}

#[test]
fn stop_strings_cut_across_token_borders_and_text_streams_whole() {
    for parts in [PLAIN, NGRAM, DRAFT_MODEL] {
        let mut engine = engine(parts);
        let prompt = prompts(&engine, 1).remove(0);
        let text = |engine: &mut Engine, stop: Vec<String>| {
            let sampling = Sampling { stop, ..greedy(60) };
            engine.submit(Request { prompt: prompt.clone(), sampling, text: true }).expect("good");
            let (mut streamed, mut done) = (String::new(), None);
            engine.run(&mut |event| match event {
                Event::Token { text, .. } => streamed.push_str(text),
                Event::Finished(completion) => done = Some(completion),
            });
            let done = done.expect("finished");
            assert_eq!(streamed, done.text, "what streams is the text");
            done
        };
        let whole = text(&mut engine, vec![]);
        assert_eq!(engine.tokenizer().decode(whole.tokens()).expect("text"), whole.text);
        // Three characters are rarely a token of their own, and some of these cuts fall into the middle of a kept draft.
        for part in 1..12 {
            let chars = whole.text.chars();
            let stop: String = chars.skip(whole.text.chars().count() * part / 12).take(3).collect();
            let cut = text(&mut engine, vec![stop.clone(), "never to be seen".to_owned()]);
            assert_eq!(cut.reason, FinishReason::Stop);
            assert_eq!(cut.text, whole.text[..whole.text.find(&stop).expect("it is there")]);
            let through = engine.tokenizer().decode(&cut.tokens()[..cut.tokens().len() - 1]).expect("text");
            assert!(!through.contains(&stop), "{parts}: tokens after the one that completed {stop:?}");
        }
    }
}

#[test]
fn eos_ends_unless_ignored_and_length_is_the_context_at_most() {
    let sampling = Sampling { ignore_eos: false, n: 24, ..sampled(200, 3) };
    let mut reference = None;
    for parts in [PLAIN, NGRAM, DRAFT_MODEL] {
        let mut engine = engine(parts);
        let eos = engine.tokenizer().eos()[0];
        let prompt = engine.tokenizer().encode("Question: What is 1 + 1?\nAnswer: 1 + 1 = 2\n#### 2").expect("text");
        engine.submit(Request { prompt, sampling: sampling.clone(), text: false }).expect("good");
        let done = finish(&mut engine);
        assert!(done.iter().any(|one| one.reason == FinishReason::Stop), "{parts}: none of 24 completions ended");
        for one in &done {
            let at = one.tokens().iter().position(|token| *token == eos);
            let expected = (one.reason == FinishReason::Stop).then(|| one.tokens().len() - 1);
            assert_eq!(at, expected, "{parts}: the end token is the completion's last, and ends it");
        }
        assert_eq!(*reference.get_or_insert(tokens(&done)), tokens(&done), "{parts}");
    }
    let mut engine = engine(NGRAM);
    let context = engine.decoder().architecture().max_positions;
    let long: Vec<u32> = (0..context as u32 - 3).map(|index| 20 + index % 50).collect();
    engine.submit(Request { prompt: long, sampling: greedy(100), text: false }).expect("good");
    let done = finish(&mut engine).remove(0);
    assert_eq!((done.tokens().len(), &done.reason), (3, &FinishReason::Length));
}

#[test]
fn a_request_can_be_aborted_at_any_time() {
    let mut engine = engine(DRAFT_MODEL);
    let prompts = prompts(&engine, 4);
    let mut alone = support_engine_tokens(&prompts[0]);
    for steps in [0, 1, 2, 7] {
        let kept =
            engine.submit(Request { prompt: prompts[0].clone(), sampling: greedy(20), text: false }).expect("good");
        let sampling = Sampling { n: 3, ..sampled(40, 1) };
        let aborted = engine.submit(Request { prompt: prompts[1].clone(), sampling, text: false }).expect("good");
        for _ in 0..steps {
            engine.step(&mut |_| ());
        }
        engine.abort(aborted);
        let done = finish(&mut engine);
        assert_eq!(done.iter().filter(|one| one.request == aborted).count(), 3);
        for one in &done {
            if one.request == kept {
                assert_eq!(one.tokens(), alone.as_mut_slice(), "an abort beside it changed a request");
            } else {
                assert_eq!(one.reason, FinishReason::Error("aborted".to_owned()));
            }
        }
    }
}

fn support_engine_tokens(prompt: &[u32]) -> Vec<u32> {
    let mut plain = engine(PLAIN);
    tokens(&run(&mut plain, &[prompt.to_vec()], &greedy(20), 1)).remove(0)
}

#[test]
fn a_request_may_turn_speculation_off_or_down() {
    let mut engine = engine(NGRAM);
    let prompt = prompts(&engine, 1).remove(0);
    for (sampling, most) in [
        (Sampling { speculative: false, ..greedy(60) }, 0.0),
        (Sampling { max_draft: Some(1), ..greedy(60) }, 1.0),
        (Sampling { max_draft: Some(0), ..greedy(60) }, 0.0),
    ] {
        let done = run(&mut engine, std::slice::from_ref(&prompt), &sampling, 1).remove(0);
        let per_step = done.stats.drafted as f64 / done.stats.steps as f64;
        assert!(per_step <= most, "{per_step} nodes a step, at most {most} asked for");
        assert!(most == 0.0 || done.stats.drafted > 0);
    }
}

/// Stale state in a proposer's lane costs no token, so the drafts themselves are compared.
#[test]
fn a_slot_handed_out_anew_holds_nothing_for_a_proposer() {
    let parts = format!("{DRAFT_MODEL}[kv]\nnum_slots = 768\n");
    let mut used = engine(&parts);
    let prompts = prompts(&used, 3);
    for prompt in &prompts {
        let drafts = |engine: &mut Engine| {
            let done = run(engine, std::slice::from_ref(prompt), &greedy(60), 1).remove(0);
            (done.stats.steps, done.stats.drafted, done.stats.accepted)
        };
        assert_eq!(drafts(&mut used), drafts(&mut engine(&parts)), "steps, drafted, accepted");
    }
}

#[test]
fn penalties_count_ancestors_and_keep_equality() {
    let mut sampling = greedy(60);
    sampling.penalties.repetition = 1.3;
    sampling.penalties.frequency = 0.2;
    let mut plain = engine(PLAIN);
    let mut prompts = prompts(&plain, 3);
    // One token over and over is drafted over and over, until its ancestors in the draft make it too dear.
    prompts.extend((0..24).map(|index| vec![300 + 37 * index; 40]));
    let reference = tokens(&run(&mut plain, &prompts, &sampling, 1));
    assert!(reference != tokens(&run(&mut plain, &prompts, &greedy(60), 1)), "the penalties did nothing");
    for parts in [NGRAM, DRAFT_MODEL] {
        let done = run(&mut engine(parts), &prompts, &sampling, 9);
        assert!(tokens(&done) == reference, "{parts}");
        assert!(done.iter().any(|one| one.stats.accepted > 5), "{parts} kept too few drafts to tell");
    }
}
