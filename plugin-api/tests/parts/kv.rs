//! Slots from a stack with a count of holders each; no prefix cache.

use std::collections::BTreeMap;

use foretoken_plugin_api::{Error, Host, KvFacts, KvManager, KvStats, Result, SeqId, Slot, Token};

use super::FaultOptions;

#[derive(Default)]
struct Sequence {
    slots: Vec<Slot>,
    committed_len: usize,
}

pub struct Stack {
    options: FaultOptions,
    free: Vec<Slot>,
    holders: Vec<u32>,
    sequences: BTreeMap<SeqId, Sequence>,
}

impl Stack {
    fn release(&mut self, slot: Slot) {
        self.holders[slot.index()] -= 1;
        if self.holders[slot.index()] == 0 {
            self.free.push(slot);
        }
    }
}

impl KvManager for Stack {
    type Options = FaultOptions;

    fn new(options: FaultOptions, facts: KvFacts, _: Host) -> Result<Self> {
        let free = (0..facts.num_slots as u32).map(Slot).collect();
        Ok(Self { options, free, holders: vec![0; facts.num_slots], sequences: BTreeMap::new() })
    }

    fn admit(&mut self, sequence: SeqId, _: &[Token]) -> Result<usize> {
        if self.sequences.contains_key(&sequence) {
            return Err(Error::failed(format!("{sequence:?} is admitted already")));
        }
        self.sequences.insert(sequence, Sequence::default());
        Ok(0)
    }

    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        let found = self.sequences.get_mut(&sequence).ok_or_else(|| Error::failed("reserve: not admitted"))?;
        if count > self.free.len() {
            if self.options.is("partial reserve") {
                found.slots.append(&mut self.free);
            }
            return Err(Error::out_of_slots(count, self.free.len()));
        }
        let taken = self.free.split_off(self.free.len() - count);
        taken.iter().for_each(|slot| self.holders[slot.index()] += 1);
        if self.options.is("hands out twice") && count > 3 {
            self.free.push(taken[0]);
        }
        found.slots.extend(taken);
        Ok(())
    }

    fn slots(&self, sequence: SeqId) -> &[Slot] {
        self.sequences.get(&sequence).map_or(&[], |found| &found.slots)
    }

    fn commit(&mut self, sequence: SeqId, keep: &[u32], _: &[Token]) -> Result<()> {
        let found = self.sequences.get_mut(&sequence).ok_or_else(|| Error::failed("commit: not admitted"))?;
        let reserved = found.slots.len() - found.committed_len;
        if reserved == 0 || keep.iter().any(|&index| index as usize >= reserved) {
            return Err(Error::failed(format!("commit of {keep:?}: {reserved} slots are reserved")));
        }
        let mut reserved = found.slots.split_off(found.committed_len);
        if self.options.is("reverses") {
            reserved.reverse();
        }
        found.slots.extend(keep.iter().map(|&index| reserved[index as usize]));
        found.committed_len = found.slots.len();
        let dropped = (0..reserved.len()).filter(|&index| !keep.contains(&(index as u32)));
        let dropped: Vec<Slot> = dropped.map(|index| reserved[index]).collect();
        if !self.options.is("leaks on commit") {
            dropped.into_iter().for_each(|slot| self.release(slot));
        }
        Ok(())
    }

    fn rollback(&mut self, sequence: SeqId) {
        let Some(found) = self.sequences.get_mut(&sequence) else { return };
        let reserved = found.slots.split_off(found.committed_len);
        if !self.options.is("leaks on rollback") {
            reserved.into_iter().for_each(|slot| self.release(slot));
        }
    }

    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        let found = self.sequences.get(&parent).ok_or_else(|| Error::failed("fork: no such parent"))?;
        if self.sequences.contains_key(&child) {
            return Err(Error::failed("fork: the child is there"));
        }
        let slots = found.slots[..found.committed_len].to_vec();
        if !self.options.is("uncounted fork") {
            slots.iter().for_each(|slot| self.holders[slot.index()] += 1);
        }
        self.sequences.insert(child, Sequence { committed_len: slots.len(), slots });
        Ok(())
    }

    fn free(&mut self, sequence: SeqId) {
        let Some(found) = self.sequences.remove(&sequence) else { return };
        for slot in found.slots {
            if self.options.is("frees shared") {
                self.holders[slot.index()] = 1;
            }
            self.release(slot);
        }
    }

    fn stats(&self) -> KvStats {
        let (total, free) = (self.holders.len() as u32, self.free.len() as u32);
        let held = self.holders.iter().filter(|&&holders| holders > 0).count() as u32;
        let held = held + u32::from(self.options.is("miscounts") && held > 10);
        KvStats { total, free, held, cached: 0 }
    }

    fn check(&self) -> Result<()> {
        let stats = self.stats();
        let balanced = stats.free + stats.held == stats.total;
        if balanced { Ok(()) } else { Err(Error::failed(format!("{stats:?} does not balance"))) }
    }
}
