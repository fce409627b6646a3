//! Verb 8: tokens are appended, stop rules applied, text streamed, and proposers and scheduler told.
//!
//! A kept path may run past a stop; what follows the stop is dropped, so a completion is what plain decoding gives.

use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::{CommitBatch, CommitSequence, SequenceReport, StepReport};

use crate::engine::Core;
use crate::recycle::recycle;
use crate::request::Event;
use crate::sequence::{Branch, Sequence};

/// Appends, streams, reports.
pub fn emit(core: &mut Core, kv: &LoadedKv, sink: &mut dyn FnMut(Event<'_>)) {
    core.buffers.reports.clear();
    for place in 0..core.buffers.entries.len() {
        append(core, place, sink);
    }
    for proposer in 0..core.proposers.len() {
        tell_proposer(core, kv, proposer);
    }
    tell_scheduler(core);
    charge_time(core);
}

fn append(core: &mut Core, place: usize, sink: &mut dyn FnMut(Event<'_>)) {
    let entry = &core.buffers.entries[place];
    let tree = core.drafts.tree(entry.tree);
    if core.queue[entry.index].branch == Branch::Unconditional {
        follow(&mut core.queue, entry.index);
        let (rows, drafted) = (entry.row_range.len() as u32, tree.len() as u32);
        let accepted = entry.kept.len() as u32;
        let Sequence { id, finished, .. } = &core.queue[entry.index];
        let finished = finished.is_some();
        core.buffers.reports.push(SequenceReport { id: *id, rows, drafted, accepted, finished });
        return;
    }
    let sequence = &mut core.queue[entry.index];
    let kept = &core.buffers.kept[entry.kept.clone()];
    let mut accepted = 0;
    if let Some(next) = entry.next_token {
        for node in kept {
            let token = tree.tokens[*node as usize];
            push(sequence, token, true, core.tokenizer.is_eos(token), sink);
            accepted += 1;
            if sequence.finished.is_some() {
                break;
            }
        }
        if sequence.finished.is_none() {
            push(sequence, next, false, core.tokenizer.is_eos(next), sink);
            sequence.stats.decoded(tree.len(), accepted);
        } else {
            sequence.stats.decoded_to_stop(tree.len(), accepted);
        }
    }
    core.buffers.reports.push(SequenceReport {
        id: sequence.id,
        rows: entry.row_range.len() as u32,
        drafted: tree.len() as u32,
        accepted: accepted as u32,
        finished: sequence.finished.is_some(),
    });
}

/// The unconditional sequence at `index` takes what the conditional one before it took, and ends with it.
fn follow(queue: &mut [Sequence], index: usize) {
    let (before, after) = queue.split_at_mut(index);
    let (leader, follower) = (&before[index - 1], &mut after[0]);
    let missing = (leader.output_index() - follower.output_index()) as usize;
    follower.tokens.extend_from_slice(&leader.tokens[leader.tokens.len() - missing..]);
    follower.finished.clone_from(&leader.finished);
}

fn push(sequence: &mut Sequence, token: u32, drafted: bool, is_eos: bool, sink: &mut dyn FnMut(Event<'_>)) {
    sequence.append(token, is_eos);
    let text = sequence.text.as_ref().map_or("", |text| text.piece());
    sink(Event::Token { request: sequence.request, index: sequence.index, token, text, drafted });
}

/// Tells a proposer what was committed for each sequence that goes on; it sees only its own nodes as kept.
fn tell_proposer(core: &mut Core, kv: &LoadedKv, which: usize) {
    let mut batch: Vec<CommitSequence<'_>> = recycle(std::mem::take(&mut core.buffers.commits));
    for entry in &core.buffers.entries {
        let sequence = &core.queue[entry.index];
        if sequence.finished.is_some() || sequence.branch == Branch::Unconditional {
            continue;
        }
        let own = entry.proposer == Some(which);
        let kept = if own { &core.buffers.kept[entry.kept.clone()] } else { &[] };
        let slots = kv.slots(sequence.id).unwrap_or(&[]);
        batch.push(CommitSequence::new(sequence.id, entry.base_len as u32, kept, &sequence.tokens, slots));
    }
    if !batch.is_empty() {
        core.proposers[which].commit(CommitBatch::new(&batch));
    }
    core.buffers.commits = recycle(batch);
}

fn tell_scheduler(core: &mut Core) {
    let (buffers, times) = (&core.buffers, core.buffers.times);
    let rows = buffers.row_tokens.len() as u32;
    let nanoseconds = |time: std::time::Duration| time.as_nanos() as u64;
    // Choosing and keeping tokens goes by rows as the pass does: with 64 in flight, drafts add 2 % to a step of a small target.
    let rest = times.start.elapsed().saturating_sub(times.draft);
    let report = StepReport::new(&buffers.reports, rows, nanoseconds(times.draft), nanoseconds(rest));
    if let Err(error) = core.scheduler.observe(report) {
        tracing::error!("scheduler `{}`: observe: {error}", core.config.scheduler.name);
    }
}

/// Shares the step's time among its sequences by rows.
fn charge_time(core: &mut Core) {
    let times = core.buffers.times;
    let total_rows = core.buffers.row_tokens.len().max(1) as f64;
    let rest = times.start.elapsed().saturating_sub(times.draft + times.forward + times.verify);
    for entry in core.buffers.entries.iter().filter(|entry| entry.decodes) {
        let share = entry.row_range.len() as f64 / total_rows;
        let charge = |time: std::time::Duration| (time.as_nanos() as f64 * share) as u64;
        let is_follower = core.queue[entry.index].branch == Branch::Unconditional;
        let stats = &mut core.queue[entry.index - usize::from(is_follower)].stats;
        stats.draft_ns += charge(times.draft);
        stats.verify_ns += charge(times.forward + times.verify);
        stats.overhead_ns += charge(rest);
    }
}
