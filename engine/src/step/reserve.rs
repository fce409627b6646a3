//! Verb 3: slots for every row. The reservation undoes itself: dropped before commit, it rolls back.

use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::{Error, ErrorKind, Result, SeqId, Slot, Token};

use crate::engine::Core;

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

/// Reserves for every entry. Where slots are short a draft is dropped first, then the entry waits for another step.
pub fn reserve<'a>(core: &mut Core, kv: &'a mut LoadedKv) -> Reservation<'a> {
    let mut pending = std::mem::take(&mut core.buffers.reserved);
    pending.clear();
    let mut entries = std::mem::take(&mut core.buffers.entries);
    entries.retain(|entry| {
        let sequence = &mut core.queue[entry.index];
        let tree = core.drafts.tree_mut(entry.tree);
        let mut result = kv.reserve(sequence.id, entry.rows + tree.len());
        if is_short(&result) && !tree.is_empty() {
            tree.drop_guesses();
            result = kv.reserve(sequence.id, entry.rows);
        }
        match result {
            Ok(()) => {
                pending.push(sequence.id);
                true
            }
            Err(error) if error.kind == ErrorKind::OutOfSlots => false,
            Err(error) => {
                sequence.fail(format!("kv manager `{}`: reserve: {error}", core.config.kv.name));
                false
            }
        }
    });
    core.buffers.entries = entries;
    let reservation = Reservation { kv, pending };
    invalidate_lanes(core, &reservation);
    reservation
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
