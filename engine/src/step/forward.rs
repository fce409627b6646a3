//! Verb 4: one pass of the target over all rows of all sequences.
//!
//! A sequence's rows are its own tokens (a chunk of the prompt, or the anchor), then its draft nodes; a node attends to
//! the committed slots, the anchor and its ancestors. Logits come for the anchor and every node, or for none.

use std::time::Instant;

use foretoken_plugin_api::{ForwardSequence, LogitRows, NO_PARENT};

use super::reserve::Reservation;
use crate::engine::Core;
use crate::model::ForwardOut;
use crate::plugins::proposers::HiddenLanes;
use crate::recycle::recycle;

/// Computes logits of the step's rows, and fills the lanes that hold hidden rows.
pub fn forward(core: &mut Core, reservation: &Reservation<'_>) {
    let start = Instant::now();
    lay_out(core);
    let buffers = &mut core.buffers;
    let architecture = core.target.decoder.architecture();
    let rows = buffers.row_tokens.len();
    buffers.logits.sized(buffers.logit_rows * architecture.vocab_size);
    let mut sequences: Vec<ForwardSequence<'_>> = recycle(std::mem::take(&mut buffers.forward));
    for (place, entry) in buffers.entries.iter().enumerate() {
        let slots = reservation.slots(core.queue[entry.index].id);
        let (context, new_slots) = slots.split_at(entry.base_len);
        let range = entry.row_range.clone();
        let tokens = &buffers.row_tokens[range.clone()];
        let rows = ForwardSequence::chain(tokens, context, new_slots, buffers.row_logits[place]);
        let is_tree = !core.drafts.tree(entry.tree).is_chain();
        sequences.push(if is_tree { rows.with_parents(&buffers.row_parents[range]) } else { rows });
    }
    if !sequences.is_empty() {
        core.totals.steps += 1;
        core.totals.rows += rows as u64;
        let out = ForwardOut { logits: &mut buffers.logits, hidden: &mut HiddenLanes(&core.proposers) };
        let mut kv = core.target.kv.view_mut();
        core.target.rows.forward(&core.target.decoder, &sequences, &mut kv, out);
    }
    buffers.forward = recycle(sequences);
    buffers.times.forward = start.elapsed();
}

/// Flattens tokens and parents, and numbers the rows of logits.
fn lay_out(core: &mut Core) {
    let buffers = &mut core.buffers;
    buffers.row_tokens.clear();
    buffers.row_parents.clear();
    buffers.row_logits.clear();
    buffers.logit_rows = 0;
    for entry in &mut buffers.entries {
        let sequence = &core.queue[entry.index];
        let tree = core.drafts.tree(entry.tree);
        let start = buffers.row_tokens.len();
        buffers.row_tokens.extend_from_slice(&sequence.tokens[entry.base_len..entry.base_len + entry.rows]);
        buffers.row_tokens.extend_from_slice(&tree.tokens);
        let last_own = entry.rows as u32 - 1;
        buffers.row_parents.extend((0..entry.rows as u32).map(|row| row.checked_sub(1).unwrap_or(NO_PARENT)));
        let shifted = |&parent: &u32| if parent == NO_PARENT { last_own } else { parent + entry.rows as u32 };
        buffers.row_parents.extend(tree.parents.iter().map(shifted));
        entry.row_range = start..buffers.row_tokens.len();
        entry.first_logit = buffers.logit_rows;
        let wanted = match (entry.decodes, entry.rows) {
            (false, _) => LogitRows::None,
            (true, 1) => LogitRows::All,
            (true, _) => LogitRows::Last,
        };
        buffers.row_logits.push(wanted);
        buffers.logit_rows += if entry.decodes { 1 + tree.len() } else { 0 };
    }
}
