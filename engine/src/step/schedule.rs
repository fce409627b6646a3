//! Verb 1: which sequences run, with how many rows and how large a draft.
//!
//! The scheduler sees every unfinished sequence in order of arrival and answers with runs and preemptions. What it asks
//! is checked here, not trusted: unknown or repeated sequences and too many rows are clamped away, since a plan can be
//! wrong without any token being at risk.

use foretoken_plugin_api::author::PlanSink;
use foretoken_plugin_api::types::plan::Companion;
use foretoken_plugin_api::{Plan, QueueSequence, QueueView, SeqId};

use super::{Entry, Fault};
use crate::engine::{Core, Engine};
use crate::sequence::{self, Branch, Sequence, Sharing};
use foretoken_plugin_api::abi::kv::LoadedKv;

/// Waiting sequences that a scheduler sees at once: the oldest ones. More would cost time in every step and change nothing.
const VISIBLE_WAITING: usize = 1024;

/// A plan as the scheduler gave it.
#[derive(Debug, Default)]
pub struct PlanBuffer {
    runs: Vec<(SeqId, u32, u32)>,
    preempts: Vec<SeqId>,
}

impl PlanSink for PlanBuffer {
    fn run(&mut self, sequence: SeqId, rows: u32, draft_budget: u32) {
        self.runs.push((sequence, rows, draft_budget));
    }

    fn preempt(&mut self, sequence: SeqId) {
        self.preempts.push(sequence);
    }
}

/// Plans the step: fills the entries.
pub fn schedule(core: &mut Core, kv: &mut LoadedKv) -> Result<(), Fault> {
    let kv_fault = |error| Fault::All(format!("kv manager: {error}"));
    let stats = kv.stats().map_err(kv_fault)?;
    view_queue(core);
    let plan = &mut core.buffers.plan;
    plan.runs.clear();
    plan.preempts.clear();
    let view = QueueView::new(&core.buffers.queue, stats);
    let result = core.scheduler.schedule(view, &mut Plan::new(plan));
    result.map_err(|error| Fault::All(format!("scheduler `{}`: {error}", core.config.scheduler.name)))?;
    let plan = std::mem::take(&mut core.buffers.plan);
    for id in &plan.preempts {
        let Some(index) = Engine::index_of(&core.queue, *id) else { continue };
        preempt(core, kv, index)?;
        if let Some(other) = sequence::companion(&core.queue, index) {
            preempt(core, kv, other)?;
        }
    }
    for (id, rows, budget) in &plan.runs {
        enter(core, kv, *id, *rows as usize, *budget as usize);
    }
    core.buffers.plan = plan;
    core.buffers.entries.sort_unstable_by_key(|entry| entry.index);
    align_pairs(&core.queue, &mut core.buffers.entries);
    Ok(())
}

/// The anchors of a pair run together or not at all: a half that is ready before the other stops short of its last token.
fn align_pairs(queue: &[Sequence], entries: &mut Vec<Entry>) {
    let mut left = &mut entries[..];
    while let Some((entry, rest)) = left.split_first_mut() {
        left = rest;
        match (queue[entry.index].branch, left.first_mut()) {
            (Branch::Alone, _) => {}
            (Branch::Conditional, Some(other)) if other.index == entry.index + 1 => {
                let are_ready = entry.decodes && other.decodes;
                let drafts = are_ready && entry.rows == 1 && other.rows == 1;
                entry.budget = if drafts { entry.budget.min(other.budget) } else { 0 };
                other.budget = 0;
                if !are_ready {
                    hold_back(entry);
                    hold_back(other);
                }
                left = &mut left[1..];
            }
            _ => hold_back(entry),
        }
    }
    entries.retain(|entry| entry.rows > 0);
}

/// Leaves the anchor, if the entry has it, for a later step.
fn hold_back(entry: &mut Entry) {
    if std::mem::take(&mut entry.decodes) {
        entry.rows -= 1;
        entry.budget = 0;
    }
}

fn view_queue(core: &mut Core) {
    core.buffers.queue.clear();
    let mut waiting = 0;
    for (index, sequence) in core.queue.iter().enumerate() {
        let companion = sequence::companion(&core.queue, index).map(|other| &core.queue[other]);
        let is_ready = has_prompt(core, sequence) && companion.is_none_or(|companion| has_prompt(core, companion));
        if sequence.finished.is_some() || !is_ready {
            continue;
        }
        waiting += usize::from(!sequence.admitted);
        if !sequence.admitted && waiting > VISIBLE_WAITING {
            continue;
        }
        core.buffers.queue.push(QueueSequence {
            id: sequence.id,
            request: sequence.request,
            companion: companion.map_or(Companion::NONE, |companion| Companion::of(companion.id)),
            priority: sequence.sampling.priority,
            uncomputed: visible_rows(sequence) as u32,
            max_draft: max_draft(core, sequence) as u32,
            slots_held: sequence.computed as u32,
            running: sequence.admitted,
        });
    }
}

