//! Draft control against a machine of arithmetic: passes and drafts cost what a formula says, guesses are right by chance.
//!
//! Time here is a sum, not a clock, so what a policy makes of a machine is the same in every run.

use foretoken_cfg_pair::{Fcfs, FcfsOptions, Policy};
use foretoken_plugin_api::testkit::{FakeHost, RecordingPlan, ToyModel};
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{
    KvStats, Plan, QueueSequence, QueueView, RequestId, Scheduler, SeqId, SequenceReport, StepReport,
};

/// What a machine and a proposer cost, in microseconds, and how often a guess is right.
#[derive(Debug, Clone, Copy)]
struct Machine {
    /// A pass of so many rows.
    pass: fn(f64) -> f64,
    /// Drafting for so many sequences with so large a budget.
    draft: fn(f64, f64) -> f64,
    /// Chance of a sequence's guess, if those before it were right, in a step.
    right: fn(u64, u64) -> f64,
    /// Nodes that a sequence may draft.
    most: u32,
    /// Nodes that the proposer has in a step, if it may.
    has: fn(u64, u64) -> u32,
    /// How deep so many nodes go: a chain, or a tree of the most probable ones.
    deep: fn(u32) -> u32,
    /// How much longer a draft takes after a pause, and the pass after it.
    cold: f64,
    /// How much longer passes take because drafts have put other data into the caches: in a step with drafts, and less and
    /// less in the plain ones behind it.
    swaps: f64,
    /// How much longer everything takes at a step: other processes come and go.
    slow: fn(u64) -> f64,
    /// How long something else holds up the step, in its draft or in its pass.
    stalls: fn(u64) -> [f64; 2],
    /// How much longer passes of so many rows took when the engine started.
    at_start: fn(f64) -> f64,
    /// Steps after which a sequence is followed by another.
    life: u64,
    /// Tokens of a prompt, and what the proposer takes for each token that it has not seen.
    prompt: u32,
    unseen: f64,
}

/// A chain proposer, on sequences that never end.
const CHAIN: Machine = Machine {
    pass: wide,
    draft: |_, _| 2.0,
    right: |_, _| 0.5,
    most: MOST,
    has: all,
    deep: |nodes| nodes,
    life: u64::MAX,
    cold: 1.0,
    swaps: 1.0,
    slow: |_| 1.0,
    stalls: |_| [0.0; 2],
    at_start: |_| 1.0,
    prompt: 100,
    unseen: 0.0,
};

/// A head whose guesses are hardly ever right.
const USELESS: Machine = Machine { draft: small_head, cold: 1.6, right: |_, _| 0.02, ..CHAIN };

fn small_head(batch: f64, nodes: f64) -> f64 {
    500.0 + 60.0 * batch + 400.0 * nodes
}

/// A tree proposer beside a small target whose texts are short and differ.
const TREE: Machine = Machine {
    pass: |rows| 590.0 + 52.0 * rows,
    draft: |batch, nodes| batch * (180.0 + 98.0 * nodes),
    right: |id, _| 0.66 + 0.06 * (id % 5) as f64,
    most: 32,
    has: |_, _| 32,
    deep: |nodes| nodes.min(1 + nodes.next_power_of_two().ilog2()),
    life: 36,
    cold: 1.6,
    ..CHAIN
};

/// A good head that costs too much beside a small target: it reads each prompt first, and each of the two finds the other's
/// data in the caches. Drafting never pays, although what is seen at the start and in slow times says it does.
const DEAR: Machine = Machine {
    pass: |rows| 310.0 + 66.0 * rows,
    draft: |batch, nodes| batch * (80.0 + 90.0 * nodes),
    right: |id, _| 0.5 + 0.06 * (id % 5) as f64,
    life: 60,
    swaps: 1.4,
    slow: |step| if (step / 700).is_multiple_of(2) { 1.0 } else { 1.5 },
    at_start: |rows| 1.0 + 0.8 / rows,
    prompt: 200,
    unseen: 15.0,
    ..TREE
};

/// Memory-bound: reading the weights is what a pass costs, up to some rows.
fn wide(rows: f64) -> f64 {
    10_000.0_f64.max(600.0 * rows) + 40.0 * rows
}

