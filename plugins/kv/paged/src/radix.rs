//! The `radix` KV manager: `paged`, and a tree of what was computed, so that a prefix that comes again is not.
//!
//! The tree holds a reference to each of its slots, as a sequence does; a slot that only the tree holds is cached, and is
//! given up when slots run out. A sequence's committed slots enter the tree as they are committed, so even two requests that
//! run at once share what the first has computed by the time the second comes in. Where two compute the same prefix side by
//! side, the second one's slots stay out of the tree and are free with it: its list of slots must not change under it.

use foretoken_plugin_api::{Error, ErrorKind, Host, KvFacts, KvManager, KvStats, Result, SeqId, Slot, Token};

use rustc_hash::FxHashSet;

use crate::PagedOptions;
use crate::paged::Paged;
use crate::tree::Tree;

/// The `radix` KV manager.
pub struct Radix {
    lists: Paged,
    tree: Tree,
    /// Sequences with a slot outside of the tree: from there on nothing enters.
    strayed: FxHashSet<SeqId>,
}

impl Radix {
    /// A manager of slots `0..num_slots`, all free.
    ///
    /// # Errors
    /// If the options are out of range or there are no slots, or more than a `u32` counts.
    pub fn with_slots(options: &PagedOptions, num_slots: usize) -> Result<Self> {
        Ok(Self {
            lists: Paged::with_slots(options, num_slots)?,
            tree: Tree::new(num_slots),
            strayed: FxHashSet::default(),
        })
    }

    fn committed(&self, sequence: SeqId) -> &[Slot] {
        self.lists.sequences.get(&sequence).map_or(&[], |list| &list.slots[..list.committed_len])
    }

    /// Evicts until `count` slots are free, if that can be.
    fn make_room(&mut self, count: usize) {
        let pool = &mut self.lists.pool;
        let missing = count.saturating_sub(pool.free() as usize);
        if missing <= self.tree.cached() as usize {
            pool.release((0..missing).filter_map(|_| self.tree.evict()));
        }
    }
}

impl KvManager for Radix {
    type Options = PagedOptions;

    fn new(options: PagedOptions, facts: KvFacts, _host: Host) -> Result<Self> {
        Self::with_slots(&options, facts.num_slots)
    }

    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize> {
        self.lists.admit(sequence, tokens)?;
        let Self { lists, tree, .. } = self;
        let Some(list) = lists.sequences.get_mut(&sequence) else { return Ok(0) };
        let (_, wanted) = tokens.split_last().unwrap_or((&0, &[]));
        for token in wanted {
            let Some(slot) = tree.child(list.slots.last().copied(), *token) else { break };
            tree.hold(slot);
            lists.pool.share(slot);
            list.slots.push(slot);
        }
        list.committed_len = list.slots.len();
        Ok(list.committed_len)
    }

    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        self.make_room(count);
        let reachable = self.lists.pool.free() + self.tree.cached();
        self.lists.reserve(sequence, count).map_err(|error| match error.kind {
            ErrorKind::OutOfSlots => Error::out_of_slots(count, reachable as usize),
            _ => error,
        })
    }

    fn slots(&self, sequence: SeqId) -> &[Slot] {
        self.lists.slots(sequence)
    }

    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        let before = self.committed(sequence).len();
        self.lists.commit(sequence, keep, tokens)?;
        if self.strayed.contains(&sequence) {
            return Ok(());
        }
        let Self { lists, tree, strayed } = self;
        let Some(list) = lists.sequences.get(&sequence) else { return Ok(()) };
        for (place, token) in (before..list.committed_len).zip(tokens) {
            let parent = place.checked_sub(1).map(|place| list.slots[place]);
            let slot = list.slots[place];
            if !tree.insert(parent, *token, slot) {
                strayed.insert(sequence);
                break;
            }
            lists.pool.share(slot);
        }
        Ok(())
    }

    fn rollback(&mut self, sequence: SeqId) {
        self.lists.rollback(sequence);
    }

    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        self.lists.fork(parent, child)?;
        if self.strayed.contains(&parent) {
            self.strayed.insert(child);
        }
        Ok(())
    }

    fn free(&mut self, sequence: SeqId) {
        let Some(list) = self.lists.sequences.get(&sequence) else { return };
        // Last slot first: the end of a text is what is evicted first.
        for slot in list.slots.iter().rev() {
            // Held by this sequence and the tree.
            if self.lists.pool.sharers[slot.index()] == 1 && self.tree.contains(*slot) {
                self.tree.let_go(*slot);
            }
        }
        self.lists.free(sequence);
        self.strayed.remove(&sequence);
    }

    fn stats(&self) -> KvStats {
        let KvStats { total, free, .. } = self.lists.stats();
        let cached = self.tree.cached();
        KvStats { total, free, held: total - free - cached, cached }
    }

    fn check(&self) -> Result<()> {
        let nodes: Vec<u32> =
            (0..self.tree.nodes.len() as u32).map(|slot| u32::from(self.tree.contains(Slot(slot)))).collect();
        let holders = self.lists.recount(&nodes);
        let checked = holders.and_then(|holders| self.tree.recount(&holders));
        checked.map_err(|what| Error::failed(format!("radix: {what}")))
    }
}
