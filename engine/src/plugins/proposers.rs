//! The loaded proposers and how far each is trusted.
//!
//! A proposer cannot change a token, so its faults cost speed only: its drafts of the call are dropped, and after
//! `max_faults` it is quarantined and its sequences go on by plain decoding (or with the next proposer of the list).

use std::sync::Arc;

use foretoken_plugin_api::abi::proposer::LoadedProposer;
use foretoken_plugin_api::{CommitBatch, Drafts, Needs, ProposeBatch, SeqId, Slot};

use super::lanes::Lanes;
use crate::config::Sampling;
use crate::drafts::DraftStore;
use crate::model::HiddenSink;

/// Hands the hidden rows of a pass to the proposers' lanes.
pub struct HiddenLanes<'a>(pub &'a [ProposerSlot]);

impl HiddenSink for HiddenLanes<'_> {
    fn wants(&self, layer: usize) -> bool {
        self.lanes().any(|lanes| lanes.want_hidden(layer))
    }

    fn take(&mut self, layer: usize, rows: &[f32], slots: &[u32]) {
        self.lanes().for_each(|lanes| lanes.store_hidden(layer, rows, slots));
    }
}

impl HiddenLanes<'_> {
    /// The rows at `slots` are those of tokens that were kept.
    pub fn mark(&self, slots: &[Slot]) {
        self.lanes().for_each(|lanes| lanes.mark_hidden(slots));
    }

    fn lanes(&self) -> impl Iterator<Item = &Lanes> {
        self.0.iter().filter(|proposer| !proposer.quarantined()).map(|proposer| &*proposer.lanes)
    }
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
