//! A queue and a pool of slots for scheduler checks: applies a plan as the engine would, and refuses a wrong one.

use std::collections::BTreeSet;

use super::super::plan::RecordingPlan;
use super::super::report::ensure;
use super::super::subject::SchedulerSubject;
use super::text;
use crate::author::Plan;
use crate::types::plan::Companion;
use crate::types::{KvStats, QueueSequence, QueueView, RequestId, SeqId, SequenceReport, StepReport};

/// A sequence to run to its end.
#[derive(Debug, Clone)]
pub(super) struct Job {
    pub(super) id: SeqId,
    pub(super) request: RequestId,
    pub(super) companion: Option<SeqId>,
    pub(super) priority: i32,
    pub(super) max_draft: u32,
    /// Tokens it has, and how many it still generates.
    pub(super) tokens: u32,
    pub(super) remaining: u32,
    pub(super) slots_held: u32,
    pub(super) running: bool,
}

impl Job {
    pub(super) fn new(id: u64, prompt: u32, generate: u32) -> Self {
        Self {
            id: SeqId(id),
            request: RequestId(id),
            companion: None,
            priority: 0,
            max_draft: 0,
            tokens: prompt,
            remaining: generate,
            slots_held: 0,
            running: false,
        }
    }

    fn uncomputed(&self) -> u32 {
        self.tokens - self.slots_held
    }

    fn view(&self) -> QueueSequence {
        QueueSequence {
            id: self.id,
            request: self.request,
            companion: self.companion.map_or(Companion::NONE, Companion::of),
            priority: self.priority,
            uncomputed: self.uncomputed(),
            max_draft: self.max_draft.min(self.remaining.saturating_sub(1)),
            slots_held: self.slots_held,
            running: self.running,
        }
    }
}

/// The queue, oldest first, and the pool.
pub(super) struct World {
    pub(super) jobs: Vec<Job>,
    pub(super) slots: u32,
    /// Whether slots nobody holds are cached prefixes, to be evicted, rather than free.
    pub(super) cached: bool,
    pub(super) steps: usize,
}

impl World {
    pub(super) fn new(jobs: Vec<Job>, slots: u32) -> Self {
        Self { jobs, slots, cached: false, steps: 0 }
    }

    fn unheld(&self) -> u32 {
        self.slots - self.jobs.iter().map(|job| job.slots_held).sum::<u32>()
    }

    fn stats(&self) -> KvStats {
        let unheld = self.unheld();
        let (free, cached) = if self.cached { (0, unheld) } else { (unheld, 0) };
        KvStats { total: self.slots, free, held: self.slots - unheld, cached }
    }

    /// Steps until the queue is empty, observing the largest number of sequences that ran together.
    pub(super) fn drain(&mut self, part: &mut dyn SchedulerSubject) -> Result<usize, String> {
        let work: u32 = self.jobs.iter().map(|job| job.tokens + job.remaining).sum();
        // Every step computes a row or more; preemption may waste some, but not forever.
        let (limit, mut idle, mut widest) = (64 + 8 * work as usize * self.jobs.len(), 0, 0);
        while !self.jobs.is_empty() {
            ensure(self.steps < limit, || format!("not drained after {limit} steps: {:?}", self.jobs))?;
            let ran = self.step(part)?;
            idle = if ran == 0 { idle + 1 } else { 0 };
            widest = widest.max(ran);
            let (stats, waiting) = (self.stats(), self.jobs.len());
            ensure(idle < 4, || format!("{idle} steps ran nothing with {waiting} sequences waiting, {stats:?}"))?;
        }
        Ok(widest)
    }