/// Cache-bound: every row costs.
fn narrow(rows: f64) -> f64 {
    800.0 + 350.0 * rows
}

/// Nodes that a sequence may draft.
const MOST: u32 = 16;

fn all(_: u64, _: u64) -> u32 {
    MOST
}

/// Steps in which a text repeats an earlier one.
fn repeats(id: u64, step: u64) -> bool {
    (step / 3 + id).is_multiple_of(4)
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> f64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }
}

fn scheduler(policy: Policy, cap: Option<u32>) -> Fcfs {
    let options = FcfsOptions { policy, num_speculative_tokens: cap, ..FcfsOptions::default() };
    let host = FakeHost::new(ToyModel::new(16, 1)).with_facts(|facts| facts.max_sequences = 0);
    Fcfs::new(options, host.shared().handle()).unwrap()
}

fn decoding(id: u64, most: u32, held: u32) -> QueueSequence {
    QueueSequence {
        id: SeqId(id),
        request: RequestId(id),
        companion: Companion::NONE,
        priority: 0,
        uncomputed: 1,
        max_draft: most,
        slots_held: held,
        running: true,
    }
}

/// Microseconds a token of `batch` sequences over `steps` steps, every clock reading off by up to a tenth.
fn cost(scheduler: &mut Fcfs, machine: Machine, (batch, steps, seed): (u64, u64, u64)) -> f64 {
    let mut random = Random(seed);
    let nanoseconds = |micros: f64, random: &mut Random| (micros * (0.95 + 0.1 * random.next()) * 1e3) as u64;
    for rows in [1, 2, 4, 8, 16, 32] {
        let took = (machine.at_start)(f64::from(rows)) * (machine.pass)(f64::from(rows));
        let took = nanoseconds(took, &mut random);
        scheduler.observe(&StepReport::new(&[], rows, 0, took));
    }
    let held = 100 * batch as u32;
    let kv = KvStats { total: held + 100_000, free: 100_000, held, cached: 0 };
    let (mut time, mut tokens, mut plain_steps) = (0.0, 0.0, u32::MAX / 2);
    // Tokens of each sequence, and those that the proposer has seen.
    let mut texts = std::collections::HashMap::<u64, (u32, u32)>::new();
    for step in 0..steps {
        // Not all of them end together.
        let queue: Vec<_> = (0..batch)
            .map(|place| {
                let id = place + batch * ((step + place) / machine.life);
                decoding(id, machine.most, texts.entry(id).or_insert((machine.prompt, 0)).0)
            })
            .collect();
        let mut plan = RecordingPlan::default();
        scheduler.schedule(&QueueView::new(&queue, kv), &mut Plan::new(&mut plan)).unwrap();
        let mut reports = Vec::new();
        let (mut rows, mut largest, mut drafting, mut unseen) = (0.0, 0.0_f64, 0.0, 0);
        for (id, _, drafted) in plan.runs() {
            let right = (machine.right)(id.0, step);
            let budget = drafted;
            let drafted = budget.min((machine.has)(id.0, step));
            let accepted = (0..(machine.deep)(drafted)).take_while(|_| random.next() < right).count() as u32;
            rows += f64::from(1 + drafted);
            largest = largest.max(f64::from(drafted));
            drafting += f64::from(u32::from(drafted > 0));
            tokens += f64::from(1 + accepted);
            let text = texts.get_mut(&id.0).unwrap();
            if budget > 0 {
                unseen += text.0 - text.1;
                text.1 = text.0;
            }
            text.0 += 1 + accepted;
            reports.push(SequenceReport { id, rows: 1 + drafted, drafted, accepted, finished: false });
        }
        let draft = if drafting > 0.0 { (machine.draft)(drafting, largest) } else { 0.0 };
        let draft = draft + machine.unseen * f64::from(unseen);
        // A proposer that has not drafted for a while finds its data out of the caches, and the target then its own.
        let cold = if drafting > 0.0 && plain_steps > 16 { machine.cold } else { 1.0 };
        plain_steps = if drafting > 0.0 { 0 } else { plain_steps + 1 };
        let swaps = 1.0 + (machine.swaps - 1.0) * 0.4_f64.powi(plain_steps.min(9) as i32);
        let slow = (machine.slow)(step);
        let (draft, pass) = (slow * cold * draft, slow * cold.max(swaps) * (machine.pass)(rows));
        time += pass + draft;
        // A step that is not drafted in is not held up in its draft.
        let [in_draft, in_pass] = (machine.stalls)(step);
        let (draft, pass) = (draft + if drafting > 0.0 { in_draft } else { 0.0 }, pass + in_pass);
        let (draft, pass) = (nanoseconds(draft, &mut random), nanoseconds(pass, &mut random));
        scheduler.observe(&StepReport::new(&reports, rows as u32, draft, pass));
    }
    time / tokens
}

