//! The parts `fcfs` and `cfg-pair`: how the queue becomes units, and planned units a plan.
//!
//! `fcfs` plans every sequence by itself and says so by `supports_pairs`, upon which the engine refuses guidance;
//! `cfg-pair` plans the two of a pair as one. Nothing else tells them apart. With the `fixed` policy they learn nothing
//! from reports: a plan is a function of the queue alone, so runs repeat exactly.

use foretoken_plugin_api::{Error, Host, Plan, QueueSequence, QueueView, Result, Scheduler, StepReport};

use crate::control::{Adaptive, Control};
use crate::planner::{Limits, Planner};
use crate::unit::Unit;
use crate::{FcfsOptions, Policy};

/// The `fcfs` scheduler.
pub struct Fcfs(Queue);

/// The `cfg-pair` scheduler.
pub struct CfgPair(Queue);

/// What both are.
struct Queue {
    planner: Planner,
    control: Control,
    gathered: Vec<Unit>,
}

impl Queue {
    /// For a host that runs at most `max_sequences` in a step, if it knows.
    fn new(name: &str, options: &FcfsOptions, max_sequences: Option<u32>) -> Result<Self> {
        let FcfsOptions { max_num_seqs, max_num_batched_tokens, .. } = *options;
        if max_num_seqs == 0 {
            return Err(Error::options(format!("{name}: max_num_seqs must be at least 1, got 0")));
        }
        if max_num_batched_tokens < max_num_seqs {
            return Err(Error::options(format!(
                "{name}: max_num_batched_tokens must be at least max_num_seqs, one row for each sequence, got \
                 {max_num_batched_tokens} for {max_num_seqs}"
            )));
        }
        let planner = Planner::new(Limits {
            sequences: max_sequences.map_or(max_num_seqs, |most| most.min(max_num_seqs)),
            rows: max_num_batched_tokens,
            chunked_prefill: options.enable_chunked_prefill,
            draft: options.num_speculative_tokens,
        });
        let control = match options.policy {
            Policy::Fixed => Control::Fixed,
            Policy::Adaptive => Control::Adaptive(Adaptive::new(options.min_speculative_tokens)),
            Policy::CostAware => Control::CostAware(Box::default()),
        };
        Ok(Self { planner, control, gathered: Vec::new() })
    }

    fn schedule(&mut self, gather: fn(&[QueueSequence], &mut Vec<Unit>), queue: &QueueView<'_>, plan: &mut Plan<'_>) {
        let sequences = queue.sequences();
        self.gathered.clear();
        gather(sequences, &mut self.gathered);
        self.control.limit(&mut self.gathered, sequences);
        let planned = self.planner.plan(&self.gathered, &queue.kv);
        self.control.planned(planned, sequences);
        for unit in planned.iter().filter(|unit| unit.preempted) {
            let running = unit.places().iter().filter(|place| sequences[**place].running);
            running.for_each(|place| plan.preempt(sequences[*place].id));
        }
        for unit in planned.iter().filter(|unit| unit.rows > 0) {
            for (place, rows) in unit.places().iter().zip(unit.split()) {
                plan.run(sequences[*place].id, rows, unit.draft);
            }
        }
    }
}

fn singles(sequences: &[QueueSequence], units: &mut Vec<Unit>) {
    units.extend(sequences.iter().enumerate().map(|(place, sequence)| Unit::single(place, sequence)));
}

/// Pairs where both are in the queue; the older one stands for both.
fn pairs(sequences: &[QueueSequence], units: &mut Vec<Unit>) {
    for (place, sequence) in sequences.iter().enumerate() {
        let companion = sequence.companion.get();
        let is_companion = |other: &QueueSequence| Some(other.id) == companion;
        // Halves usually stand side by side.
        let near = place + 1..sequences.len().min(place + 2);
        let other = match companion {
            None => None,
            Some(_) if place > 0 && is_companion(&sequences[place - 1]) => continue,
            Some(_) if near.clone().any(|other| is_companion(&sequences[other])) => Some(place + 1),
            Some(_) => sequences.iter().position(is_companion),
        };
        match other {
            None => units.push(Unit::single(place, sequence)),
            Some(other) if other < place => {}
            Some(other) => units.push(Unit::pair([place, other], [sequence, &sequences[other]])),
        }
    }
}

/// How many sequences a host runs at most, if it knows.
fn known(host: &Host) -> Option<u32> {
    let most = u32::try_from(host.target().max_sequences).unwrap_or(u32::MAX);
    (most > 0).then_some(most)
}

impl Scheduler for Fcfs {
    type Options = FcfsOptions;

    fn new(options: FcfsOptions, host: Host) -> Result<Self> {
        Ok(Self(Queue::new("fcfs", &options, known(&host))?))
    }

    fn schedule(&mut self, queue: &QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        self.0.schedule(singles, queue, plan);
        Ok(())
    }

    fn observe(&mut self, report: &StepReport<'_>) {
        self.0.control.observe(report);
    }
}

impl Scheduler for CfgPair {
    type Options = FcfsOptions;

    fn new(options: FcfsOptions, host: Host) -> Result<Self> {
        Ok(Self(Queue::new("cfg-pair", &options, known(&host))?))
    }

    fn schedule(&mut self, queue: &QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        self.0.schedule(pairs, queue, plan);
        Ok(())
    }

    fn observe(&mut self, report: &StepReport<'_>) {
        self.0.control.observe(report);
    }

    fn supports_pairs(&self) -> bool {
        self.0.planner.limits().sequences >= 2
    }
}
