//! Token equality with plain decoding: every proposer, batch 1 and 16, and with so few slots that sequences are
//! preempted; greedy, and `gumbel` at temperature 1.

use foretoken::config::Sampling;

use super::support::*;

/// Slots for about two of sixteen sequences of up to 456 + 256 tokens.
const FEW_SLOTS: &str = "[kv]\nnum_slots = 1600\n";

fn preemptions(engine: &foretoken::Engine) -> u64 {
    engine.totals().preemptions
}

fn equal_everywhere(sampling: &Sampling, count: usize) {
    let mut plain = engine(PLAIN);
    let prompts = prompts(&plain, count);
    let reference = tokens(&run(&mut plain, &prompts, sampling, 1));
    assert!(reference.iter().all(|tokens| tokens.len() == sampling.max_tokens));
    for (name, parts) in [("plain", PLAIN), ("ngram", NGRAM), ("draft-model", DRAFT_MODEL)] {
        let mut roomy = engine(parts);
        if name != "plain" {
            let alone = run(&mut roomy, &prompts, sampling, 1);
            assert!(alone.iter().any(|completion| completion.stats.accepted > 0), "{name} kept no draft at all");
            assert!(tokens(&alone) == reference, "{name}, one at a time: tokens differ from plain decoding");
        }
        let together = run(&mut roomy, &prompts, sampling, 16);
        assert!(tokens(&together) == reference, "{name}, 16 together: tokens differ from plain decoding");
        let mut tight = engine(&format!("{parts}{FEW_SLOTS}"));
        let tight_run = run(&mut tight, &prompts, sampling, 16);
        assert!(preemptions(&tight) > 0, "{name}: nothing was preempted, so preemption was not tested");
        assert!(tokens(&tight_run) == reference, "{name}, preempted: tokens differ from plain decoding");
        assert!(roomy.faults().all(|(_, faults, _)| faults == 0), "{name} had faults");
    }
}

#[test]
fn greedy_tokens_are_those_of_plain_decoding() {
    equal_everywhere(&greedy(256), 16);
}

#[test]
fn seeded_tokens_are_those_of_plain_decoding() {
    equal_everywhere(&sampled(256, 7), 16);
}

/// Chunked prefill, thread counts and draft lengths change nothing either.
#[test]
fn chunks_threads_and_draft_lengths_change_nothing() {
    let sampling = sampled(48, 3);
    let mut plain = engine(PLAIN);
    let prompts = prompts(&plain, 6);
    let reference = tokens(&run(&mut plain, &prompts, &sampling, 1));
    let chunked = "[scheduler]\nplugin = \"fcfs\"\noptions = { max_num_seqs = 8, max_num_batched_tokens = 40 }\n";
    let one_thread = "threads = 1\n";
    let long = "[proposer]\nplugin = \"ngram\"\noptions = { num_speculative_tokens = 12, prompt_lookup_min = 1, prompt_lookup_max = 3 }\n";
    let discard =
        DRAFT_MODEL.replace("num_speculative_tokens = 5", "num_speculative_tokens = 3\nkv_strategy = \"discard\"");
    for (name, parts) in [
        ("chunked prefill", format!("{NGRAM}{chunked}")),
        ("one thread", format!("{one_thread}{DRAFT_MODEL}")),
        ("ngram of 12", long.to_owned()),
        ("draft-model, discard", discard),
        (
            "a list",
            format!(
                "{}{}",
                NGRAM.replace("[proposer]", "[[proposer]]"),
                DRAFT_MODEL.replace("[proposer]", "[[proposer]]")
            ),
        ),
    ] {
        let mut engine = engine(&parts);
        assert!(tokens(&run(&mut engine, &prompts, &sampling, 6)) == reference, "{name}: tokens differ");
    }
}

/// `rejection` at temperature 0 is plain greedy decoding too.
#[test]
fn rejection_is_greedy_exact() {
    let sampling = greedy(64);
    let mut plain = engine(PLAIN);
    let prompts = prompts(&plain, 8);
    let reference = tokens(&run(&mut plain, &prompts, &sampling, 1));
    let mut rejection = engine(&format!("{DRAFT_MODEL}[sampler]\nplugin = \"rejection\"\n"));
    assert!(tokens(&run(&mut rejection, &prompts, &sampling, 8)) == reference);
}
