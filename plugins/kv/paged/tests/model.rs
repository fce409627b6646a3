//! Long random histories against a naive account of who holds what.
//!
//! The oracle keeps every sequence's list as the manager showed it, and counts the free slots as those on no list.

use std::collections::{BTreeMap, BTreeSet};

use foretoken_paged::{Paged, PagedOptions};
use foretoken_plugin_api::{ErrorKind, KvManager, KvStats, SeqId, Slot};
use proptest::prelude::*;

const IDS: u64 = 8;

#[derive(Debug, Clone)]
enum Operation {
    Admit(SeqId, usize),
    Reserve(SeqId, usize),
    Commit(SeqId, Vec<bool>),
    CommitWrongly(SeqId, Vec<u32>),
    Rollback(SeqId),
    Fork(SeqId, SeqId),
    Free(SeqId),
}

fn operation(slots: usize) -> impl Strategy<Value = Operation> {
    let id = || (0..IDS).prop_map(SeqId);
    let keep = prop::collection::vec(any::<bool>(), 0..12);
    prop_oneof![
        2 => (id(), 0..slots).prop_map(|(id, len)| Operation::Admit(id, len)),
        6 => (id(), 0..slots / 3 + 3).prop_map(|(id, count)| Operation::Reserve(id, count)),
        6 => (id(), keep).prop_map(|(id, keep)| Operation::Commit(id, keep)),
        1 => (id(), prop::collection::vec(0u32..9, 0..4)).prop_map(|(id, keep)| Operation::CommitWrongly(id, keep)),
        2 => id().prop_map(Operation::Rollback),
        2 => (id(), id()).prop_map(|(parent, child)| Operation::Fork(parent, child)),
        1 => id().prop_map(Operation::Free),
    ]
}

#[derive(Default, Clone, Debug, PartialEq)]
struct List {
    slots: Vec<Slot>,
    committed_len: usize,
}

struct World {
    kv: Paged,
    lists: BTreeMap<SeqId, List>,
    num_slots: usize,
}

impl World {
    fn free(&self) -> usize {
        let held: BTreeSet<_> = self.lists.values().flat_map(|list| &list.slots).collect();
        self.num_slots - held.len()
    }

    fn apply(&mut self, operation: &Operation) {
        match operation {
            Operation::Admit(id, len) => {
                let admitted = self.kv.admit(*id, &vec![7; *len]);
                assert_eq!(admitted.is_ok(), !self.lists.contains_key(id));
                if let Ok(cached_len) = admitted {
                    assert_eq!(cached_len, 0);
                    self.lists.insert(*id, List::default());
                }
            }
            Operation::Reserve(id, count) => self.reserve(*id, *count),
            Operation::Commit(id, kept) => {
                let reserved_len = self.lists.get(id).map_or(0, |list| list.slots.len() - list.committed_len);
                let keep: Vec<_> = (0..reserved_len as u32).filter(|i| kept.get(*i as usize) == Some(&true)).collect();
                self.commit(*id, &keep);
            }
            Operation::CommitWrongly(id, keep) => self.commit(*id, keep),
            Operation::Rollback(id) => {
                self.kv.rollback(*id);
                self.lists.entry(*id).and_modify(|list| list.slots.truncate(list.committed_len));
            }
            Operation::Fork(parent, child) => {
                let forked = self.kv.fork(*parent, *child);
                let possible = self.lists.contains_key(parent) && !self.lists.contains_key(child);
                assert_eq!(forked.is_ok(), possible);
                if possible {
                    let List { slots, committed_len } = &self.lists[parent];
                    let list = List { slots: slots[..*committed_len].to_vec(), committed_len: *committed_len };
                    self.lists.insert(*child, list);
                }
            }
            Operation::Free(id) => {
                self.kv.free(*id);
                self.lists.remove(id);
            }
        }
    }

    fn reserve(&mut self, id: SeqId, count: usize) {
        let free = self.free();
        match (self.kv.reserve(id, count), self.lists.contains_key(&id)) {
            (Ok(()), true) => {
                assert!(count <= free);
                let before: BTreeSet<_> = self.lists.values().flat_map(|list| list.slots.clone()).collect();
                let list = self.lists.get_mut(&id).expect("it is there");
                let shown = self.kv.slots(id);
                let new = &shown[list.slots.len()..];
                assert_eq!(new.len(), count);
                assert!(new.iter().all(|slot| !before.contains(slot) && slot.index() < self.num_slots));
                assert_eq!(new.iter().collect::<BTreeSet<_>>().len(), count);
                list.slots.extend_from_slice(new);
            }
            (Err(error), true) => {
                assert_eq!(error.kind, ErrorKind::OutOfSlots);
                assert!(count > free, "{count} refused, {free} free");
            }
            (result, false) => assert_eq!(result.expect_err("unknown").kind, ErrorKind::Failed),
        }
    }

    fn commit(&mut self, id: SeqId, keep: &[u32]) {
        let result = self.kv.commit(id, keep, &vec![7; keep.len()]);
        let Some(list) = self.lists.get_mut(&id) else {
            return assert!(result.is_err());
        };
        let reserved = list.slots.split_off(list.committed_len);
        let ascends = keep.is_sorted_by(|a, b| a < b) && keep.iter().all(|index| (*index as usize) < reserved.len());
        assert_eq!(result.is_ok(), ascends && !reserved.is_empty());
        if result.is_ok() {
            list.slots.extend(keep.iter().map(|index| reserved[*index as usize]));
            list.committed_len = list.slots.len();
        } else {
            list.slots.extend(reserved);
        }
    }

    fn compare(&self) {
        self.kv.check().unwrap();
        for id in (0..IDS).map(SeqId) {
            let expected = self.lists.get(&id).map_or(&[][..], |list| &list.slots);
            assert_eq!(self.kv.slots(id), expected);
        }
        let (total, free) = (self.num_slots as u32, self.free() as u32);
        assert_eq!(self.kv.stats(), KvStats { total, free, held: total - free, cached: 0 });
    }
}

fn histories() -> impl Strategy<Value = (usize, u32, Vec<Operation>)> {
    (1usize..60).prop_flat_map(|slots| (Just(slots), 1u32..20, prop::collection::vec(operation(slots), 1..400)))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_history_agrees_with_the_oracle((num_slots, block_size, operations) in histories()) {
        let kv = Paged::with_slots(&PagedOptions { block_size }, num_slots).unwrap();
        let mut world = World { kv, lists: BTreeMap::new(), num_slots };
        for operation in &operations {
            world.apply(operation);
            world.compare();
        }
        (0..IDS).for_each(|id| world.kv.free(SeqId(id)));
        world.kv.check().unwrap();
        prop_assert_eq!(world.kv.stats().free as usize, num_slots);
    }
}
