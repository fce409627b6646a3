//! Verb 7: the slots of the kept path become the sequence's, in order; the rest are free again.
//!
//! Keys are rotated by position, not by slot, so a kept tree path needs no copy. Lanes that hold hidden rows were filled
//! by the pass; here the kept ones are marked. A leader whose prompt is computed becomes its siblings' template here.

use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::{RequestId, SeqId};

use super::Fault;
use super::reserve::Reservation;
use crate::engine::{Core, Template};
use crate::plugins::proposers::HiddenLanes;
use crate::sequence::{self, Branch, Sharing};

/// Commits what verification kept. A sequence that failed is rolled back with the reservation.
pub fn commit(core: &mut Core, mut reservation: Reservation<'_>) -> Result<(), Fault> {
    let mut entries = std::mem::take(&mut core.buffers.entries);
    entries.retain(|entry| {
        let buffers = &mut core.buffers;
        let sequence = &mut core.queue[entry.index];
        if sequence.finished.is_some() {
            return false;
        }
        let kept = &buffers.kept[entry.kept.clone()];
        buffers.keep_rows.clear();
        buffers.keep_rows.extend(0..entry.rows as u32);
        buffers.keep_rows.extend(kept.iter().map(|node| entry.rows as u32 + node));
        buffers.keep_tokens.clear();
        let first = entry.row_range.start;
        buffers.keep_tokens.extend(buffers.keep_rows.iter().map(|row| buffers.row_tokens[first + *row as usize]));
        if let Err(error) = reservation.commit(sequence.id, &buffers.keep_rows, &buffers.keep_tokens) {
            let error = format!("kv manager `{}`: commit: {error}", core.config.kv.name);
            sequence::fail(&mut core.queue, entry.index, error);
            return false;
        }
        sequence.computed = entry.base_len + buffers.keep_rows.len();
        let kept = sequence.computed - buffers.keep_rows.len()..sequence.computed;
        HiddenLanes(&core.proposers).mark(&reservation.slots(sequence.id)[kept]);
        true
    });
    // A half of a pair may have failed after the other was committed.
    entries.retain(|entry| core.queue[entry.index].finished.is_none());
    core.buffers.entries = entries;
    share_prompts(core, reservation.kv());
    core.buffers.reserved = reservation.finish();
    Ok(())
}

/// Turns leaders that have computed their prompt into templates for their siblings.
fn share_prompts(core: &mut Core, kv: &mut LoadedKv) {
    for place in 0..core.buffers.entries.len() {
        let index = core.buffers.entries[place].index;
        let sequence = &core.queue[index];
        if sequence.sharing != Sharing::Leader || sequence.computed + 1 != sequence.prompt_len {
            continue;
        }
        let (leader, key) = (sequence.id, sequence.prompt_key());
        core.queue[index].sharing = Sharing::None;
        let waiting = core.queue.iter().filter(|s| s.prompt_key() == key && s.sharing == Sharing::Sibling);
        let remaining = waiting.count();
        core.next_id += 1;
        let id = SeqId(core.next_id);
        match kv.fork(leader, id) {
            Ok(()) if remaining > 0 => core.templates.push(Template { key, id, remaining }),
            Ok(()) => drop(kv.free(id)),
            Err(error) => {
                tracing::warn!("kv manager: fork: {error}; completions compute their prompts alone");
                unshare(core, key);
            }
        }
    }
}

/// One sibling has forked from the template of `key`, or ended without; the last one frees it.
pub fn template_used(core: &mut Core, kv: &mut LoadedKv, key: (RequestId, Branch)) {
    let Some(place) = core.templates.iter().position(|template| template.key == key) else { return };
    core.templates[place].remaining = core.templates[place].remaining.saturating_sub(1);
    if core.templates[place].remaining == 0 {
        let template = core.templates.swap_remove(place);
        drop_template(core, kv, &template);
    }
}

/// Frees a template; siblings that have not forked compute the prompt alone.
pub fn drop_template(core: &mut Core, kv: &mut LoadedKv, template: &Template) {
    if let Err(error) = kv.free(template.id) {
        tracing::error!("kv manager `{}`: free: {error}", core.config.kv.name);
    }
    unshare(core, template.key);
}

/// The completions compute or find their prompts alone.
pub fn unshare(core: &mut Core, key: (RequestId, Branch)) {
    let siblings = core.queue.iter_mut().filter(|sequence| sequence.prompt_key() == key);
    siblings.for_each(|sequence| sequence.sharing = Sharing::None);
}

/// With `checks = true`: slots balance and every sequence has exactly the slots of its computed tokens.
pub fn check_integrity(core: &mut Core, kv: &mut LoadedKv) {
    let result = kv.check().and_then(|()| kv.stats());
    let broken = match result {
        Err(error) => Some(error.to_string()),
        Ok(stats) if stats.free + stats.held + stats.cached != stats.total => {
            Some(format!("{stats:?} does not add up"))
        }
        Ok(_) => core.queue.iter().filter(|sequence| sequence.admitted).find_map(|sequence| {
            let slots = kv.slots(sequence.id).map_or(usize::MAX, <[_]>::len);
            let (id, computed) = (sequence.id.0, sequence.computed);
            (slots != computed).then(|| format!("sequence {id} has {slots} slots for {computed} computed tokens"))
        }),
    };
    if let Some(broken) = broken {
        core.fail_all(&format!("integrity check after the step: {broken}"));
    }
}
