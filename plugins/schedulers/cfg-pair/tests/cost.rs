//! What a plan costs: printed with `--nocapture`, and held far below a step's milliseconds.

use std::time::Instant;

use foretoken_cfg_pair::{Fcfs, FcfsOptions};
use foretoken_plugin_api::author::PlanSink;
use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{KvStats, Plan, QueueSequence, QueueView, RequestId, Scheduler, SeqId};

struct Count(u32);

impl PlanSink for Count {
    fn run(&mut self, _: SeqId, rows: u32, draft_budget: u32) {
        self.0 += rows + draft_budget;
    }

    fn preempt(&mut self, _: SeqId) {}
}

fn queue() -> Vec<QueueSequence> {
    let sequence = |id: u64| QueueSequence {
        id: SeqId(id),
        request: RequestId(id),
        companion: Companion::NONE,
        priority: (id % 3) as i32,
        uncomputed: if id < 200 { 1 } else { 300 },
        max_draft: (id % 8) as u32,
        slots_held: if id < 230 { 500 } else { 0 },
        running: id < 230,
    };
    (0..256).map(sequence).collect()
}

#[test]
fn a_plan_for_256_sequences_costs_microseconds() {
    const PLANS: u32 = 2000;
    let options = FcfsOptions { max_num_seqs: 256, ..FcfsOptions::default() };
    let mut fcfs = Fcfs::new(
        options,
        FakeHost::new(ToyModel::new(16, 1)).with_facts(|facts| facts.max_sequences = 0).shared().handle(),
    )
    .unwrap();
    let queue = queue();
    let held = 230 * 500;
    let kv = KvStats { total: held + 20_000, free: 20_000, held, cached: 0 };
    let mut best = f64::INFINITY;
    for _ in 0..10 {
        let mut rows = Count(0);
        let start = Instant::now();
        for _ in 0..PLANS {
            fcfs.schedule(&QueueView::new(&queue, kv), &mut Plan::new(&mut rows)).unwrap();
        }
        best = best.min(start.elapsed().as_secs_f64() / f64::from(PLANS));
        assert_eq!(rows.0, PLANS * 2048);
    }
    println!("fcfs: {:.2} us for a plan of 256 sequences", best * 1e6);
    assert!(best < 200e-6, "{best} s");
}
