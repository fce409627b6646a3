//! The loaded proposers and how far each is trusted.
//!
//! A proposer cannot change a token, so its faults cost speed only: its drafts of the call are dropped, and after
//! `max_faults` it is quarantined and its sequences go on by plain decoding (or with the next proposer of the list).

use std::sync::Arc;

use foretoken_plugin_api::abi::proposer::LoadedProposer;
use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::{CommitBatch, Drafts, LaneId, LaneSource, Needs, ProposeBatch, SeqId, Slot};

use super::lanes::Lanes;
use crate::config::Sampling;
use crate::drafts::DraftStore;

/// The hidden rows of a pass.
#[derive(Debug, Clone, Copy)]
pub struct HiddenRows<'a> {
    /// `[rows, layers, width]`.
    pub values: &'a [f32],
    /// Which layers.
    pub layers: &'a [usize],
    /// Width of one.
    pub width: usize,
    /// How many of its columns lanes hold.
    pub columns: usize,
}

/// One proposer of the config.
pub struct ProposerSlot {
    /// What reports and requests call it.
    pub name: String,
    /// What it asked for.
    pub needs: Needs,
    /// Its lanes.
    pub lanes: Arc<Lanes>,
    part: LoadedProposer,
    faults: u32,
    max_faults: u32,
    last_fault: Option<String>,
}

impl ProposerSlot {
    /// A proposer that has just been made.
    pub fn new(name: String, part: LoadedProposer, needs: Needs, lanes: Arc<Lanes>, max_faults: u32) -> Self {
        Self { name, needs, lanes, part, faults: 0, max_faults, last_fault: None }
    }

    /// Whether it has had too many faults to be called again.
    pub fn quarantined(&self) -> bool {
        self.faults >= self.max_faults
    }

    /// Whether a request with this sampling may be drafted for by it.
    pub fn serves(&self, sampling: &Sampling) -> bool {
        let named = sampling.proposer.as_ref().is_none_or(|name| *name == self.name);
        sampling.speculative && named && !self.quarantined()
    }

    /// How many faults it has had, and the last one.
    pub fn faults(&self) -> (u32, Option<&str>) {
        (self.faults, self.last_fault.as_deref())
    }

    fn fault(&mut self, what: &str) {
        self.faults += 1;
        let (faults, most, name) = (self.faults, self.max_faults, &self.name);
        if self.quarantined() {
            tracing::warn!("proposer `{name}`: {what} (fault {faults} of {most}); it is quarantined, decoding goes on");
        } else {
            tracing::warn!("proposer `{name}`: {what} (fault {faults} of {most}); its drafts of this step are dropped");
        }
        self.last_fault = Some(what.to_owned());
    }

    /// Asks for drafts; `store`'s batch is set. A fault empties the trees of the batch.
    pub fn propose(&mut self, batch: ProposeBatch<'_>, store: &mut DraftStore, trees: &[usize]) {
        let result = self.part.propose(batch, &mut Drafts::new(store));
        let lie = trees.iter().find_map(|tree| store.tree(*tree).fault);
        let fault = match result {
            Err(error) => Some(error.message),
            Ok(()) => lie.map(|lie| lie.to_string()),
        };
        if let Some(fault) = fault {
            self.fault(&fault);
            trees.iter().for_each(|tree| store.tree_mut(*tree).drop_guesses());
        }
    }

    /// Writes `rows` of a pass to the lanes that hold hidden rows, at `slots`; `bytes` is a buffer.
    pub fn store_hidden(
        &self,
        hidden: HiddenRows<'_>,
        rows: impl Iterator<Item = usize> + Clone,
        slots: &[Slot],
        bytes: &mut Vec<u8>,
    ) {
        let HiddenRows { values, layers: computed, width, columns } = hidden;
        for (lane, need) in (0u32..).zip(&self.needs.lanes) {
            let LaneSource::Hidden(layers) = &need.source else { continue };
            let layer_bytes = columns * size_of::<f32>();
            // Not cleared before: all of it is written.
            bytes.resize(rows.clone().count() * layers.len() * layer_bytes, 0);
            let mut places = bytes.chunks_exact_mut(layer_bytes);
            for row in rows.clone() {
                let values = &values[row * computed.len() * width..][..computed.len() * width];
                for (layer, bytes) in layers.iter().zip(places.by_ref()) {
                    let place = computed.iter().position(|one| one == layer).unwrap_or(0);
                    let values = &values[place * width..][..columns];
                    // In chunks, which compiles to a copy.
                    let chunks = bytes.as_chunks_mut().0;
                    chunks.iter_mut().zip(values).for_each(|(chunk, value)| *chunk = value.to_le_bytes());
                }
            }
            let written = self.lanes.write(LaneId(lane), slots, bytes);
            if written.and_then(|()| self.lanes.mark(LaneId(lane), slots)).is_err() {
                tracing::error!("lane `{}` of `{}` does not fit the model's rows", need.name, self.name);
            }
        }
    }

    /// Reports what became of the step.
    pub fn commit(&mut self, batch: CommitBatch<'_>) {
        if !self.quarantined()
            && let Err(error) = self.part.commit(batch)
        {
            self.fault(&error.message);
        }
    }

    /// Reports that a sequence is gone.
    pub fn finish(&mut self, sequence: SeqId) {
        if !self.quarantined()
            && let Err(error) = self.part.finish(sequence)
        {
            self.fault(&error.message);
        }
    }
}
