//! Guidance: pairs of sequences beside single ones, with and without speculation, in few slots, shared prompts, and
//! refusals. The rows themselves are tested in `step/guide_tests.rs`.

use foretoken::config::Sampling;
use foretoken::{Engine, FinishReason, Request, RequestError};

use super::support::*;

const PAIRS: &str = "[scheduler]\nplugin = \"cfg-pair\"\noptions = { policy = \"fixed\" }\n";
const NEGATIVE: &str = "# A test of nothing\nimport";

fn guided(sampling: &Sampling, scale: f32) -> Sampling {
    Sampling { guidance_scale: scale, negative_prompt: Some(NEGATIVE.to_owned()), ..sampling.clone() }
}

fn submit(engine: &mut Engine, prompt: &[u32], sampling: &Sampling) -> Result<(), RequestError> {
    engine.submit(Request { prompt: prompt.to_vec(), sampling: sampling.clone(), text: false }).map(drop)
}

#[test]
fn guided_tokens_are_those_of_guided_plain_decoding() {
    for sampling in [greedy(64), sampled(64, 7)] {
        let sampling = guided(&sampling, 1.5);
        let mut plain = engine(PAIRS);
        let prompts = prompts(&plain, 4);
        let reference = run(&mut plain, &prompts, &sampling, 1);
        let without = tokens(&run(&mut plain, &prompts, &Sampling { guidance_scale: 1.0, ..sampling.clone() }, 1));
        let reference_tokens = tokens(&reference);
        assert!(reference_tokens != without, "guidance changes nothing, so this tests nothing");
        for (name, parts) in [("plain", PLAIN), ("ngram", NGRAM), ("draft-model", DRAFT_MODEL)] {
            let mut roomy = engine(&format!("{parts}{PAIRS}"));
            let together = run(&mut roomy, &prompts, &sampling, 4);
            assert!(tokens(&together) == reference_tokens, "{name}: tokens differ from guided plain decoding");
            let kept: u64 = together.iter().map(|completion| completion.stats.accepted).sum();
            assert!(name == "plain" || kept > 0, "{name} kept no draft");
            // Room for about two pairs.
            let mut tight = engine(&format!("{parts}{PAIRS}[kv]\nnum_slots = 900\n"));
            assert!(tokens(&run(&mut tight, &prompts, &sampling, 4)) == reference_tokens, "{name}, few slots");
            assert!(tight.totals().preemptions > 0, "{name}: nothing was preempted");
            assert!(roomy.faults().all(|(_, faults, _)| faults == 0), "{name} had faults");
        }
    }
}

/// What Hugging Face transformers wrote in f32 (`examples/peers/guidance.py --out`): the same tokens, but where its best two
/// were a tie.
#[test]
fn guided_greedy_text_is_that_of_transformers() {
    let recorded = std::fs::read_to_string(root().join("engine/tests/engine/transformers.jsonl")).unwrap();
    let f32 = "[model]\npath = \"examples/models/tiny\"\ndtype = \"f32\"\n[kv]\nnum_slots = 12288\ndtype = \"f32\"\n";
    let mut engine = engine(&format!("{NGRAM}{PAIRS}{f32}"));
    let sampling = Sampling { negative_prompt: Some("# Nothing\nimport".to_owned()), ..guided(&greedy(64), 1.5) };
    let prompts = prompts(&engine, 32);
    let ours = run(&mut engine, &prompts, &sampling, 16);
    assert_eq!(recorded.lines().count(), 32);
    for (number, (line, ours)) in recorded.lines().zip(&ours).enumerate() {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        let theirs: Vec<u32> = serde_json::from_value(line["tokens"].clone()).unwrap();
        assert_eq!((theirs.len(), ours.tokens().len()), (64, 64));
        if let Some(place) = (0..64).find(|place| ours.tokens()[*place] != theirs[*place]) {
            let margin = line["margins"][place].as_f64().unwrap();
            assert!(margin < 1e-3, "prompt {number}, token {place}: margin {margin}");
        }
    }
}

/// Half of a batch of 16 is guided, each by its own scale.
#[test]
fn guided_and_plain_requests_share_batches() {
    let mut engine = engine(&format!("{DRAFT_MODEL}{PAIRS}"));
    let prompts = prompts(&engine, 16);
    let sampling = |index: usize| match index % 2 {
        0 => sampled(40, index as u64),
        _ => guided(&sampled(40, index as u64), 0.5 + index as f32 / 4.0),
    };
    let alone: Vec<_> = (0..16).map(|index| run(&mut engine, &prompts[index..=index], &sampling(index), 1)).collect();
    for (index, prompt) in prompts.iter().enumerate() {
        submit(&mut engine, prompt, &sampling(index)).unwrap();
    }
    let together = engine.complete([]).unwrap();
    assert_eq!(together.len(), 16);
    for (index, (alone, together)) in alone.iter().zip(&together).enumerate() {
        assert!(alone[0].tokens() == together.tokens(), "request {index} differs in the batch");
    }
    balanced(&mut engine);
}

