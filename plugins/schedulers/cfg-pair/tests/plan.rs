//! Single plans: who gets which rows and drafts out of a queue written by hand.

use foretoken_cfg_pair::{CfgPair, Fcfs, FcfsOptions, Policy};
use foretoken_plugin_api::testkit::{FakeHost, RecordingPlan, ToyModel};
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{Host, KvStats, Plan, QueueSequence, QueueView, RequestId, Scheduler, SeqId};

#[derive(Default, Debug, PartialEq)]
struct Lines {
    runs: Vec<(u64, u32, u32)>,
    preempted: Vec<u64>,
}

fn waiting(id: u64, prompt_len: u32) -> QueueSequence {
    QueueSequence {
        id: SeqId(id),
        request: RequestId(id),
        companion: Companion::NONE,
        priority: 0,
        uncomputed: prompt_len,
        max_draft: 5,
        slots_held: 0,
        running: false,
    }
}

fn decoding(id: u64, slots_held: u32) -> QueueSequence {
    QueueSequence { uncomputed: 1, slots_held, running: true, ..waiting(id, 1) }
}

fn host() -> Host {
    FakeHost::new(ToyModel::new(16, 1)).with_facts(|facts| facts.max_sequences = 0).shared().handle()
}

/// Sequences `id` and `id + 1` as the halves of a pair.
fn pair(one: QueueSequence, other: QueueSequence) -> [QueueSequence; 2] {
    let (first, second) = (Companion::of(one.id), Companion::of(other.id));
    [QueueSequence { companion: second, ..one }, QueueSequence { companion: first, ..other }]
}

/// The plan, with `free` slots beside those that the queue holds.
fn plan(options: &FcfsOptions, queue: &[QueueSequence], free: u32) -> Lines {
    let held = queue.iter().map(|sequence| sequence.slots_held).sum();
    let kv = KvStats { total: free + held, free, held, cached: 0 };
    let mut plan = RecordingPlan::default();
    let mut scheduler = CfgPair::new(options.clone(), host()).unwrap();
    scheduler.schedule(&QueueView::new(queue, kv), &mut Plan::new(&mut plan)).unwrap();
    let runs = plan.runs().map(|(id, rows, draft)| (id.0, rows, draft)).collect();
    Lines { runs, preempted: plan.preempted().map(|id| id.0).collect() }
}

fn rows(max_num_batched_tokens: u32) -> FcfsOptions {
    FcfsOptions { max_num_seqs: 4, max_num_batched_tokens, policy: Policy::Fixed, ..FcfsOptions::default() }
}

#[test]
fn decodes_run_with_full_drafts_and_prompts_whole_where_all_fits() {
    let queue = [decoding(0, 9), decoding(1, 9), waiting(2, 30)];
    assert_eq!(plan(&rows(100), &queue, 100).runs, [(0, 1, 5), (1, 1, 5), (2, 30, 0)]);
}

#[test]
fn short_of_slots_drafts_shrink_evenly_before_anyone_is_preempted() {
    let queue = [decoding(0, 9), decoding(1, 9), QueueSequence { max_draft: 1, ..decoding(2, 9) }];
    let drafts = |free| plan(&rows(100), &queue, free);
    assert_eq!(drafts(9).runs, [(0, 1, 3), (1, 1, 2), (2, 1, 1)]);
    assert_eq!(drafts(3).runs, [(0, 1, 0), (1, 1, 0), (2, 1, 0)]);
    assert_eq!(drafts(2), Lines { runs: vec![(0, 1, 5), (1, 1, 4)], preempted: vec![2] });
}

#[test]
fn the_latest_of_the_lowest_priority_is_preempted() {
    let low = |sequence| QueueSequence { priority: -1, ..sequence };
    let queue = [decoding(0, 4), low(decoding(1, 4)), low(decoding(2, 4)), decoding(3, 4)];
    let options = FcfsOptions { num_speculative_tokens: Some(0), ..rows(100) };
    assert_eq!(plan(&options, &queue, 3).preempted, [2]);
    assert_eq!(plan(&options, &queue, 3).runs, [(0, 1, 0), (3, 1, 0), (1, 1, 0)]);
}

