//! The recount: everything that is kept as a running figure, counted again from the lists of slots.
//!
//! It shares no arithmetic with [`pool`](crate::pool), so a slip there cannot hide itself here; it may allocate, as it
//! runs only with `checks = true`. The first thing that does not balance is named.

use foretoken_plugin_api::Slot;

use crate::paged::Paged;
use crate::pool::{BlockId, List, SlotPool};

type Balance = Result<(), String>;

impl Paged {
    /// `kept` are references beside those of the sequences. Returns how many sequences hold each slot.
    pub(crate) fn recount(&self, kept: &[u32]) -> Result<Vec<u32>, String> {
        let mut holders = vec![0; self.pool.sharers.len()];
        let mut last_holder = vec![None; self.pool.sharers.len()];
        for (id, sequence) in &self.sequences {
            if sequence.committed_len > sequence.slots.len() {
                let (committed, len) = (sequence.committed_len, sequence.slots.len());
                return Err(format!("sequence {}: {committed} slots committed of {len}", id.0));
            }
            for slot in &sequence.slots {
                let Some(last) = last_holder.get_mut(slot.index()) else {
                    return Err(format!("sequence {}: slot {} is out of range", id.0, slot.0));
                };
                if last.replace(*id) == Some(*id) {
                    return Err(format!("sequence {}: slot {} is on its list twice", id.0, slot.0));
                }
                holders[slot.index()] += 1;
            }
        }
        for (id, sequence) in &self.sequences {
            let reserved = &sequence.slots[sequence.committed_len..];
            let is_shared =
                |slot: &&Slot| holders[slot.index()] != 1 || kept.get(slot.index()).is_some_and(|kept| *kept > 0);
            if let Some(slot) = reserved.iter().find(is_shared) {
                return Err(format!("sequence {}: its reserved slot {} is shared", id.0, slot.0));
            }
        }
        let kept = kept.iter().copied().chain(std::iter::repeat(0));
        let references: Vec<u32> = holders.iter().zip(kept).map(|(holders, kept)| holders + kept).collect();
        self.pool.recount(&references)?;
        Ok(holders)
    }
}

impl SlotPool {
    fn recount(&self, holders: &[u32]) -> Balance {
        for (slot, (sharers, counted)) in self.sharers.iter().zip(holders).enumerate() {
            if *sharers != counted.saturating_sub(1) {
                return Err(format!("slot {slot} has {sharers} sharers but is on {counted} lists"));
            }
        }
        let mut free = vec![false; holders.len()];
        for (id, block) in self.blocks.iter().enumerate() {
            let start = id * self.block_size as usize;
            if block.free > block.capacity {
                return Err(format!("block {id} has {} free slots of {}", block.free, block.capacity));
            }
            for slot in &self.stacks[start..start + block.free as usize] {
                self.recount_free(id, *slot, holders, &mut free)?;
            }
        }
        let lost = holders.iter().zip(&free).position(|(holders, free)| *holders == 0 && !free);
        if let Some(slot) = lost {
            return Err(format!("slot {slot} is lost: no list holds it and it is not free"));
        }
        let counted = free.iter().filter(|free| **free).count();
        if counted != self.free as usize {
            return Err(format!("{} slots are said to be free, {counted} are", self.free));
        }
        self.recount_lists()
    }

    fn recount_free(&self, block: usize, slot: Slot, holders: &[u32], free: &mut [bool]) -> Balance {
        if slot.index() >= free.len() || slot.index() / self.block_size as usize != block {
            return Err(format!("slot {} is on the free stack of block {block}, not its own", slot.0));
        }
        if holders[slot.index()] > 0 {
            return Err(format!("slot {} is free and on {} lists", slot.0, holders[slot.index()]));
        }
        if std::mem::replace(&mut free[slot.index()], true) {
            return Err(format!("slot {} is free twice", slot.0));
        }
        Ok(())
    }

    fn recount_lists(&self) -> Balance {
        let lists = [(List::Whole, &self.whole), (List::Partial, &self.partial)];
        for (list, blocks) in lists {
            for (place, BlockId(id)) in blocks.iter().enumerate() {
                let block = self.blocks.get(*id as usize);
                if block.is_none_or(|block| block.list() != Some(list) || block.place as usize != place) {
                    return Err(format!("block {id} does not belong at {place} of the list {list:?}"));
                }
            }
        }
        let listed = self.whole.len() + self.partial.len();
        let expected = self.blocks.iter().filter(|block| block.free > 0).count();
        if listed != expected {
            return Err(format!("{expected} blocks have free slots, {listed} are on lists"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use foretoken_plugin_api::{KvManager, SeqId};

    use super::*;
    use crate::PagedOptions;

    const A: SeqId = SeqId(1);
    const B: SeqId = SeqId(2);

    type Plant = fn(&mut Paged);

    /// A holds slots 0..5 and has reserved 5; B shares 0..5 and has reserved 6; 7..20 are free.
    fn busy() -> Paged {
        let mut kv = Paged::with_slots(&PagedOptions { block_size: 4 }, 20).unwrap();
        kv.admit(A, &[]).unwrap();
        kv.reserve(A, 5).unwrap();
        kv.commit(A, &[0, 1, 2, 3, 4], &[0; 5]).unwrap();
        kv.fork(A, B).unwrap();
        kv.reserve(A, 1).unwrap();
        kv.reserve(B, 1).unwrap();
        kv.check().unwrap();
        kv
    }

    #[test]
    fn planted_corruption_is_named() {
        let cases: [(&str, Plant, &str); 13] = [
            ("lost sharer", |kv| kv.pool.sharers[0] = 0, "slot 0 has 0 sharers but is on 2 lists"),
            ("extra sharer", |kv| kv.pool.sharers[19] = 1, "slot 19 has 1 sharers but is on 0 lists"),
            ("duplicate", |kv| kv.list(A)[1] = Slot(0), "sequence 1: slot 0 is on its list twice"),
            ("out of range", |kv| kv.list(A)[1] = Slot(20), "sequence 1: slot 20 is out of range"),
            ("stolen reservation", |kv| kv.list(B)[5] = Slot(5), "its reserved slot 5 is shared"),
            ("over-committed", |kv| kv.sequences.get_mut(&A).unwrap().committed_len = 9, "9 slots committed of 6"),
            ("free twice", |kv| kv.pool.stacks[17] = kv.pool.stacks[16], "slot 19 is free twice"),
            ("free and held", |kv| kv.pool.stacks[4] = Slot(6), "slot 6 is free and on 1 lists"),
            ("wrong block", |kv| kv.pool.stacks[16] = Slot(12), "slot 12 is on the free stack of block 4, not its own"),
            ("lost slot", |kv| kv.pool.blocks[4].free = 3, "is lost"),
            ("wrong sum", |kv| kv.pool.free += 1, "slots are said to be free"),
            ("wrong list", |kv| kv.pool.whole.swap(0, 1), "does not belong"),
            ("unlisted", |kv| kv.pool.whole.truncate(2), "are on lists"),
        ];
        for (name, plant, expected) in cases {
            let mut kv = busy();
            plant(&mut kv);
            let found = kv.check().expect_err(name).message;
            assert!(found.contains(expected), "{name}: expected {expected:?} in {found:?}");
        }
    }

    impl Paged {
        fn list(&mut self, id: SeqId) -> &mut [Slot] {
            &mut self.sequences.get_mut(&id).unwrap().slots
        }
    }
}
