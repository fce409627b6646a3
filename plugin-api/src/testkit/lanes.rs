//! Lanes in memory, with the engine's checks on lane, row and size.

use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::author::host::LanesApi;
use crate::error::{Error, Result};
use crate::types::{LaneId, LaneNeed, LaneSource, Slot};

#[derive(Default)]
struct Lane {
    row_bytes: usize,
    bytes: Vec<u8>,
    marks: Vec<bool>,
}

impl Lane {
    fn range(&self, slot: Slot) -> Result<std::ops::Range<usize>> {
        let rows = self.marks.len();
        if slot.index() >= rows {
            return Err(Error::failed(format!("lane row {} of {rows}", slot.index())));
        }
        Ok(slot.index() * self.row_bytes..(slot.index() + 1) * self.row_bytes)
    }

    fn check_size(&self, slots: usize, bytes: usize) -> Result<()> {
        let expected = slots * self.row_bytes;
        if bytes != expected {
            return Err(Error::failed(format!("lane: {bytes} bytes for {slots} rows, expected {expected}")));
        }
        Ok(())
    }
}

/// The lanes of one proposer, indexed by slot, then scratch rows. Fresh rows hold 0xA5, so that reading what was never
/// written shows.
#[derive(Default)]
pub struct FakeLanes {
    lanes: Mutex<Vec<Lane>>,
}

impl FakeLanes {
    /// Allocates what `needs` asks for, dropping what was there; hidden lanes hold `hidden_size` f32 a layer.
    pub fn allocate(&self, needs: &[LaneNeed], num_slots: usize, hidden_size: usize) {
        let make = |need: &LaneNeed| {
            let row_bytes = match &need.source {
                LaneSource::Plugin => need.bytes_per_slot,
                LaneSource::Hidden(layers) => layers.len() * hidden_size * size_of::<f32>(),
            };
            let rows = num_slots + need.scratch_rows;
            Lane { row_bytes, bytes: vec![0xA5; rows * row_bytes], marks: vec![false; rows] }
        };
        *self.guard() = needs.iter().map(make).collect();
    }

    /// Clears the marks of slots that are handed out anew, as the engine does.
    pub fn clear_marks(&self, slots: &[Slot]) {
        for lane in self.guard().iter_mut() {
            slots.iter().for_each(|slot| lane.marks[slot.index()] = false);
        }
    }

    /// How many leading `slots` are marked, per lane.
    pub fn valid_until(&self, slots: &[Slot]) -> Vec<u32> {
        let leading = |lane: &Lane| slots.iter().take_while(|slot| lane.marks[slot.index()]).count() as u32;
        self.guard().iter().map(leading).collect()
    }

    fn guard(&self) -> MutexGuard<'_, Vec<Lane>> {
        self.lanes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<T>(&self, lane: LaneId, call: impl FnOnce(&mut Lane) -> Result<T>) -> Result<T> {
        let mut lanes = self.guard();
        let count = lanes.len();
        let missing = || Error::failed(format!("no lane {}, the proposer asked for {count}", lane.0));
        call(lanes.get_mut(lane.0 as usize).ok_or_else(missing)?)
    }
}

impl LanesApi for FakeLanes {
    fn rows(&self, lane: LaneId) -> usize {
        self.with(lane, |lane| Ok(lane.marks.len())).unwrap_or(0)
    }

    fn read(&self, lane: LaneId, slots: &[Slot], out: &mut [u8]) -> Result<()> {
        self.with(lane, |lane| {
            lane.check_size(slots.len(), out.len())?;
            for (index, slot) in slots.iter().enumerate() {
                let to = index * lane.row_bytes..(index + 1) * lane.row_bytes;
                out[to].copy_from_slice(&lane.bytes[lane.range(*slot)?]);
            }
            Ok(())
        })
    }

    fn write(&self, lane: LaneId, slots: &[Slot], data: &[u8]) -> Result<()> {
        self.with(lane, |lane| {
            lane.check_size(slots.len(), data.len())?;
            for (index, slot) in slots.iter().enumerate() {
                let range = lane.range(*slot)?;
                lane.bytes[range].copy_from_slice(&data[index * lane.row_bytes..(index + 1) * lane.row_bytes]);
            }
            Ok(())
        })
    }

    fn copy(&self, lane: LaneId, from: &[Slot], to: &[Slot]) -> Result<()> {
        self.with(lane, |lane| {
            if from.len() != to.len() {
                return Err(Error::failed(format!("lane copy: {} rows to {} rows", from.len(), to.len())));
            }
            for (from, to) in from.iter().zip(to) {
                let (source, target) = (lane.range(*from)?, lane.range(*to)?);
                lane.bytes.copy_within(source, target.start);
            }
            Ok(())
        })
    }

    fn lend(&self, lane: LaneId, work: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        // Taken out, so that work that asks for another row meets an error and not a lock.
        let mut bytes = self.with(lane, |lane| Ok(std::mem::take(&mut lane.bytes)))?;
        if bytes.is_empty() {
            return Err(Error::failed(format!("lane {} has no memory to lend, or is lent", lane.0)));
        }
        work(&mut bytes);
        self.with(lane, |lane| {
            lane.bytes = bytes;
            Ok(())
        })
    }

    fn mark(&self, lane: LaneId, slots: &[Slot]) -> Result<()> {
        self.with(lane, |lane| {
            for slot in slots {
                lane.range(*slot)?;
                lane.marks[slot.index()] = true;
            }
            Ok(())
        })
    }
}