#[test]
fn drafts_leave_half_of_the_rows_while_prompts_wait() {
    let busy = [decoding(0, 9), decoding(1, 9)];
    let with_prompt = [busy[0], busy[1], waiting(2, 30)];
    assert_eq!(plan(&rows(10), &busy, 100).runs, [(0, 1, 4), (1, 1, 4)]);
    assert_eq!(plan(&rows(10), &with_prompt, 100).runs, [(0, 1, 2), (1, 1, 2), (2, 4, 0)]);
}

#[test]
fn the_cap_lowers_what_the_proposer_allows() {
    let capped = |cap| FcfsOptions { num_speculative_tokens: Some(cap), ..rows(100) };
    assert_eq!(plan(&capped(2), &[decoding(0, 9)], 100).runs, [(0, 1, 2)]);
    assert_eq!(plan(&capped(9), &[decoding(0, 9)], 100).runs, [(0, 1, 5)]);
}

#[test]
fn prompts_run_in_parts_only_where_chunking_is_on_or_they_could_never_run() {
    let whole = FcfsOptions { enable_chunked_prefill: false, ..rows(20) };
    let queue = [decoding(0, 9), waiting(1, 20), waiting(2, 3)];
    assert_eq!(plan(&rows(20), &queue, 100).runs, [(0, 1, 5), (1, 14, 0)]);
    assert_eq!(plan(&whole, &queue, 100).runs, [(0, 1, 5)], "and the shorter one behind it waits too");
    assert_eq!(plan(&whole, &queue[1..], 100).runs, [(1, 20, 0)]);
    assert_eq!(plan(&whole, &[waiting(0, 50), waiting(1, 1)], 100).runs, [(0, 20, 0)]);
}

#[test]
fn admission_leaves_room_for_what_runs_and_for_prompts_already_begun() {
    let begun = QueueSequence { uncomputed: 40, slots_held: 10, running: true, ..waiting(0, 0) };
    let queue = [begun, waiting(1, 10)];
    assert_eq!(plan(&rows(35), &queue, 52).runs, [(0, 35, 0)], "no rows left");
    assert_eq!(plan(&rows(45), &queue, 51).runs, [(0, 40, 0)], "no slots left");
    assert_eq!(plan(&rows(45), &queue, 52).runs, [(0, 40, 0), (1, 5, 0)]);
}

#[test]
fn a_sequence_alone_needs_no_reserve_and_one_that_can_never_fit_is_not_begun() {
    assert_eq!(plan(&rows(100), &[waiting(0, 30), waiting(1, 1)], 30).runs, [(0, 30, 0)]);
    assert_eq!(plan(&rows(100), &[waiting(0, 31), waiting(1, 1)], 30), Lines::default());
}

#[test]
fn forks_beyond_the_limit_wait_in_order() {
    let queue: Vec<_> = (0..6).map(|id| decoding(id, 3)).collect();
    let ids: Vec<_> = plan(&rows(100), &queue, 100).runs.iter().map(|run| run.0).collect();
    assert_eq!(ids, [0, 1, 2, 3]);
}

#[test]
fn a_pair_decodes_together_and_a_draft_costs_it_twice() {
    let queue = [&pair(decoding(0, 9), decoding(1, 4))[..], &[decoding(2, 9)]].concat();
    assert_eq!(plan(&rows(100), &queue, 100).runs, [(0, 1, 5), (1, 1, 5), (2, 1, 5)]);
    // Seven slots beside the anchors: two nodes each, the pair's counted twice, and one more for the single.
    assert_eq!(plan(&rows(100), &queue, 10).runs, [(0, 1, 2), (1, 1, 2), (2, 1, 3)]);
    let narrow = pair(decoding(0, 9), QueueSequence { max_draft: 2, ..decoding(1, 9) });
    assert_eq!(plan(&rows(100), &narrow, 100).runs, [(0, 1, 2), (1, 1, 2)], "what both halves allow");
}

