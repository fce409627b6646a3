//! The sequences: each a list of slots, the committed ones in position order, then the reserved ones.
//!
//! A fork shares the parent's committed slots by reference count. There is no copy-on-write and none is needed: KV is
//! append-only per slot (a slot is written once, when its row is computed, and never again while anyone holds it), so
//! sharers cannot disagree about it, and each appends to slots of its own. Unknown sequences are an error where work was
//! asked for, and nothing at all for `rollback`, `free` and `slots`, which only say what should no longer be there.

use foretoken_plugin_api::{Error, Host, KvFacts, KvManager, KvStats, Result, SeqId, Slot, Token};

use rustc_hash::FxHashMap;

use crate::PagedOptions;
use crate::pool::{BlockId, SlotPool};

/// Room that a list is given beyond its prompt, so that decoding seldom has to grow it.
const LIST_HEADROOM: usize = 512;

/// The `paged` KV manager.
pub struct Paged {
    pub(crate) pool: SlotPool,
    pub(crate) sequences: FxHashMap<SeqId, Sequence>,
    spare: Vec<Vec<Slot>>,
}

pub(crate) struct Sequence {
    pub(crate) slots: Vec<Slot>,
    pub(crate) committed_len: usize,
    /// Where its next slots should come from: where it last took one, or left a hole.
    home: Option<BlockId>,
}

impl Paged {
    /// A manager of slots `0..num_slots`, all free.
    ///
    /// # Errors
    /// If the options are out of range or there are no slots, or more than a `u32` counts.
    pub fn with_slots(options: &PagedOptions, num_slots: usize) -> Result<Self> {
        if options.block_size == 0 {
            return Err(Error::options("paged: block_size must be at least 1, got 0"));
        }
        let slots = u32::try_from(num_slots).ok().filter(|slots| (1..=u32::MAX - options.block_size).contains(slots));
        let slots = slots.ok_or_else(|| {
            let most = u32::MAX - options.block_size;
            Error::refused(format!("paged: manages 1 to {most} slots, got num_slots = {num_slots}"))
        })?;
        let pool = SlotPool::new(slots, options.block_size);
        Ok(Self { pool, sequences: FxHashMap::default(), spare: Vec::new() })
    }

    fn insert(&mut self, sequence: SeqId, capacity: usize) -> Result<&mut Sequence> {
        if self.sequences.contains_key(&sequence) {
            return Err(Error::failed(format!("paged: sequence {} is already there", sequence.0)));
        }
        let mut slots = self.spare.pop().unwrap_or_default();
        slots.reserve(capacity + LIST_HEADROOM);
        Ok(self.sequences.entry(sequence).or_insert(Sequence { slots, committed_len: 0, home: None }))
    }
}

fn unknown(sequence: SeqId, call: &str) -> Error {
    Error::failed(format!("paged: sequence {} is not there, in {call}: admit or fork it first", sequence.0))
}

impl Sequence {
    fn reserve(&mut self, pool: &mut SlotPool, count: usize) -> Result<()> {
        let free = pool.free() as usize;
        if count > free {
            return Err(Error::out_of_slots(count, free));
        }
        let tail = self.slots.last().map(|slot| pool.block_of(*slot));
        let wanted = self.slots.len() + count;
        while self.slots.len() < wanted {
            let missing = wanted - self.slots.len();
            let block = pool.take([self.home, tail], missing, &mut self.slots);
            self.home = Some(block.ok_or_else(|| Error::out_of_slots(count, free))?);
        }
        Ok(())
    }

    fn checked_keep(&self, keep: &[u32]) -> Result<()> {
        let reserved_len = self.slots.len() - self.committed_len;
        if reserved_len == 0 {
            return Err(Error::failed("paged: commit, but nothing is reserved"));
        }
        if keep.windows(2).any(|pair| pair[0] >= pair[1])
            || keep.last().is_some_and(|last| *last as usize >= reserved_len)
        {
            let what = format!("paged: keep must ascend below the {reserved_len} reserved slots, got {keep:?}");
            return Err(Error::failed(what));
        }
        Ok(())
    }

    fn commit(&mut self, pool: &mut SlotPool, keep: &[u32]) {
        let start = self.committed_len;
        // Last slot first: a block's stack then hands the holes out in ascending order.
        let mut kept = keep.iter().rev().peekable();
        let reserved = self.slots[start..].iter().enumerate().rev();
        let mut first_hole = None;
        let holes = reserved.filter(|(index, _)| kept.next_if(|next| **next as usize == *index).is_none());
        pool.release(holes.map(|(_, slot)| *first_hole.insert(*slot)));
        self.home = first_hole.map(|slot| pool.block_of(slot)).or(self.home);
        for (to, from) in keep.iter().enumerate() {
            self.slots[start + to] = self.slots[start + *from as usize];
        }
        self.committed_len = start + keep.len();
        self.slots.truncate(self.committed_len);
    }
}

impl KvManager for Paged {
    type Options = PagedOptions;

    fn new(options: PagedOptions, facts: KvFacts, _host: Host) -> Result<Self> {
        Self::with_slots(&options, facts.num_slots)
    }

    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize> {
        self.insert(sequence, tokens.len())?;
        Ok(0)
    }

    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        let list = self.sequences.get_mut(&sequence).ok_or_else(|| unknown(sequence, "reserve"))?;
        list.reserve(&mut self.pool, count)
    }

    fn slots(&self, sequence: SeqId) -> &[Slot] {
        self.sequences.get(&sequence).map_or(&[], |list| &list.slots)
    }

    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        let list = self.sequences.get_mut(&sequence).ok_or_else(|| unknown(sequence, "commit"))?;
        list.checked_keep(keep)?;
        if tokens.len() != keep.len() {
            let what = format!("paged: commit keeps {} slots but names {} tokens", keep.len(), tokens.len());
            return Err(Error::failed(what));
        }
        list.commit(&mut self.pool, keep);
        Ok(())
    }

    fn rollback(&mut self, sequence: SeqId) {
        if let Some(list) = self.sequences.get_mut(&sequence) {
            list.commit(&mut self.pool, &[]);
        }
    }

    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        let committed_len = self.sequences.get(&parent).ok_or_else(|| unknown(parent, "fork"))?.committed_len;
        self.insert(child, committed_len)?;
        if let [Some(from), Some(to)] = self.sequences.get_disjoint_mut([&parent, &child]) {
            to.slots.extend_from_slice(&from.slots[..committed_len]);
            to.committed_len = committed_len;
            to.slots.iter().for_each(|slot| self.pool.share(*slot));
        }
        Ok(())
    }

    fn free(&mut self, sequence: SeqId) {
        if let Some(mut list) = self.sequences.remove(&sequence) {
            self.pool.release(list.slots.iter().rev().copied());
            list.slots.clear();
            self.spare.push(list.slots);
        }
    }

    fn stats(&self) -> KvStats {
        let (total, free) = (self.pool.total(), self.pool.free());
        KvStats { total, free, held: total - free, cached: 0 }
    }

    fn check(&self) -> Result<()> {
        self.recount(&[]).map(drop).map_err(|what| Error::failed(format!("paged: {what}")))
    }
}
