//! Verb 2: a draft tree per decoding sequence, within its budget.
//!
//! Proposers are asked in the config's order; the next one gets the sequences for which the one before drafted nothing.
//! A proposer's fault drops its drafts and costs speed, never tokens.

use std::time::Instant;

use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::types::batch::SequenceSlices;
use foretoken_plugin_api::{ProposeBatch, ProposeSequence};

use crate::drafts::TreeSetup;
use crate::engine::Core;
use crate::recycle::recycle;
use crate::sequence::Branch;

/// Drafts for every entry that may have a draft.
pub fn propose(core: &mut Core, kv: &LoadedKv) {
    core.drafts.begin();
    let mut last = 0;
    for entry in &mut core.buffers.entries {
        let sequence = &core.queue[entry.index];
        if entry.decodes && sequence.branch == Branch::Unconditional {
            // What is guessed for the conditional sequence is verified in both.
            entry.tree = last;
            continue;
        }
        last = core.drafts.add_tree(TreeSetup {
            budget: entry.budget as u32,
            branches: false,
            params: sequence.sampling.params,
            noise: sequence.noise(),
            output_index: sequence.output_index(),
        });
        entry.tree = last;
    }
    if core.buffers.entries.iter().all(|entry| entry.budget == 0) {
        return;
    }
    let start = Instant::now();
    for proposer in 0..core.proposers.len() {
        ask(core, kv, proposer);
    }
    core.buffers.times.draft = start.elapsed();
}

fn ask(core: &mut Core, kv: &LoadedKv, which: usize) {
    let mut batch: Vec<ProposeSequence<'_>> = recycle(std::mem::take(&mut core.buffers.propose));
    let proposer = &mut core.proposers[which];
    if proposer.quarantined() {
        return;
    }
    let (trees, asked) = (&mut core.buffers.propose_trees, &mut core.buffers.propose_entries);
    trees.clear();
    asked.clear();
    for (place, entry) in core.buffers.entries.iter().enumerate() {
        let sequence = &mut core.queue[entry.index];
        let drafted = !core.drafts.tree(entry.tree).is_empty();
        if entry.budget == 0 || drafted || !proposer.serves(&sequence.sampling) {
            continue;
        }
        let Ok(slots) = kv.slots(sequence.id) else { continue };
        proposer.lanes.extend_valid(slots, &mut sequence.lane_valid[which]);
        trees.push(entry.tree);
        asked.push(place);
    }
    for &place in &*asked {
        let entry = &core.buffers.entries[place];
        let sequence = &core.queue[entry.index];
        let budget = entry.budget.min(proposer.needs.max_draft) as u32;
        core.drafts.tree_mut(entry.tree).set_budget(budget);
        let slices = SequenceSlices {
            tokens: &sequence.tokens,
            slots: kv.slots(sequence.id).unwrap_or(&[]),
            valid_until: &sequence.lane_valid[which],
        };
        let (index, params) = (sequence.output_index(), sequence.sampling.params);
        batch.push(ProposeSequence::new(sequence.id, index, budget, params, slices));
    }
    if !batch.is_empty() {
        core.drafts.set_batch(trees.iter().copied(), proposer.needs.tree);
        proposer.propose(ProposeBatch::new(&batch), &mut core.drafts, trees);
    }
    core.buffers.propose = recycle(batch);
    for &place in &core.buffers.propose_entries {
        let entry = &mut core.buffers.entries[place];
        if !core.drafts.tree(entry.tree).is_empty() {
            entry.proposer = Some(which);
        }
    }
}
