//! Whole queues, from arrival to the last token, in pools down to one sequence's size.

mod simulator;

use foretoken_cfg_pair::FcfsOptions;
use proptest::prelude::*;
use simulator::{Arrival, Simulator};

fn arrivals(priorities: i32) -> impl Strategy<Value = Vec<Arrival>> {
    let negative = prop::option::weighted(0.3, 1u32..60);
    let one = (0usize..40, 1u32..60, negative, 1u32..30, 1u32..4, 0..priorities, 0u32..9);
    let one = one.prop_map(|(step, prompt_len, negative, new_len, completions, priority, max_draft)| Arrival {
        step,
        prompt_len,
        negative,
        new_len,
        completions,
        priority,
        max_draft,
    });
    prop::collection::vec(one, 1..20)
}

fn options() -> impl Strategy<Value = FcfsOptions> {
    let cap = prop::option::of(0u32..6);
    (2u32..12, 0u32..80, any::<bool>(), cap).prop_map(|(max_num_seqs, more, enable_chunked_prefill, cap)| FcfsOptions {
        max_num_seqs,
        max_num_batched_tokens: max_num_seqs + more,
        enable_chunked_prefill,
        num_speculative_tokens: cap,
        ..FcfsOptions::default()
    })
}

/// The least pool in which each can run alone: the last token's KV is never computed.
fn least_pool(arrivals: &[Arrival]) -> u32 {
    let half = |arrival: &Arrival, prompt_len: u32| prompt_len + arrival.new_len - 1;
    let least = |arrival: &Arrival| {
        half(arrival, arrival.prompt_len) + arrival.negative.map_or(0, |negative| half(arrival, negative))
    };
    arrivals.iter().map(least).max().unwrap_or(1)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn everything_drains_in_order(arrivals in arrivals(1), options in options(), more in 0u32..100, random: u64) {
        Simulator::new(options, least_pool(&arrivals) + more, random).drain(arrivals);
    }

    #[test]
    fn everything_drains_with_priorities(arrivals in arrivals(3), options in options(), more in 0u32..100, random: u64) {
        Simulator::new(options, least_pool(&arrivals) + more, random).drain(arrivals);
    }
}

#[test]
fn a_pool_of_one_sequence_preempts_and_still_drains() {
    let arrival =
        Arrival { step: 0, prompt_len: 8, negative: None, new_len: 40, completions: 1, priority: 0, max_draft: 5 };
    let mut simulator = Simulator::new(FcfsOptions::default(), 47, 7);
    simulator.drain(vec![arrival; 6]);
    assert!(simulator.preemptions > 0);
}

#[test]
fn preempted_forks_are_few() {
    let arrival =
        Arrival { step: 0, prompt_len: 100, negative: None, new_len: 40, completions: 8, priority: 0, max_draft: 0 };
    for slots in 370..380 {
        let mut simulator = Simulator::new(FcfsOptions::default(), slots, 7);
        simulator.drain(vec![arrival.clone()]);
        assert!((1..=3).contains(&simulator.preemptions), "{slots} slots: {} preemptions", simulator.preemptions);
    }
}

#[test]
fn a_roomy_pool_never_preempts() {
    let arrival =
        Arrival { step: 0, prompt_len: 30, negative: None, new_len: 30, completions: 1, priority: 0, max_draft: 5 };
    let mut simulator = Simulator::new(FcfsOptions::default(), 64 * 65, 7);
    simulator.drain(vec![arrival; 100]);
    assert_eq!(simulator.preemptions, 0);
}