fn fixed(machine: Machine, run: (u64, u64, u64), nodes: u32) -> f64 {
    cost(&mut scheduler(Policy::Fixed, Some(nodes)), machine, run)
}

#[test]
fn cost_aware_is_never_slower_than_plain_and_near_the_best_fixed_length() {
    let cheap = |_: f64, _: f64| 2.0;
    let machines = [
        ("copies, memory-bound", Machine { pass: wide, draft: cheap, right: |_, _| 0.8, ..CHAIN }),
        ("copies, cache-bound", Machine { pass: narrow, draft: cheap, right: |_, _| 0.8, ..CHAIN }),
        (
            "a good head, memory-bound",
            Machine { pass: wide, draft: small_head, cold: 1.6, right: |_, _| 0.75, ..CHAIN },
        ),
        (
            "a good head, cache-bound",
            Machine { pass: narrow, draft: small_head, cold: 1.6, right: |_, _| 0.75, ..CHAIN },
        ),
        ("a useless head, memory-bound", USELESS),
        ("a useless head, memory-bound, short texts", Machine { life: 100, ..USELESS }),
        ("a useless head, cache-bound", Machine { pass: narrow, ..USELESS }),
        ("a useless head, cache-bound, short texts", Machine { pass: narrow, life: 100, ..USELESS }),
        (
            "some texts easy, some hard",
            Machine { pass: wide, draft: cheap, right: |id, _| if id % 2 == 0 { 0.9 } else { 0.1 }, ..CHAIN },
        ),
        (
            "long guesses where the text repeats itself, else short ones",
            Machine {
                pass: narrow,
                draft: cheap,
                right: |id, step| if repeats(id, step) { 0.93 } else { 0.2 },
                has: |id, step| if repeats(id, step) { MOST } else { 2 },
                ..CHAIN
            },
        ),
        ("a tree, cache-bound, short texts", TREE),
    ];
    let missed: Vec<_> = machines.into_iter().flat_map(|(name, machine)| judge(name, machine, 24, 1200)).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Proposers that must read prompts first, on a machine that is not what it seems.
#[test]
fn cost_aware_is_never_slower_where_much_says_that_it_would_pay() {
    let machines = [
        ("a dear tree", DEAR),
        ("a dear tree, longer texts", Machine { life: 200, ..DEAR }),
        ("a dear tree, nearly even", Machine { draft: |batch, nodes| batch * (20.0 + 40.0 * nodes), ..DEAR }),
        (
            "a tree that pays although it reads prompts",
            Machine { unseen: 15.0, prompt: 200, swaps: 1.2, life: 60, ..TREE },
        ),
        ("a useless head that reads prompts", Machine { right: |_, _| 0.02, ..DEAR }),
        ("a cheap one beside them", Machine { draft: |_, _| 5.0, swaps: 1.0, cold: 1.0, unseen: 0.1, ..DEAR }),
    ];
    let mut missed: Vec<_> = machines.into_iter().flat_map(|(name, machine)| judge(name, machine, 6, 6000)).collect();
    let useless = Machine { right: |_, _| 0.02, prompt: 120, unseen: 25.0, life: 120, ..DEAR };
    missed.extend(judge("a useless head that reads prompts, a short run", useless, 24, 1200));
    assert!(missed.is_empty(), "{missed:#?}");
}

/// Where `cost-aware` is slower than plain decoding, or far from the best fixed length.
fn judge(name: &str, machine: Machine, seeds: u64, steps: u64) -> Vec<String> {
    let mut missed = Vec::new();
    let mut check = |holds: bool, what: String| {
        if !holds {
            missed.push(what);
        }
    };
    for batch in [1, 4, 16, 64] {
        let (mut own, mut lengths) = (0.0, [0.0; 5]);
        for run in (1..=seeds).map(|seed| (batch, steps, seed)) {
            let (one, plain) = (cost(&mut scheduler(Policy::CostAware, None), machine, run), fixed(machine, run, 0));
            check(one < plain / 0.97, format!("{name}, {run:?}: {one} us a token, plain {plain}"));
            own += one;
            lengths.iter_mut().zip([0, 2, 4, 8, 16]).for_each(|(sum, nodes)| *sum += fixed(machine, run, nodes));
        }
        let best = lengths.into_iter().fold(f64::INFINITY, f64::min);
        println!("{name}, {batch}: {:.3} of plain, {:.3} of the best fixed", lengths[0] / own, best / own);
        check(
            own < best * 1.08,
            format!("{name}, {batch}: {own} us for {seeds} tokens, fixed 0, 2, 4, 8, 16: {lengths:?}"),
        );
    }
    missed
}

/// A machine that holds up a step now and then for as long as forty take: that is nothing that drafts cost.
#[test]
fn cost_aware_does_not_blame_drafts_for_what_holds_up_a_step() {
    let copies = Machine { pass: |rows| 190.0 + 22.0 * rows, draft: |_, _| 3.0, right: |_, _| 0.75, ..CHAIN };
    let machines = [
        (
            "held up in passes",
            Machine { stalls: |step| [0.0, if step % 300 == 150 { 10_000.0 } else { 0.0 }], ..copies },
        ),
        (
            "held up in drafts",
            Machine { stalls: |step| [if step % 300 == 150 { 10_000.0 } else { 0.0 }, 0.0], ..copies },
        ),
    ];
    let missed: Vec<_> = machines.into_iter().flat_map(|(name, machine)| judge(name, machine, 4, 6000)).collect();
    assert!(missed.is_empty(), "{missed:#?}");
}

/// The text changes from easy to hard and back: drafts stop, and begin again.
#[test]
fn cost_aware_stops_and_starts_with_the_text() {
    let machine = Machine {
        pass: narrow,
        draft: |_, _| 200.0,
        right: |_, step| if (step / 1000) % 2 == 0 { 0.9 } else { 0.02 },
        ..CHAIN
    };
    let own = cost(&mut scheduler(Policy::CostAware, None), machine, (1, 4000, 9));
    let (plain, eight) = (fixed(machine, (1, 4000, 9), 0), fixed(machine, (1, 4000, 9), 8));
    assert!(own < 0.85 * plain && own < 0.95 * eight, "{own} us a token, plain {plain}, 8 nodes {eight}");
}

#[test]
fn cost_aware_does_not_judge_by_the_first_few_drafts() {
    let machine = Machine { right: |_, step| if step < 5 { 0.0 } else { 0.8 }, life: u64::MAX, ..TREE };
    let runs: Vec<_> = (1..=16).map(|seed| (1, 300, seed)).collect();
    let own: f64 = runs.iter().map(|run| cost(&mut scheduler(Policy::CostAware, None), machine, *run)).sum();
    let plain: f64 = runs.iter().map(|run| fixed(machine, *run, 0)).sum();
    assert!(own < 0.85 * plain, "{own} us for 16 tokens, plain {plain}");
}

#[test]
fn adaptive_follows_each_sequences_own_acceptance() {
    let right = |id: u64, _: u64| if id == 0 { 0.99 } else { 0.2 };
    let machine = Machine { pass: wide, draft: |_, _| 0.0, right, ..CHAIN };
    let mut adaptive = scheduler(Policy::Adaptive, None);
    cost(&mut adaptive, machine, (2, 60, 9));
    let mut plan = RecordingPlan::default();
    let kv = KvStats { total: 1000, free: 800, held: 200, cached: 0 };
    adaptive
        .schedule(&QueueView::new(&[decoding(0, MOST, 100), decoding(1, MOST, 100)], kv), &mut Plan::new(&mut plan))
        .unwrap();
    let drafts: Vec<u32> = plan.runs().map(|run| run.2).collect();
    assert!(drafts[0] >= 6 && drafts[1] <= 2, "{drafts:?}");
}