/// Whether it does not wait for another completion to compute its prompt.
fn has_prompt(core: &Core, sequence: &Sequence) -> bool {
    let key = sequence.prompt_key();
    sequence.sharing != Sharing::Sibling || core.templates.iter().any(|template| template.key == key)
}

/// A sibling whose prompt is ready will start at the prompt's last token.
fn visible_rows(sequence: &Sequence) -> usize {
    match sequence.sharing {
        Sharing::Sibling => sequence.tokens.len() - (sequence.prompt_len - 1),
        _ => sequence.plannable(),
    }
}

/// The largest draft that any proposer this sequence may use would make.
fn max_draft(core: &Core, sequence: &Sequence) -> usize {
    let usable = core.proposers.iter().filter(|proposer| proposer.serves(&sequence.sampling));
    let most = usable.map(|proposer| proposer.needs.max_draft).max().unwrap_or(0);
    let asked = sequence.sampling.max_draft.map_or(usize::MAX, |asked| asked as usize);
    most.min(asked).min(sequence.room_for_draft())
}

fn preempt(core: &mut Core, kv: &mut LoadedKv, index: usize) -> Result<(), Fault> {
    if !core.queue[index].admitted {
        return Ok(());
    }
    let id = core.queue[index].id;
    kv.free(id).map_err(|error| Fault::All(format!("kv manager: free: {error}")))?;
    core.proposers.iter_mut().for_each(|proposer| proposer.finish(id));
    core.queue[index].forget_kv();
    core.buffers.preempted = true;
    core.totals.preemptions += 1;
    tracing::debug!(sequence = id.0, "preempted; it will be recomputed");
    Ok(())
}

/// Adds an entry for a planned run, admitting the sequence if it is new.
fn enter(core: &mut Core, kv: &mut LoadedKv, id: SeqId, rows: usize, budget: usize) {
    let Some(index) = Engine::index_of(&core.queue, id) else { return };
    let repeated = core.buffers.entries.iter().any(|entry| entry.index == index);
    if rows == 0 || repeated || core.queue[index].finished.is_some() {
        return;
    }
    if !core.queue[index].admitted
        && let Err(error) = admit(core, kv, index)
    {
        let error = format!("kv manager `{}`: admit: {error}", core.config.kv.name);
        sequence::fail(&mut core.queue, index, error);
        return;
    }
    let budget = budget.min(max_draft(core, &core.queue[index]));
    let sequence = &mut core.queue[index];
    sequence.started.get_or_insert(core.buffers.times.start);
    let rows = rows.min(sequence.plannable());
    let decodes = rows == sequence.uncomputed();
    core.buffers.entries.push(Entry {
        index,
        rows,
        decodes,
        tree: 0,
        proposer: None,
        // Only an anchor alone is drafted for: a prompt's last chunk gives its first token soonest without.
        budget: if decodes && rows == 1 { budget } else { 0 },
        row_range: 0..0,
        first_logit: 0,
        verdict: None,
        base_len: sequence.computed,
        kept: 0..0,
        next_token: None,
    });
}

fn admit(core: &mut Core, kv: &mut LoadedKv, index: usize) -> foretoken_plugin_api::Result<()> {
    let sequence = &mut core.queue[index];
    if sequence.sharing == Sharing::Sibling
        && let Some(template) = core.templates.iter().find(|template| template.key == sequence.prompt_key())
    {
        kv.fork(template.id, sequence.id)?;
        sequence.computed = sequence.prompt_len - 1;
        sequence.sharing = Sharing::None;
        sequence.admitted = true;
        let key = sequence.prompt_key();
        super::commit::template_used(core, kv, key);
        return Ok(());
    }
    let cached = kv.admit(sequence.id, &sequence.tokens)?;
    sequence.computed = cached.min(sequence.tokens.len() - 1);
    sequence.admitted = true;
    if sequence.sharing == Sharing::Leader && sequence.computed + 1 == sequence.prompt_len {
        // There is nothing left to compute for the others, who will find it as this one did.
        let key = sequence.prompt_key();
        super::commit::unshare(core, key);
    }
    Ok(())
}
