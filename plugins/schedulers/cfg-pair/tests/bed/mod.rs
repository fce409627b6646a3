//! 256 sequences that decode with drafts, without a model: what a step costs beside its pass.

use std::path::Path;

use foretoken::config;
use foretoken::plugins::registry::Registry;
use foretoken_cfg_pair::{CfgPair, FcfsOptions, Policy};
use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::author::PlanSink;
use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{
    KvFacts, Plan, QueueSequence, QueueView, RequestId, Scheduler, SeqId, SequenceReport, StepReport, Token,
};

/// Sequences that run.
pub const SEQUENCES: u64 = 256;
/// Slots of each.
const SLOTS: usize = 512;
/// Nodes that each may draft.
const MOST: u32 = 5;
/// Which nodes of a draft are kept, anchor first: the path to one of a tree's leaves now and then.
const KEPT: [&[u32]; 4] = [&[0], &[0, 1, 2], &[0, 2], &[0, 1, 2, 3]];
const TOKENS: [Token; 4] = [5, 6, 7, 8];

/// What was planned.
#[derive(Default)]
struct Runs(Vec<(SeqId, u32, u32)>);

impl PlanSink for Runs {
    fn run(&mut self, id: SeqId, rows: u32, draft_budget: u32) {
        self.0.push((id, rows, draft_budget));
    }

    fn preempt(&mut self, id: SeqId) {
        panic!("{id:?}: there are slots for all");
    }
}

/// A scheduler, a loaded KV manager, and sequences that start over when they are long.
pub struct Bed {
    scheduler: CfgPair,
    kv: LoadedKv,
    queue: Vec<QueueSequence>,
    runs: Runs,
    reports: Vec<SequenceReport>,
    steps: u64,
}

impl Bed {
    /// With the KV manager of `configs/NAME.toml`.
    pub fn new(policy: Policy, kv: &str) -> Self {
        let host = FakeHost::new(ToyModel::new(16, 1)).with_facts(|facts| facts.max_sequences = 0).shared().handle();
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../configs").join(kv).with_extension("toml");
        let config = config::load(&path, &[]).expect("a config");
        let make = Registry::new(config.plugins).find(&config.kv).expect("a library").kv().expect("a KV manager");
        let facts = KvFacts { num_slots: SEQUENCES as usize * SLOTS };
        let kv = LoadedKv::new(make, &config.kv.options, &facts, &host).expect("the options");
        let options = FcfsOptions { max_num_seqs: SEQUENCES as u32, policy, ..FcfsOptions::default() };
        let mut scheduler = CfgPair::new(options, host).expect("the defaults");
        for rows in [1, 32, 512, 2048] {
            scheduler.observe(&StepReport::new(&[], rows, 0, 10_000_000 + u64::from(rows) * 1000));
        }
        let mut bed = Self { scheduler, kv, queue: Vec::new(), runs: Runs::default(), reports: Vec::new(), steps: 0 };
        for id in (0..SEQUENCES).map(SeqId) {
            bed.kv.admit(id, &[id.0 as Token]).expect("a new sequence");
            bed.queue.push(QueueSequence {
                id,
                request: RequestId(id.0),
                companion: Companion::NONE,
                priority: (id.0 % 3) as i32,
                uncomputed: 1,
                max_draft: MOST,
                slots_held: 0,
                running: true,
            });
        }
        bed
    }

    /// Schedules, reserves, commits and reports.
    pub fn step(&mut self) {
        self.steps += 1;
        self.runs.0.clear();
        self.reports.clear();
        let view = QueueView::new(&self.queue, self.kv.stats().expect("stats"));
        self.scheduler.schedule(&view, &mut Plan::new(&mut self.runs)).expect("a plan");
        assert_eq!(self.runs.0.len(), self.queue.len());
        let mut all_rows = 0;
        for &(id, rows, drafted) in &self.runs.0 {
            self.kv.reserve(id, (rows + drafted) as usize).expect("free slots");
            let kept = KEPT[((id.0 + self.steps) % 4) as usize];
            let kept = &kept[..kept.len().min(drafted as usize)];
            let kept = if kept.is_empty() { KEPT[0] } else { kept };
            self.kv.commit(id, kept, &TOKENS[..kept.len()]).expect("reserved slots");
            self.queue[id.0 as usize].slots_held += kept.len() as u32;
            let accepted = kept.len() as u32 - 1;
            self.reports.push(SequenceReport { id, rows: rows + drafted, drafted, accepted, finished: false });
            all_rows += rows + drafted;
        }
        self.scheduler.observe(&StepReport::new(&self.reports, all_rows, 300_000, 11_000_000));
        if self.queue[0].slots_held as usize > SLOTS - 16 {
            self.start_over();
        }
    }

    fn start_over(&mut self) {
        for sequence in &mut self.queue {
            self.kv.free(sequence.id).expect("it is there");
            self.kv.admit(sequence.id, &[sequence.id.0 as Token]).expect("it was freed");
            sequence.slots_held = 0;
        }
    }
}
