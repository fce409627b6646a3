//! The target's hidden rows, as heads read them from a lane.

use crate::author::Host;
use crate::error::Result;
use crate::types::{LaneId, LaneNeed, LaneSource, ProposeBatch, Slot};

/// A lane that the engine fills with hidden rows; buffers that are reused.
pub struct HiddenLane {
    lane: LaneId,
    layers: Vec<usize>,
    width: usize,
    bytes: Vec<u8>,
    rows: Vec<f32>,
}

impl HiddenLane {
    /// Lane `lane` of the rows behind `layers`, each `width` wide.
    pub fn new(lane: LaneId, layers: Vec<usize>, width: usize) -> Self {
        Self { lane, layers, width, bytes: Vec::new(), rows: Vec::new() }
    }

    /// What to ask of the engine.
    pub fn need(&self) -> LaneNeed {
        let source = LaneSource::Hidden(self.layers.clone());
        LaneNeed { name: "hidden".to_owned(), bytes_per_slot: 0, scratch_rows: 0, source }
    }

    /// Whether a draft for the batch's sequence `number` can begin: something comes before its anchor, and all of it has
    /// rows. They are not computed again for a head, so a sequence that lost some waits for the target to come by.
    pub fn reaches_anchor(&self, batch: &ProposeBatch<'_>, number: usize) -> bool {
        let sequence = &batch.sequences()[number];
        let anchor = sequence.tokens().len().saturating_sub(1);
        anchor > 0 && sequence.valid_until(self.lane) >= anchor
    }

    /// The rows at `slots`, `[slots, layers * width]`.
    ///
    /// # Errors
    /// The lane's.
    pub fn read(&mut self, host: &Host, slots: &[Slot]) -> Result<&[f32]> {
        self.bytes.resize(slots.len() * self.layers.len() * self.width * size_of::<f32>(), 0);
        host.lanes().read(self.lane, slots, &mut self.bytes)?;
        self.rows.clear();
        self.rows.extend(self.bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)));
        Ok(&self.rows)
    }
}