    /// One step; returns how many sequences ran.
    pub(super) fn step(&mut self, part: &mut dyn SchedulerSubject) -> Result<usize, String> {
        self.steps += 1;
        let views: Vec<QueueSequence> = self.jobs.iter().map(Job::view).collect();
        let mut plan = RecordingPlan::default();
        part.schedule(QueueView::new(&views, self.stats()), &mut Plan::new(&mut plan)).map_err(text)?;
        self.check(&plan)?;
        for id in plan.preempted() {
            let job = self.job(id)?;
            (job.slots_held, job.running) = (0, false);
        }
        let runs: Vec<(SeqId, u32, u32)> = plan.runs().collect();
        let mut reports = Vec::new();
        for run in self.settle_pairs(&runs)? {
            reports.push(self.run(run)?);
        }
        let rows = reports.iter().map(|report| report.rows).sum();
        part.observe(StepReport::new(&reports, rows, 1_000, 20_000)).map_err(text)?;
        self.jobs.retain(|job| job.remaining > 0);
        Ok(reports.len())
    }

    fn job(&mut self, id: SeqId) -> Result<&mut Job, String> {
        self.jobs.iter_mut().find(|job| job.id == id).ok_or_else(|| format!("{id:?} is not in the queue"))
    }

    fn check(&mut self, plan: &RecordingPlan) -> Result<(), String> {
        let mut named = BTreeSet::new();
        let all = plan.preempted().chain(plan.runs().map(|(id, ..)| id));
        for id in all {
            ensure(named.insert(id), || format!("{id:?} is named twice: {:?}", plan.entries))?;
            self.job(id)?;
        }
        let mut available = self.unheld();
        for id in plan.preempted() {
            let job = self.job(id)?;
            ensure(job.running, || format!("preempts {id:?}, which is not running"))?;
            available += job.slots_held;
        }
        let mut needed = 0;
        for (id, rows, draft_budget) in plan.runs() {
            let job = self.job(id)?.view();
            let fits = rows >= 1 && rows <= job.uncomputed;
            ensure(fits, || format!("{id:?}: {rows} rows of {} uncomputed", job.uncomputed))?;
            ensure(draft_budget <= job.max_draft, || format!("{id:?}: draft {draft_budget} of {}", job.max_draft))?;
            let reaches = draft_budget == 0 || rows == job.uncomputed;
            ensure(reaches, || format!("{id:?}: a draft, but {rows} rows of {} leave the anchor out", job.uncomputed))?;
            let together = job.companion.get().is_none_or(|other| named.contains(&other));
            ensure(together, || format!("{id:?} runs without its companion"))?;
            needed += rows + draft_budget;
        }
        ensure(needed <= available, || format!("plans {needed} slots, {available} can be had: {:?}", plan.entries))
    }

    /// Both halves of a pair take the next token from the same step: one that would reach its anchor alone stops a row
    /// before it, and both draft alike.
    fn settle_pairs(&mut self, runs: &[(SeqId, u32, u32)]) -> Result<Vec<(SeqId, u32, u32)>, String> {
        let mut settled = Vec::new();
        for &(id, rows, draft_budget) in runs {
            let reaches = rows == self.job(id)?.uncomputed();
            let other = self.job(id)?.companion;
            let Some(other) = other.and_then(|other| runs.iter().find(|run| run.0 == other)) else {
                settled.push((id, rows, draft_budget));
                continue;
            };
            let both = reaches && other.1 == self.job(other.0)?.uncomputed();
            let draft_budget = if both { draft_budget.min(other.2) } else { 0 };
            settled.push((id, rows - u32::from(reaches && !both), draft_budget));
        }
        Ok(settled)
    }

    fn run(&mut self, (id, rows, draft_budget): (SeqId, u32, u32)) -> Result<SequenceReport, String> {
        let step = self.steps as u32;
        let job = self.job(id)?;
        (job.slots_held, job.running) = (job.slots_held + rows, true);
        let mut accepted = 0;
        if job.uncomputed() == 0 {
            accepted = if draft_budget == 0 { 0 } else { step % (draft_budget + 1) };
            job.slots_held += accepted;
            job.tokens += accepted + 1;
            job.remaining = job.remaining.saturating_sub(accepted + 1);
        }
        let finished = job.remaining == 0;
        if finished {
            job.slots_held = 0;
        }
        Ok(SequenceReport { id, rows: rows + draft_budget, drafted: draft_budget, accepted, finished })
    }
}
