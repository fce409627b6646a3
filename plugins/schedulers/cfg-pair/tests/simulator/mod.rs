//! An engine without a model: an exact pool of slots, random acceptance, forks that share their prompt's slots.
//!
//! It runs what the scheduler plans and asserts the contract of a plan in every step, with the true number of free slots
//! after the plan's preemptions, which the scheduler itself can only bound.

use foretoken_cfg_pair::{CfgPair, FcfsOptions};
use foretoken_plugin_api::testkit::{FakeHost, RecordingPlan, ToyModel};
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{KvStats, Plan, QueueSequence, QueueView, RequestId, Scheduler, SeqId};

/// What arrives.
#[derive(Debug, Clone)]
pub struct Arrival {
    pub step: usize,
    pub prompt_len: u32,
    /// The negative prompt's length, for a pair.
    pub negative: Option<u32>,
    pub new_len: u32,
    pub completions: u32,
    pub priority: i32,
    pub max_draft: u32,
}

/// A sequence in flight.
#[derive(Debug, Clone)]
pub struct Flight {
    pub id: SeqId,
    pub companion: Option<SeqId>,
    pub what: Arrival,
    len: u32,
    computed: u32,
    shared: Option<usize>,
    forks: u32,
    pub running: bool,
    /// Steps that it may take at most: its own work and that of all before it.
    deadline: usize,
}

struct Prefix {
    len: u32,
    holders: u32,
}

pub struct Simulator {
    options: FcfsOptions,
    scheduler: CfgPair,
    total: u32,
    pub flights: Vec<Flight>,
    prefixes: Vec<Prefix>,
    next_id: u64,
    step: usize,
    random: u64,
    equal_priorities: bool,
    pub preemptions: usize,
}

impl Simulator {
    pub fn new(options: FcfsOptions, total: u32, random: u64) -> Self {
        let scheduler = CfgPair::new(
            options.clone(),
            FakeHost::new(ToyModel::new(16, 1)).with_facts(|facts| facts.max_sequences = 0).shared().handle(),
        )
        .unwrap();
        Self {
            options,
            scheduler,
            total,
            flights: Vec::new(),
            prefixes: Vec::new(),
            next_id: 0,
            step: 0,
            random,
            equal_priorities: true,
            preemptions: 0,
        }
    }

    /// Runs everything to its end; panics where the contract is broken or nothing moves any more.
    pub fn drain(&mut self, mut arrivals: Vec<Arrival>) {
        arrivals.sort_by_key(|arrival| arrival.step);
        self.equal_priorities = arrivals.windows(2).all(|pair| pair[0].priority == pair[1].priority);
        let mut arrivals = arrivals.into_iter().peekable();
        while arrivals.peek().is_some() || !self.flights.is_empty() {
            while let Some(arrival) = arrivals.next_if(|arrival| arrival.step <= self.step) {
                self.arrive(arrival);
            }
            if !self.flights.is_empty() {
                self.run_step();
            }
            self.step += 1;
            assert!(self.step < 1_000_000, "nothing drains");
        }
        assert_eq!(self.stats().held, 0);
    }

    fn arrive(&mut self, what: Arrival) {
        let work = |what: &Arrival| ((what.prompt_len + what.new_len) * what.completions) as usize;
        let halves = match what.negative {
            None => vec![what],
            // Completions of a pair share nothing here.
            Some(len) => {
                vec![Arrival { completions: 1, ..what.clone() }, Arrival { prompt_len: len, completions: 1, ..what }]
            }
        };
        let before: usize = self.flights.iter().map(|flight| work(&flight.what)).sum();
        let deadline = self.step + before + halves.iter().map(work).sum::<usize>();
        let is_pair = halves.len() == 2;
        for (place, what) in (0u64..).zip(halves) {
            let (len, forks) = (what.prompt_len, what.completions - 1);
            let companion = is_pair.then_some(SeqId(self.next_id + 1 - 2 * place));
            let id = SeqId(self.next_id);
            let flight =
                Flight { id, companion, what, len, computed: 0, shared: None, forks, running: false, deadline };
            self.flights.push(flight);
            self.next_id += 1;
        }
    }

    pub fn stats(&self) -> KvStats {
        let prefixes = self.prefixes.iter().filter(|prefix| prefix.holders > 0).map(|prefix| prefix.len).sum::<u32>();
        let own = self.flights.iter().map(|flight| flight.computed - self.shared_len(flight)).sum::<u32>();
        let held = prefixes + own;
        KvStats { total: self.total, free: self.total - held, held, cached: 0 }
    }

    fn shared_len(&self, flight: &Flight) -> u32 {
        flight.shared.map_or(0, |prefix| self.prefixes[prefix].len)
    }

