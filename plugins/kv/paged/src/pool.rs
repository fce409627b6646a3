//! Which slots are free, by block, and how many sequences hold each of the others.
//!
//! Every block has a stack of its free slots (block `b`'s is `stacks[b * block_size ..][..free]`), and every block with a
//! free slot is on one of two lists: `whole` (nothing taken) or `partial`. Taking and releasing a slot are O(1), a run of
//! neighbours costs little more, and nothing here allocates but the list that is taken into. Stacks instead of one
//! global free list keep neighbours together; a bitmap would need a scan.

use foretoken_plugin_api::Slot;

/// The free slots and the reference counts.
pub struct SlotPool {
    pub(crate) block_size: u32,
    /// How many sequences hold each slot, beside the first one.
    pub(crate) sharers: Vec<u32>,
    pub(crate) stacks: Vec<Slot>,
    pub(crate) blocks: Vec<Block>,
    pub(crate) whole: Vec<BlockId>,
    pub(crate) partial: Vec<BlockId>,
    pub(crate) free: u32,
}

/// A run of `block_size` neighbouring slots; the last block may be shorter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BlockId(pub(crate) u32);

pub(crate) struct Block {
    pub(crate) capacity: u32,
    pub(crate) free: u32,
    /// Where it is on its list; stale while the block is full, as it is on none.
    pub(crate) place: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum List {
    Whole,
    Partial,
}

impl Block {
    /// The list it belongs on, if any.
    pub(crate) fn list(&self) -> Option<List> {
        match self.free {
            0 => None,
            free if free == self.capacity => Some(List::Whole),
            _ => Some(List::Partial),
        }
    }
}

impl SlotPool {
    /// `num_slots` free slots in blocks of `block_size` (at least 1).
    pub fn new(num_slots: u32, block_size: u32) -> Self {
        let blocks = num_slots.div_ceil(block_size);
        let mut pool = Self {
            block_size,
            sharers: vec![0; num_slots as usize],
            stacks: vec![Slot(0); num_slots as usize],
            blocks: Vec::with_capacity(blocks as usize),
            whole: Vec::with_capacity(blocks as usize),
            partial: Vec::with_capacity(blocks as usize),
            free: num_slots,
        };
        for block in 0..blocks {
            let first = block * block_size;
            let capacity = block_size.min(num_slots - first);
            // Stacks and lists pop from the end: descending, so that slots are handed out ascending.
            for offset in 0..capacity {
                pool.stacks[(first + offset) as usize] = Slot(first + capacity - 1 - offset);
            }
            pool.blocks.push(Block { capacity, free: capacity, place: blocks - 1 - block });
        }
        pool.whole.extend((0..blocks).rev().map(BlockId));
        pool
    }

    /// Slots there are.
    pub fn total(&self) -> u32 {
        self.sharers.len() as u32
    }

    /// Slots nobody holds.
    pub fn free(&self) -> u32 {
        self.free
    }

    /// The block of a slot.
    pub fn block_of(&self, slot: Slot) -> BlockId {
        BlockId(slot.0 / self.block_size)
    }

    /// Takes up to `count` free slots of one block, which it returns, to the end of `taken`: the first of the blocks `near`
    /// that has one, else a whole free block, else any. None if no slot is free.
    pub fn take(&mut self, near: [Option<BlockId>; 2], count: usize, taken: &mut Vec<Slot>) -> Option<BlockId> {
        let has_free = |block: &BlockId| self.blocks[block.0 as usize].free > 0;
        let near = near.into_iter().flatten().find(has_free);
        let id = near.or_else(|| self.whole.last().copied()).or_else(|| self.partial.last().copied())?;
        let free = self.blocks[id.0 as usize].free as usize;
        let (start, left) = (self.start(id), free.saturating_sub(count));
        taken.extend(self.stacks[start + left..start + free].iter().rev());
        self.free -= (free - left) as u32;
        self.set_free(id, left as u32);
        Some(id)
    }

    /// Adds a holder to a held slot.
    pub fn share(&mut self, slot: Slot) {
        self.sharers[slot.index()] += 1;
    }

    /// Takes a holder away from each; a slot is free with its last one. Neighbours in a row cost little more than one.
    pub fn release(&mut self, slots: impl IntoIterator<Item = Slot>) {
        let mut slots = slots.into_iter().peekable();
        while let Some(first) = slots.peek() {
            let id = self.block_of(*first);
            let start = self.start(id);
            let block = start..start + self.blocks[id.0 as usize].capacity as usize;
            let before = self.blocks[id.0 as usize].free;
            let mut free = before;
            while let Some(slot) = slots.next_if(|slot| block.contains(&slot.index())) {
                let sharers = &mut self.sharers[slot.index()];
                if *sharers > 0 {
                    *sharers -= 1;
                } else {
                    self.stacks[start + free as usize] = slot;
                    free += 1;
                }
            }
            self.free += free - before;
            self.set_free(id, free);
        }
    }

    /// Where a block's stack begins.
    fn start(&self, id: BlockId) -> usize {
        id.0 as usize * self.block_size as usize
    }

    fn set_free(&mut self, id: BlockId, free: u32) {
        let block = &mut self.blocks[id.0 as usize];
        let before = block.list();
        block.free = free;
        let after = block.list();
        if before != after {
            if let Some(list) = before {
                self.unlist(id, list);
            }
            if let Some(list) = after {
                let blocks = match list {
                    List::Whole => &mut self.whole,
                    List::Partial => &mut self.partial,
                };
                self.blocks[id.0 as usize].place = blocks.len() as u32;
                blocks.push(id);
            }
        }
    }

    fn unlist(&mut self, id: BlockId, list: List) {
        let blocks = match list {
            List::Whole => &mut self.whole,
            List::Partial => &mut self.partial,
        };
        let place = self.blocks[id.0 as usize].place;
        blocks.swap_remove(place as usize);
        if let Some(moved) = blocks.get(place as usize) {
            self.blocks[moved.0 as usize].place = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_come_ascending_and_whole_blocks_come_first() {
        let mut pool = SlotPool::new(10, 4);
        let mut take = |near, count| {
            let mut taken = Vec::new();
            let block = pool.take([near, None], count, &mut taken);
            (block, taken.iter().map(|slot: &Slot| slot.0).collect::<Vec<_>>())
        };
        let (home, first) = take(None, 1);
        assert_eq!(first, [0]);
        assert_eq!(take(None, 1).1, [4], "a stranger takes a whole block");
        assert_eq!(take(home, 5), (home, vec![1, 2, 3]), "of one block");
        assert_eq!(take(home, 1).1, [8], "the short last block is whole too");
    }

    #[test]
    fn every_slot_can_be_had_and_is_had_once() {
        let mut pool = SlotPool::new(10, 4);
        let mut taken = Vec::new();
        while pool.take([None; 2], 3, &mut taken).is_some() {}
        assert_eq!(pool.free(), 0);
        taken.sort();
        assert_eq!(taken, (0..10).map(Slot).collect::<Vec<_>>());
    }

    #[test]
    fn a_shared_slot_is_free_with_its_last_holder() {
        let mut pool = SlotPool::new(1, 16);
        let mut taken = Vec::new();
        pool.take([None; 2], 1, &mut taken);
        pool.share(taken[0]);
        pool.release(taken.clone());
        assert_eq!((pool.free(), pool.take([None; 2], 1, &mut taken)), (0, None));
        pool.release(taken.clone());
        assert_eq!((pool.free(), taken.len()), (1, 1));
    }
}
