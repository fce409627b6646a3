//! First come, first served: the oldest run, the youngest make room.

use std::collections::BTreeSet;

use foretoken_plugin_api::{Host, Plan, QueueSequence, QueueView, Result, Scheduler, SeqId, StepReport};

use super::FaultOptions;

pub struct Fcfs {
    options: FaultOptions,
    observed: usize,
}

impl Fcfs {
    fn is(&self, fault: &str) -> bool {
        self.options.is(fault)
    }

    /// Requests: single sequences, or both halves of a pair.
    fn groups<'a>(&self, queue: &QueueView<'a>) -> Vec<Vec<&'a QueueSequence>> {
        let (mut groups, mut taken) = (Vec::new(), BTreeSet::new());
        for sequence in queue.sequences() {
            if !taken.insert(sequence.id) {
                continue;
            }
            let mut group = vec![sequence];
            let companion = sequence.companion.get().filter(|_| !self.is("splits pairs"));
            let other = companion.and_then(|id| queue.sequences().iter().find(|other| other.id == id));
            group.extend(other.filter(|other| taken.insert(other.id)));
            groups.push(group);
        }
        groups
    }
}

fn least(group: &[&QueueSequence]) -> u32 {
    group.len() as u32 * u32::from(group.iter().all(|sequence| sequence.uncomputed > 0))
}

impl Scheduler for Fcfs {
    type Options = FaultOptions;

    fn new(options: FaultOptions, _: Host) -> Result<Self> {
        Ok(Self { options, observed: 0 })
    }

    fn schedule(&mut self, queue: &QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        let groups = self.groups(queue);
        let mut available = queue.kv.free + if self.is("forgets cached") { 0 } else { queue.kv.cached };
        let mut end = groups.len();
        let mut index = 0;
        while index < end {
            let group = &groups[index];
            while available < least(group) && end > index + 1 && !self.is("never preempts") {
                end -= 1;
                for sequence in groups[end].iter().filter(|sequence| sequence.running) {
                    plan.preempt(sequence.id);
                    available += sequence.slots_held;
                }
            }
            if available < least(group) {
                break;
            }
            for (place, sequence) in group.iter().enumerate() {
                let reserve = (group.len() - place - 1) as u32;
                let rows = if self.is("too many rows") { 64 } else { sequence.uncomputed.min(available - reserve) };
                let budget =
                    if rows < sequence.uncomputed { 0 } else { sequence.max_draft.min(available - reserve - rows) };
                let budget = if self.is("drafts everywhere") { sequence.max_draft } else { budget };
                plan.run(sequence.id, rows, budget);
                if self.is("duplicates") {
                    plan.run(sequence.id, rows, budget);
                }
                available = available.saturating_sub(rows + budget);
            }
            index += 1;
        }
        if self.is("unknown id") {
            plan.run(SeqId(12345), 1, 0);
        }
        Ok(())
    }

    fn observe(&mut self, report: &StepReport<'_>) {
        self.observed += report.sequences().len();
    }

    fn supports_pairs(&self) -> bool {
        true
    }
}