    fn run_step(&mut self) {
        let queue: Vec<_> = self.flights.iter().map(Flight::queued).collect();
        let mut plan = RecordingPlan::default();
        self.scheduler.schedule(&QueueView::new(&queue, self.stats()), &mut Plan::new(&mut plan)).unwrap();
        self.check_plan(&plan);
        for id in plan.preempted() {
            self.drop_slots(self.find(id));
        }
        self.preemptions += plan.preempted().count();
        let planned: u32 = plan.runs().map(|(_, rows, draft)| rows + draft).sum();
        assert!(planned <= self.stats().free, "{planned} slots planned, {} free", self.stats().free);
        let ready = |&(id, rows, _): &(SeqId, u32, u32)| rows == self.flights[self.find(id)].uncomputed();
        let runs: Vec<_> = plan.runs().map(|run| (run, ready(&run))).collect();
        let mut accepted = 0;
        for &((id, rows, draft), reaches) in &runs {
            let companion = self.flights[self.find(id)].companion;
            let beside =
                companion.map(|other| runs.iter().find(|run| run.0.0 == other).expect("half of a pair runs alone"));
            if let Some(beside) = beside {
                assert!(draft == beside.0.2 && (draft == 0 || reaches && beside.1), "{plan:?}");
            }
            if companion.is_none_or(|other| id < other) {
                accepted = self.random(draft + 1);
            }
            // A half that is ready before the other stops a row short.
            let held = reaches && beside.is_some_and(|beside| !beside.1);
            self.run_sequence(id, rows - u32::from(held), accepted);
        }
        self.retire();
        self.check_order();
    }

    fn check_plan(&self, plan: &RecordingPlan) {
        let mut named: Vec<_> = plan.runs().map(|run| run.0).chain(plan.preempted()).collect();
        named.sort();
        assert!(named.windows(2).all(|pair| pair[0] != pair[1]), "named twice: {named:?}");
        assert!(plan.preempted().all(|id| self.flights[self.find(id)].running), "preempted a waiting sequence");
        assert!(plan.runs().count() > 0, "nothing moves: {:?} {:?}", self.flights, self.stats());
        assert!(plan.runs().count() <= self.options.max_num_seqs as usize);
        let rows: u32 = plan.runs().map(|(_, rows, draft)| rows + draft).sum();
        assert!(rows <= self.options.max_num_batched_tokens, "{rows} rows");
        for (id, rows, draft) in plan.runs() {
            let flight = &self.flights[self.find(id)];
            let uncomputed = flight.uncomputed();
            assert!((1..=uncomputed).contains(&rows));
            let cap = self.options.num_speculative_tokens.unwrap_or(u32::MAX);
            assert!(draft <= flight.what.max_draft.min(cap));
            assert!(draft == 0 || rows == uncomputed, "a draft without its anchor");
            let in_parts = rows < uncomputed && !self.options.enable_chunked_prefill;
            let other = flight.companion.map(|other| &self.flights[self.find(other)]);
            let whole = uncomputed + other.map_or(0, Flight::uncomputed);
            let runs = flight.running || other.is_some_and(|other| other.running);
            assert!(!in_parts || whole > self.options.max_num_batched_tokens || runs);
            assert!(runs || plan.preempted().count() == 0, "admitted and preempted in one step");
        }
    }

    /// First come, first served: with equal priorities nobody waits while a later one runs, and all keep their deadlines.
    fn check_order(&self) {
        if self.equal_priorities {
            let waiting = self.flights.iter().position(|flight| !flight.running).unwrap_or(self.flights.len());
            assert!(self.flights[waiting..].iter().all(|flight| !flight.running), "overtaken: {:?}", self.flights);
            for flight in &self.flights {
                assert!(self.step <= flight.deadline, "starved at step {}: {flight:?}", self.step);
            }
        }
    }

    fn run_sequence(&mut self, id: SeqId, rows: u32, accepted: u32) {
        let place = self.find(id);
        let flight = &mut self.flights[place];
        flight.running = true;
        flight.computed += rows;
        if flight.computed == flight.len {
            let left = flight.what.prompt_len + flight.what.new_len - flight.len;
            let accepted = accepted.min(left - 1);
            flight.computed += accepted;
            flight.len += accepted + 1;
            self.fork(place);
        }
    }

    fn fork(&mut self, place: usize) {
        let flight = &mut self.flights[place];
        let forks = std::mem::take(&mut flight.forks);
        if forks > 0 {
            flight.shared = Some(self.prefixes.len());
            self.prefixes.push(Prefix { len: flight.computed, holders: forks + 1 });
            for fork in 0..forks {
                let child = Flight { id: SeqId(self.next_id + u64::from(fork)), ..self.flights[place].clone() };
                self.flights.insert(place + 1 + fork as usize, child);
            }
            self.next_id += u64::from(forks);
        }
    }

    fn drop_slots(&mut self, place: usize) {
        let flight = &mut self.flights[place];
        if let Some(prefix) = flight.shared.take() {
            self.prefixes[prefix].holders -= 1;
        }
        (flight.computed, flight.running) = (0, false);
    }

    fn retire(&mut self) {
        for place in (0..self.flights.len()).rev() {
            let flight = &self.flights[place];
            if flight.len == flight.what.prompt_len + flight.what.new_len {
                self.drop_slots(place);
                self.flights.remove(place);
            }
        }
    }

    fn find(&self, id: SeqId) -> usize {
        self.flights.iter().position(|flight| flight.id == id).expect("planned what is not in the queue")
    }

    fn random(&mut self, below: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        ((self.random >> 33) % u64::from(below)) as u32
    }
}

impl Flight {
    fn uncomputed(&self) -> u32 {
        self.len - self.computed
    }

    fn queued(&self) -> QueueSequence {
        QueueSequence {
            id: self.id,
            request: RequestId(self.id.0),
            companion: self.companion.map_or(Companion::NONE, Companion::of),
            priority: self.what.priority,
            uncomputed: self.uncomputed(),
            max_draft: self.what.max_draft.min(self.what.prompt_len + self.what.new_len - self.len),
            slots_held: self.computed,
            running: self.running,
        }
    }
}
