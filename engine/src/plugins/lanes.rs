//! Lanes: bytes per token, indexed by slot, that a proposer asked for.
//!
//! One validity mark per slot and lane, cleared when the KV manager hands the slot out anew; so commit, rollback, fork,
//! preemption and prefix hits treat a proposer's state exactly as the target's KV, without a word to the proposer.
//! A lane's rows are the slots, then its scratch rows for work not yet committed. Hidden rows lie here as keys and values do
//! in the KV (`kv.dtype`), since every token writes them whether or not it is drafted for; who reads them gets f32.

use std::sync::Mutex;

use foretoken_kernels::blocks::{KvDtype, RowPlaces};
use foretoken_kernels::{AlignedBytes, Exec};
use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::{Error, LaneId, LaneNeed, LaneSource, Result, Slot};

/// Memory of a lane that is there from the start: the first touch of a huge page takes as long as thousands of rows (up to
/// 6 ms on a virtual machine). Every token writes hidden rows, whether or not it is drafted for; what proposers keep is
/// first touched by drafts that are tried, whose time is what tells whether they pay.
const HIDDEN_BYTES_AT_START: usize = 64 << 20;
const PLUGIN_BYTES_AT_START: usize = 16 << 20;

/// The bytes of one lane.
pub struct Lane {
    /// Bytes per row as it lies here.
    pub row_bytes: usize,
    /// `[slots + scratch rows, row_bytes]`; none while they are lent.
    bytes: Option<AlignedBytes>,
    /// Per slot: whether its row holds valid state.
    pub valid: Vec<bool>,
    /// The layers the engine fills it from, if it does, and how.
    hidden: Option<(Vec<usize>, HiddenFormat)>,
    /// A hidden row of one layer that is being read.
    values: Vec<f32>,
}

/// How the hidden row of one layer lies in a lane.
#[derive(Debug, Clone)]
pub struct HiddenFormat {
    /// The first columns of the model's hidden rows are held.
    pub columns: usize,
    pub dtype: KvDtype,
    /// What stores them.
    pub exec: Exec,
}

impl HiddenFormat {
    fn bytes(&self) -> usize {
        self.dtype.row_bytes(self.columns)
    }
}

/// The lanes of one proposer. Empty until its needs are known.
#[derive(Default)]
pub struct Lanes {
    lanes: Mutex<Vec<Lane>>,
}

impl Lanes {
    /// Allocates what `needs` asks for; pages are touched only when written, but for the first of each lane.
    pub fn allocate(&self, needs: &[LaneNeed], num_slots: usize, format: &HiddenFormat) {
        let make = |need: &LaneNeed| {
            let (row_bytes, hidden) = match &need.source {
                LaneSource::Plugin => (need.bytes_per_slot, None),
                LaneSource::Hidden(layers) => (layers.len() * format.bytes(), Some((layers.clone(), format.clone()))),
            };
            let bytes = AlignedBytes::zeroed(row_bytes * (num_slots + need.scratch_rows));
            bytes.populate(0..if hidden.is_some() { HIDDEN_BYTES_AT_START } else { PLUGIN_BYTES_AT_START });
            Lane { row_bytes, bytes: Some(bytes), valid: vec![false; num_slots], hidden, values: Vec::new() }
        };
        *self.locked() = needs.iter().map(make).collect();
    }

    /// Asks the system for the memory of the first `slots`' rows and of scratch rows now, and not as they are written.
    pub fn populate(&self, slots: usize) {
        for lane in self.locked().iter() {
            let (bytes, scratch) = (lane.bytes.as_ref(), lane.valid.len() * lane.row_bytes);
            for range in [0..(slots * lane.row_bytes).min(scratch), scratch..usize::MAX] {
                bytes.inspect(|bytes| bytes.populate(range));
            }
        }
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
        self.locked().iter().any(|lane| lane.hidden.as_ref().is_some_and(|(layers, _)| layers.contains(&layer)))
    }

    /// Writes the hidden rows of a layer, `[slots, ..]`, to the lanes that hold them, at `slots`. They count once they are
    /// marked: those of drafts come here before it is known which are kept.
    pub fn store_hidden(&self, layer: usize, rows: &[f32], slots: &[u32]) {
        for lane in self.locked().iter_mut() {
            // A lane whose memory a fault took holds nothing.
            let (Some((layers, format)), Some(bytes)) = (&lane.hidden, &mut lane.bytes) else { continue };
            for (place, _) in layers.iter().enumerate().filter(|(_, one)| **one == layer) {
                let places = RowPlaces { slots, stride: lane.row_bytes, offset: place * format.bytes() };
                format.dtype.store_rows(&format.exec, (rows, format.columns), bytes.as_mut(), places);
            }
        }
    }