#[test]
fn prompts_of_a_pair_come_in_together_and_nothing_is_drafted_before_both_are_ready() {
    let queue = pair(waiting(0, 30), waiting(1, 4));
    assert_eq!(plan(&rows(100), &queue, 100).runs, [(0, 30, 0), (1, 4, 0)]);
    assert_eq!(plan(&rows(20), &queue, 100).runs, [(0, 19, 0), (1, 1, 0)], "each has a row");
    let ready = QueueSequence { slots_held: 3, running: true, uncomputed: 1, ..waiting(1, 4) };
    let queue = pair(QueueSequence { slots_held: 10, running: true, ..waiting(0, 20) }, ready);
    assert_eq!(plan(&rows(9), &queue, 100).runs, [(0, 8, 0), (1, 1, 0)]);
}

#[test]
fn a_pair_is_admitted_whole_waits_its_turn_and_is_preempted_whole() {
    let busy: Vec<_> = (0..3).map(|id| decoding(id, 3)).collect();
    let wanting = [&busy[..], &pair(waiting(3, 4), waiting(4, 1)), &[waiting(5, 1)]].concat();
    let drafts = |lines: Lines| lines.runs.iter().map(|run| run.0).collect::<Vec<_>>();
    assert_eq!(drafts(plan(&rows(100), &wanting, 100)), [0, 1, 2], "one place is left, and nobody passes the pair");
    assert_eq!(drafts(plan(&rows(100), &wanting[1..], 100)), [1, 2, 3, 4]);
    let options = FcfsOptions { num_speculative_tokens: Some(0), ..rows(100) };
    // Admitted beside two: five rows, and one more for each of the four sequences then running.
    assert_eq!(drafts(plan(&options, &wanting[1..], 10)), [1, 2]);
    assert_eq!(drafts(plan(&options, &wanting[1..], 11)), [1, 2, 3, 4]);
    let running = [&[decoding(0, 9)][..], &pair(decoding(1, 9), decoding(2, 9))].concat();
    assert_eq!(plan(&options, &running, 2), Lines { runs: vec![(0, 1, 0)], preempted: vec![1, 2] });
}

#[test]
fn without_pairs_companions_are_planned_alone() {
    let mut plan = RecordingPlan::default();
    let queue = pair(waiting(0, 3), waiting(1, 4));
    let kv = KvStats { total: 5, free: 5, held: 0, cached: 0 };
    let mut fcfs = Fcfs::new(rows(100), host()).unwrap();
    fcfs.schedule(&QueueView::new(&queue, kv), &mut Plan::new(&mut plan)).unwrap();
    assert_eq!(plan.runs().collect::<Vec<_>>(), [(SeqId(0), 3, 0)]);
}

#[test]
fn options_are_checked_with_names_and_values() {
    let refused = |options| Fcfs::new(options, host()).err().expect("refused").message;
    let none = refused(FcfsOptions { max_num_seqs: 0, ..FcfsOptions::default() });
    assert!(none.contains("max_num_seqs must be at least 1"), "{none}");
    let few = refused(FcfsOptions { max_num_batched_tokens: 63, ..FcfsOptions::default() });
    assert!(few.contains("got 63 for 64"), "{few}");
    assert!(!Fcfs::new(FcfsOptions::default(), host()).unwrap().supports_pairs());
    assert!(CfgPair::new(FcfsOptions::default(), host()).unwrap().supports_pairs());
    let one = FcfsOptions { max_num_seqs: 1, ..FcfsOptions::default() };
    assert!(!CfgPair::new(one, host()).unwrap().supports_pairs(), "a pair has no place");
}
