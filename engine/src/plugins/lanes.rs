//! Lanes: bytes per token, indexed by slot, that a proposer asked for.
//!
//! One validity mark per slot and lane, cleared when the KV manager hands the slot out anew; so commit, rollback, fork,
//! preemption and prefix hits treat a proposer's state exactly as the target's KV, without a word to the proposer.
//! A lane's rows are the slots, then its scratch rows for work not yet committed.

use std::sync::Mutex;

use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::{Error, LaneId, LaneNeed, LaneSource, Result, Slot};

/// The bytes of one lane.
pub struct Lane {
    /// Bytes per row.
    pub row_bytes: usize,
    /// `[slots + scratch rows, row_bytes]`.
    pub bytes: Vec<u8>,
    /// Per slot: whether its row holds valid state.
    pub valid: Vec<bool>,
    /// The layers the engine fills it from, if it does.
    pub hidden_layers: Option<Vec<usize>>,
}

/// The lanes of one proposer. Empty until its needs are known.
#[derive(Default)]
pub struct Lanes {
    lanes: Mutex<Vec<Lane>>,
}

impl Lanes {
    /// Allocates what `needs` asks for; pages are touched only when written.
    /// `columns` of the model's hidden rows are held.
    pub fn allocate(&self, needs: &[LaneNeed], num_slots: usize, columns: usize) {
        let make = |need: &LaneNeed| {
            let (row_bytes, hidden_layers) = match &need.source {
                LaneSource::Plugin => (need.bytes_per_slot, None),
                LaneSource::Hidden(layers) => (layers.len() * columns * size_of::<f32>(), Some(layers.clone())),
            };
            let bytes = vec![0; row_bytes * (num_slots + need.scratch_rows)];
            Lane { row_bytes, bytes, valid: vec![false; num_slots], hidden_layers }
        };
        *self.locked() = needs.iter().map(make).collect();
    }

    /// Runs `work` with all lanes of this proposer.
    pub fn with<T>(&self, work: impl FnOnce(&mut [Lane]) -> T) -> T {
        work(&mut self.locked())
    }

    fn locked(&self) -> std::sync::MutexGuard<'_, Vec<Lane>> {
        // A poisoned lock means a panic elsewhere; lane rows are plain bytes and the marks say which count.
        self.lanes.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    /// Forgets what these slots held: they were handed out anew.
    pub fn invalidate(&self, slots: &[Slot]) {
        for lane in self.locked().iter_mut() {
            for slot in slots {
                lane.valid[slot.index()] = false;
            }
        }
    }

    /// Moves `valid_until` (one entry per lane) forward over leading valid slots.
    pub fn extend_valid(&self, slots: &[Slot], valid_until: &mut Vec<u32>) {
        let lanes = self.locked();
        valid_until.resize(lanes.len(), 0);
        for (lane, until) in lanes.iter().zip(valid_until) {
            let start = (*until as usize).min(slots.len());
            let more = slots[start..].iter().take_while(|slot| lane.valid[slot.index()]).count();
            *until = (start + more) as u32;
        }
    }

    /// Whether a lane holds the hidden rows of `layer`.
    pub fn want_hidden(&self, layer: usize) -> bool {
        self.locked().iter().any(|lane| lane.hidden_layers.as_ref().is_some_and(|layers| layers.contains(&layer)))
    }

    /// Writes the hidden rows of a layer, `[slots, ..]`, to the lanes that hold them, at `slots`. They count once they are
    /// marked: those of drafts come here before it is known which are kept.
    pub fn store_hidden(&self, layer: usize, rows: &[f32], slots: &[u32]) {
        let width = (rows.len() / slots.len().max(1)).max(1);
        for lane in self.locked().iter_mut() {
            let Some(layers) = &lane.hidden_layers else { continue };
            let layer_bytes = lane.row_bytes / layers.len().max(1);
            for (place, _) in layers.iter().enumerate().filter(|(_, one)| **one == layer) {
                for (row, slot) in rows.chunks_exact(width).zip(slots) {
                    let start = *slot as usize * lane.row_bytes + place * layer_bytes;
                    // A lane whose memory a fault took holds nothing.
                    let Some(to) = lane.bytes.get_mut(start..start + layer_bytes) else { continue };
                    // In chunks, which compiles to a copy.
                    to.as_chunks_mut().0.iter_mut().zip(row).for_each(|(chunk, value)| *chunk = value.to_le_bytes());
                }
            }
        }
    }

    /// The hidden rows at `slots` are those of tokens that were kept.
    pub fn mark_hidden(&self, slots: &[Slot]) {
        for lane in self.locked().iter_mut().filter(|lane| lane.hidden_layers.is_some()) {
            for slot in slots {
                lane.valid[slot.index()] = true;
            }
        }
    }