    /// The hidden rows at `slots` are those of tokens that were kept.
    pub fn mark_hidden(&self, slots: &[Slot]) {
        for lane in self.locked().iter_mut().filter(|lane| lane.hidden.is_some()) {
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
    /// Its rows, unless they are lent.
    fn bytes(&self) -> &[u8] {
        self.bytes.as_ref().map_or(&[], AsRef::as_ref)
    }

    /// Its rows, unless they are lent.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.bytes.as_mut().map_or(&mut [], AsMut::as_mut)
    }

    fn rows(&self) -> usize {
        self.bytes().len().checked_div(self.row_bytes).unwrap_or(0)
    }

    fn range(&self, slot: Slot) -> Result<std::ops::Range<usize>> {
        if slot.index() >= self.rows() {
            return Err(Error::failed(format!("lane row {} of {}", slot.0, self.rows())));
        }
        let start = slot.index() * self.row_bytes;
        Ok(start..start + self.row_bytes)
    }

    /// Whether the proposer writes it.
    fn check_own(&self) -> Result<()> {
        match self.hidden {
            None => Ok(()),
            Some(_) => Err(Error::failed("a lane of hidden rows is the engine's to write: it can be read and copied")),
        }
    }

    /// Bytes of a row as it is read.
    fn asked_bytes(&self) -> usize {
        match &self.hidden {
            Some((layers, format)) => layers.len() * format.columns * size_of::<f32>(),
            None => self.row_bytes,
        }
    }

    /// A row as it is read.
    fn read(&mut self, slot: Slot, out: &mut [u8]) -> Result<()> {
        let range = self.range(slot)?;
        let mut values = std::mem::take(&mut self.values);
        let row = &self.bytes()[range];
        match &self.hidden {
            None => out.copy_from_slice(row),
            &Some((_, HiddenFormat { columns, dtype, .. })) => {
                values.resize(columns, 0.0);
                let layers = row.chunks_exact(dtype.row_bytes(columns));
                for (layer, out) in layers.zip(out.chunks_exact_mut(columns * size_of::<f32>())) {
                    dtype.load(layer, &mut values);
                    let chunks = out.as_chunks_mut().0.iter_mut().zip(&values);
                    chunks.for_each(|(chunk, value)| *chunk = value.to_le_bytes());
                }
            }
        }
        self.values = values;
        Ok(())
    }

    fn check_size(&self, slots: &[Slot], bytes: usize) -> Result<()> {
        let expected = slots.len() * self.asked_bytes();
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
            let rows = out.chunks_exact_mut(lane.asked_bytes().max(1));
            slots.iter().zip(rows).try_for_each(|(slot, out)| lane.read(*slot, out))
        })
    }

    fn write(&self, lane: LaneId, slots: &[Slot], data: &[u8]) -> Result<()> {
        self.lane(lane, |lane| {
            lane.check_own()?;
            lane.check_size(slots, data.len())?;
            for (slot, data) in slots.iter().zip(data.chunks_exact(lane.row_bytes.max(1))) {
                let range = lane.range(*slot)?;
                lane.bytes_mut()[range].copy_from_slice(data);
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
                lane.bytes_mut().copy_within(from, to.start);
            }
            Ok(())
        })
    }

    fn lend(&self, lane: LaneId, work: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        // Taken out, so that work that asks for another row of it meets an error and not a lock.
        let wrong = || Error::failed(format!("lane {} has no memory to lend, or is lent", lane.0));
        let mut bytes = self.lane(lane, |lane| {
            lane.check_own()?;
            lane.bytes.take().ok_or_else(wrong)
        })?;
        work(bytes.as_mut());
        self.lane(lane, |lane| {
            lane.bytes = Some(bytes);
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
        let format = HiddenFormat { columns: 2, dtype: KvDtype::F32, exec: Exec::cpu(2).unwrap() };
        let lanes = Lanes::default();
        let source = LaneSource::Hidden(vec![3, 1, 3]);
        lanes.allocate(
            &[LaneNeed { name: "hidden".to_owned(), bytes_per_slot: 0, scratch_rows: 0, source }],
            4,
            &format,
        );
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
        assert!(lanes.write(LaneId(0), &[Slot(0)], &[0; 24]).is_err() && lanes.lend(LaneId(0), &mut |_| ()).is_err());
    }

    #[test]
    fn hidden_rows_are_held_as_keys_are_and_read_as_f32() {
        let row: Vec<f32> = (0..70).map(|column| (column as f32 - 30.0) / 7.0).collect();
        for (dtype, bytes, error) in [(KvDtype::F32, 280, 0.0), (KvDtype::Bf16, 140, 0.02), (KvDtype::Q8_0, 76, 0.03)] {
            let lanes = Lanes::default();
            let source = LaneSource::Hidden(vec![0]);
            let format = HiddenFormat { columns: 70, dtype, exec: Exec::cpu(2).unwrap() };
            lanes.allocate(
                &[LaneNeed { name: "hidden".to_owned(), bytes_per_slot: 0, scratch_rows: 0, source }],
                3,
                &format,
            );
            assert_eq!(lanes.with(|lanes| lanes[0].row_bytes), bytes);
            lanes.store_hidden(0, &row, &[1]);
            lanes.copy(LaneId(0), &[Slot(1)], &[Slot(2)]).unwrap();
            let mut read = vec![0; 2 * 70 * 4];
            lanes.read(LaneId(0), &[Slot(0), Slot(2)], &mut read).unwrap();
            let values: Vec<f32> = read.as_chunks().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect();
            assert!(values[..70].iter().all(|value| *value == 0.0));
            assert!(values[70..].iter().zip(&row).all(|(value, row)| (value - row).abs() <= error), "{dtype:?}");
        }
    }
}