#[test]
fn scale_1_is_no_guidance_and_scale_0_the_negative_prompt_alone() {
    let mut engine = engine(&format!("{NGRAM}{PAIRS}"));
    let prompts = prompts(&engine, 4);
    let negative = vec![engine.tokenizer().encode(NEGATIVE).unwrap(); 4];
    for sampling in [greedy(48), sampled(48, 5)] {
        let plain = tokens(&run(&mut engine, &prompts, &sampling, 4));
        assert!(tokens(&run(&mut engine, &prompts, &guided(&sampling, 1.0), 4)) == plain);
        let of_negative = tokens(&run(&mut engine, &negative, &sampling, 4));
        assert!(tokens(&run(&mut engine, &prompts, &guided(&sampling, 0.0), 4)) == of_negative);
        // The pair's formula agrees with both definitions: next to a whole number, hardly a token changes.
        let near = tokens(&run(&mut engine, &prompts, &guided(&sampling, 1.0 + f32::EPSILON), 4));
        let same = near.iter().zip(&plain).filter(|(near, plain)| near == plain).count();
        assert!(same >= 3, "{same} of 4");
    }
}

#[test]
fn completions_of_a_guided_request_share_both_prompts() {
    let sampling = guided(&sampled(32, 9), 2.0);
    let mut engine = engine(&format!("{DRAFT_MODEL}{PAIRS}"));
    let prompt = &prompts(&engine, 1)[..];
    let reference: Vec<_> = {
        let all = Sampling { n: 4, ..sampling.clone() };
        let rows = engine.totals().rows;
        let done = run(&mut engine, prompt, &all, 1);
        let shared = engine.totals().rows - rows;
        assert_eq!(done.len(), 4);
        assert!(shared < 2 * (prompt[0].len() as u64 + 4 * 100), "{shared} rows: the prompts were not shared");
        tokens(&done)
    };
    assert!((1..4).all(|index| reference[index] != reference[0]), "completions have noise of their own");
    let first = tokens(&run(&mut engine, prompt, &sampling, 1));
    assert_eq!(first[0], reference[0]);
    // With slots for little more than one pair they are preempted and computed again, alone.
    let slots = 2 * (prompt[0].len() + 64);
    let mut tight = super::support::engine(&format!("{DRAFT_MODEL}{PAIRS}[kv]\nnum_slots = {slots}\n"));
    assert!(tokens(&run(&mut tight, prompt, &Sampling { n: 4, ..sampling }, 1)) == reference);
}

#[test]
fn a_pair_ends_together_by_abort_and_at_the_context() {
    let mut engine = engine(&format!("{NGRAM}{PAIRS}"));
    let prompts = prompts(&engine, 2);
    let sampling = guided(&greedy(64), 1.5);
    submit(&mut engine, &prompts[0], &sampling).unwrap();
    let other = engine.submit(Request { prompt: prompts[1].clone(), sampling: sampling.clone(), text: false }).unwrap();
    engine.step(&mut |_| ());
    engine.abort(other);
    let done = engine.complete([]).unwrap();
    assert_eq!(done.len(), 2, "one completion for each pair");
    assert_eq!(done[0].reason, FinishReason::Length);
    assert!(matches!(&done[1].reason, FinishReason::Error(error) if error == "aborted"));
    // The negative prompt is the longer one: the context ends the pair where that ends.
    let long = Sampling { negative_prompt: Some("a b ".repeat(490)), max_tokens: 10_000, ..sampling };
    submit(&mut engine, &prompts[0][..9], &long).unwrap();
    let done = engine.complete([]).unwrap();
    let negative = engine.tokenizer().encode(&"a b ".repeat(490)).unwrap().len();
    assert_eq!(done[0].tokens().len(), 1024 - negative);
    balanced(&mut engine);
}

#[test]
fn what_can_never_run_is_refused_at_once() {
    let prompt: Vec<u32> = (1..30).collect();
    let refused = |parts: &str, sampling: &Sampling| {
        let mut engine = engine(parts);
        let error = submit(&mut engine, &prompt, sampling).unwrap_err().to_string();
        assert!(!engine.has_work());
        error
    };
    let sampling = guided(&greedy(4), 1.5);
    for parts in ["", "[scheduler]\nplugin = \"cfg-pair\"\noptions = { max_num_seqs = 1 }\n"] {
        let error = refused(parts, &sampling);
        assert!(error.contains("cfg-pair") && error.contains("max_num_seqs of at least 2"), "{error}");
    }
    let error = refused(&format!("{PAIRS}[kv]\nnum_slots = 32\noptions = {{ block_size = 1 }}\n"), &sampling);
    assert!(error.contains("29 tokens") && error.contains("only 32 slots"), "{error}");
    let configured = try_config("[sampling]\nguidance_scale = 2.0\n").map(Engine::new).unwrap();
    let error = configured.err().expect("refused before the weights are read").to_string();
    assert!(error.contains("guidance_scale 2") && error.contains("`fcfs`"), "{error}");
    // It fits when it comes in, and no more once it has grown: it ends with what it has, and nothing hangs.
    let mut engine = engine(&format!("{PAIRS}[kv]\nnum_slots = 48\noptions = {{ block_size = 1 }}\n"));
    submit(&mut engine, &prompt, &Sampling { max_tokens: 64, ..sampling }).unwrap();
    let done = engine.complete([]).unwrap();
    let FinishReason::Error(error) = &done[0].reason else { panic!("{:?}", done[0].reason) };
    assert!(error.contains("of the negative prompt") && error.contains("raise kv.num_slots"), "{error}");
    assert!(!done[0].tokens().is_empty());
    balanced(&mut engine);
}
