//! Verb 3: slots for every row. The reservation undoes itself: dropped before commit, it rolls back.

use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::{Error, ErrorKind, Result, SeqId, Slot, Token};

use super::Entry;
use crate::engine::Core;
use crate::sequence;

/// Slots held for rows that are not yet verified.
pub struct Reservation<'a> {
    kv: &'a mut LoadedKv,
    pending: Vec<SeqId>,
}

impl Reservation<'_> {
    /// The committed and reserved slots of a sequence.
    pub fn slots(&self, id: SeqId) -> &[Slot] {
        self.kv.slots(id).unwrap_or(&[])
    }

    /// Keeps the reserved slots named by `keep`, which hold `tokens`, and frees the rest.
    ///
    /// # Errors
    /// The KV manager's.
    pub fn commit(&mut self, id: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        self.pending.retain(|pending| *pending != id);
        self.kv.commit(id, keep, tokens)
    }

    /// Ends the reservation: what was not committed is rolled back.
    pub fn finish(mut self) -> Vec<SeqId> {
        self.roll_back();
        std::mem::take(&mut self.pending)
    }

    /// The KV manager, for what follows a commit.
    pub fn kv(&mut self) -> &mut LoadedKv {
        self.kv
    }

    fn roll_back(&mut self) {
        for id in self.pending.drain(..) {
            if let Err(error) = self.kv.rollback(id) {
                tracing::error!(sequence = id.0, "kv manager: rollback: {error}");
            }
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.roll_back();
    }
}

/// Reserves for every entry, for a pair all or nothing. Where slots are short a draft is dropped first, then the entry
/// waits for another step.
pub fn reserve<'a>(core: &mut Core, kv: &'a mut LoadedKv) -> Reservation<'a> {
    let mut pending = std::mem::take(&mut core.buffers.reserved);
    pending.clear();
    let mut entries = std::mem::take(&mut core.buffers.entries);
    let mut left = &mut entries[..];
    while let Some(first) = left.first() {
        let companion = sequence::companion(&core.queue, first.index);
        let is_pair = left.get(1).is_some_and(|next| companion == Some(next.index));
        let (unit, rest) = left.split_at_mut(1 + usize::from(is_pair));
        left = rest;
        let tree = unit[0].tree;
        let mut result = reserve_unit(core, kv, unit);
        if is_short(&result) && !core.drafts.tree(tree).is_empty() {
            core.drafts.tree_mut(tree).drop_guesses();
            result = reserve_unit(core, kv, unit);
        }
        match result {
            Ok(()) => pending.extend(unit.iter().map(|entry| core.queue[entry.index].id)),
            Err(error) => {
                if error.kind != ErrorKind::OutOfSlots {
                    let error = format!("kv manager `{}`: reserve: {error}", core.config.kv.name);
                    sequence::fail(&mut core.queue, unit[0].index, error);
                }
                unit.iter_mut().for_each(|entry| entry.rows = 0);
            }
        }
    }
    entries.retain(|entry| entry.rows > 0);
    core.buffers.entries = entries;
    let reservation = Reservation { kv, pending };
    invalidate_lanes(core, &reservation);
    reservation
}

/// Reserves for all of `unit`, or for none of it.
fn reserve_unit(core: &Core, kv: &mut LoadedKv, unit: &[Entry]) -> Result<()> {
    for (place, entry) in unit.iter().enumerate() {
        let result = kv.reserve(core.queue[entry.index].id, entry.rows + core.drafts.tree(entry.tree).len());
        if result.is_err() {
            unit[..place].iter().try_for_each(|entry| kv.rollback(core.queue[entry.index].id))?;
            return result;
        }
    }
    Ok(())
}

fn is_short(result: &Result<()>) -> bool {
    matches!(result, Err(Error { kind: ErrorKind::OutOfSlots, .. }))
}

/// Slots handed out anew hold nothing yet.
fn invalidate_lanes(core: &Core, reservation: &Reservation<'_>) {
    for entry in &core.buffers.entries {
        let slots = reservation.slots(core.queue[entry.index].id);
        let fresh = slots.get(entry.base_len..).unwrap_or(&[]);
        core.proposers.iter().for_each(|proposer| proposer.lanes.invalidate(fresh));
    }
}