    fn lane<T>(&self, lane: LaneId, work: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        let mut lanes = self.locked();
        let count = lanes.len();
        let wrong = || Error::failed(format!("lane {}: this proposer's needs named {count} lanes", lane.0));
        work(lanes.get_mut(lane.0 as usize).ok_or_else(wrong)?)
    }
}

impl Lane {
    fn rows(&self) -> usize {
        self.bytes.len().checked_div(self.row_bytes).unwrap_or(0)
    }

    fn range(&self, slot: Slot) -> Result<std::ops::Range<usize>> {
        if slot.index() >= self.rows() {
            return Err(Error::failed(format!("lane row {} of {}", slot.0, self.rows())));
        }
        let start = slot.index() * self.row_bytes;
        Ok(start..start + self.row_bytes)
    }

    fn check_size(&self, slots: &[Slot], bytes: usize) -> Result<()> {
        let expected = slots.len() * self.row_bytes;
        if bytes == expected {
            return Ok(());
        }
        Err(Error::failed(format!("lane rows: expected {expected} bytes for {} rows, got {bytes}", slots.len())))
    }
}

impl LanesApi for Lanes {
    fn rows(&self, lane: LaneId) -> usize {
        self.lane(lane, |lane| Ok(lane.rows())).unwrap_or(0)
    }

    fn read(&self, lane: LaneId, slots: &[Slot], out: &mut [u8]) -> Result<()> {
        self.lane(lane, |lane| {
            lane.check_size(slots, out.len())?;
            for (slot, out) in slots.iter().zip(out.chunks_exact_mut(lane.row_bytes.max(1))) {
                out.copy_from_slice(&lane.bytes[lane.range(*slot)?]);
            }
            Ok(())
        })
    }

    fn write(&self, lane: LaneId, slots: &[Slot], data: &[u8]) -> Result<()> {
        self.lane(lane, |lane| {
            lane.check_size(slots, data.len())?;
            for (slot, data) in slots.iter().zip(data.chunks_exact(lane.row_bytes.max(1))) {
                let range = lane.range(*slot)?;
                lane.bytes[range].copy_from_slice(data);
            }
            Ok(())
        })
    }

    fn copy(&self, lane: LaneId, from: &[Slot], to: &[Slot]) -> Result<()> {
        if from.len() != to.len() {
            return Err(Error::failed(format!("lane copy: {} rows to {}", from.len(), to.len())));
        }
        self.lane(lane, |lane| {
            for (from, to) in from.iter().zip(to) {
                let (from, to) = (lane.range(*from)?, lane.range(*to)?);
                lane.bytes.copy_within(from, to.start);
            }
            Ok(())
        })
    }

    fn lend(&self, lane: LaneId, work: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        // Taken out, so that work that asks for another row of it meets an error and not a lock.
        let mut bytes = self.lane(lane, |lane| Ok(std::mem::take(&mut lane.bytes)))?;
        if bytes.is_empty() {
            return Err(Error::failed(format!("lane {} has no memory to lend, or is lent", lane.0)));
        }
        work(&mut bytes);
        self.lane(lane, |lane| {
            lane.bytes = bytes;
            Ok(())
        })
    }

    fn mark(&self, lane: LaneId, slots: &[Slot]) -> Result<()> {
        self.lane(lane, |lane| {
            for slot in slots {
                let slots = lane.valid.len();
                let wrong = || Error::failed(format!("lane mark: slot {} of {slots}", slot.0));
                *lane.valid.get_mut(slot.index()).ok_or_else(wrong)? = true;
            }
            Ok(())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hidden_rows_lie_in_the_order_asked_and_count_once_marked() {
        let lanes = Lanes::default();
        let source = LaneSource::Hidden(vec![3, 1, 3]);
        lanes.allocate(&[LaneNeed { name: "hidden".to_owned(), bytes_per_slot: 0, scratch_rows: 0, source }], 4, 2);
        // Rows of three columns, of which two are held; the layers' and the rows' numbers are in the values.
        for layer in [0, 1, 3] {
            assert_eq!(lanes.want_hidden(layer), layer != 0);
            let row = |row: usize| [0, 1, 2].map(|column| (100 * layer + 10 * row + column) as f32);
            lanes.store_hidden(layer, &[row(0), row(1)].concat(), &[2, 0]);
        }
        lanes.mark_hidden(&[Slot(2)]);
        let mut bytes = [0; 2 * 6 * 4];
        lanes.read(LaneId(0), &[Slot(0), Slot(2)], &mut bytes).unwrap();
        let values: Vec<f32> = bytes.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
        assert_eq!(values, [310., 311., 110., 111., 310., 311., 300., 301., 100., 101., 300., 301.]);
        let mut valid = Vec::new();
        lanes.extend_valid(&[Slot(2), Slot(0)], &mut valid);
        assert_eq!(valid, [1]);
    }
}
