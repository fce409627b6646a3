//! The `fcfs` part: one unit per sequence.
//!
//! It ignores companions and says so by `supports_pairs`, upon which the engine refuses guidance at load. It learns
//! nothing from reports: with the `fixed` policy a plan is a function of the queue alone, so runs repeat exactly.

use foretoken_plugin_api::{Error, Host, Plan, QueueView, Result, Scheduler};

use crate::planner::{Limits, Planner};
use crate::unit::Unit;
use crate::{FcfsOptions, Policy};

/// The `fcfs` scheduler.
pub struct Fcfs {
    planner: Planner,
}

impl Fcfs {
    /// A scheduler for a host that runs at most `max_sequences` in a step, if it knows.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn with_options(options: &FcfsOptions, max_sequences: Option<u32>) -> Result<Self> {
        let FcfsOptions { max_num_seqs, max_num_batched_tokens, .. } = *options;
        let Policy::Fixed = options.policy;
        if max_num_seqs == 0 {
            return Err(Error::options("fcfs: max_num_seqs must be at least 1, got 0"));
        }
        if max_num_batched_tokens < max_num_seqs {
            return Err(Error::options(format!(
                "fcfs: max_num_batched_tokens must be at least max_num_seqs, one row for each sequence, got \
                 {max_num_batched_tokens} for {max_num_seqs}"
            )));
        }
        let planner = Planner::new(Limits {
            sequences: max_sequences.map_or(max_num_seqs, |most| most.min(max_num_seqs)),
            rows: max_num_batched_tokens,
            chunked_prefill: options.enable_chunked_prefill,
            draft: options.num_speculative_tokens,
        });
        Ok(Self { planner })
    }
}

impl Scheduler for Fcfs {
    type Options = FcfsOptions;

    fn new(options: FcfsOptions, host: Host) -> Result<Self> {
        let known = u32::try_from(host.target().max_sequences).unwrap_or(u32::MAX);
        Self::with_options(&options, (known > 0).then_some(known))
    }

    fn schedule(&mut self, queue: &QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let sequences = queue.sequences();
        let units = sequences.iter().enumerate().map(|(arrival, sequence)| Unit::new(arrival, sequence));
        let planned = self.planner.plan(units, &queue.kv);
        for unit in planned.iter().filter(|unit| unit.preempted) {
            plan.preempt(sequences[unit.arrival].id);
        }
        for unit in planned.iter().filter(|unit| unit.rows > 0) {
            plan.run(sequences[unit.arrival].id, unit.rows, unit.draft);
        }
        Ok(())
    }
}
