//! The prefix tree: which slot holds the token behind a given prefix.
//!
//! A slot's keys and values depend on its token and on all tokens before it, so a node *is* a slot, and an edge is found by
//! the slot before and the token. No node is ever split, and a prefix of any length is found token by token.
//!
//! Whoever holds a node holds all nodes before it. So what nobody holds can be given up from its ends: the leaves stand in
//! a list, the one longest unused first, and the node before an evicted leaf takes its place in that list, since nothing
//! behind it was used later.

use foretoken_plugin_api::{Slot, Token};
use rustc_hash::{FxBuildHasher, FxHashMap};

/// No slot: the root, the end of the list.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Node {
    /// The slot before, or none.
    pub(crate) parent: u32,
    pub(crate) token: Token,
    pub(crate) children: u32,
    /// Whether no sequence holds it.
    pub(crate) is_cached: bool,
    /// Its neighbours in the list of leaves; stale while it is not there.
    older: u32,
    newer: u32,
}

/// Nodes by slot.
pub struct Tree {
    pub(crate) nodes: Vec<Option<Node>>,
    edges: FxHashMap<(u32, Token), Slot>,
    oldest: u32,
    newest: u32,
    cached: u32,
}

fn index(slot: Option<Slot>) -> u32 {
    slot.map_or(NONE, |slot| slot.0)
}

impl Tree {
    /// A tree of none of `num_slots` slots.
    pub fn new(num_slots: usize) -> Self {
        let edges = FxHashMap::with_capacity_and_hasher(num_slots, FxBuildHasher);
        Self { nodes: vec![None; num_slots], edges, oldest: NONE, newest: NONE, cached: 0 }
    }

    /// Nodes that no sequence holds.
    pub fn cached(&self) -> u32 {
        self.cached
    }

    /// Whether the slot is a node.
    pub fn contains(&self, slot: Slot) -> bool {
        self.nodes[slot.index()].is_some()
    }

    /// The slot of `token` behind `parent`, or behind nothing.
    pub fn child(&self, parent: Option<Slot>, token: Token) -> Option<Slot> {
        self.edges.get(&(index(parent), token)).copied()
    }

    /// Makes `slot`, which a sequence holds, the child of `parent`; false if there is another one already.
    pub fn insert(&mut self, parent: Option<Slot>, token: Token, slot: Slot) -> bool {
        let parent = index(parent);
        if self.edges.contains_key(&(parent, token)) {
            return false;
        }
        self.edges.insert((parent, token), slot);
        let node = Node { parent, token, children: 0, is_cached: false, older: NONE, newer: NONE };
        self.nodes[slot.index()] = Some(node);
        if let Some(Some(parent)) = self.nodes.get_mut(parent as usize) {
            parent.children += 1;
        }
        true
    }

    /// A sequence holds the node again.
    pub fn hold(&mut self, slot: Slot) {
        let Some(node) = &mut self.nodes[slot.index()] else { return };
        if std::mem::take(&mut node.is_cached) {
            self.cached -= 1;
            if node.children == 0 {
                self.unlist(slot.0);
            }
        }
    }

    /// The last sequence that held the node let go of it.
    pub fn let_go(&mut self, slot: Slot) {
        let newest = self.newest;
        let Some(node) = &mut self.nodes[slot.index()] else { return };
        node.is_cached = true;
        self.cached += 1;
        if node.children == 0 {
            (node.older, node.newer) = (newest, NONE);
            match self.nodes.get_mut(newest as usize) {
                Some(Some(before)) => before.newer = slot.0,
                _ => self.oldest = slot.0,
            }
            self.newest = slot.0;
        }
    }

    /// Takes the leaf that was not used for longest out of the tree.
    pub fn evict(&mut self) -> Option<Slot> {
        let slot = Slot(self.oldest);
        let node = (*self.nodes.get(slot.index())?)?;
        self.unlist(slot.0);
        self.nodes[slot.index()] = None;
        self.edges.remove(&(node.parent, node.token));
        self.cached -= 1;
        let oldest = self.oldest;
        if let Some(Some(parent)) = self.nodes.get_mut(node.parent as usize) {
            parent.children -= 1;
            if parent.children == 0 && parent.is_cached {
                (parent.older, parent.newer) = (NONE, oldest);
                match self.nodes.get_mut(oldest as usize) {
                    Some(Some(next)) => next.older = node.parent,
                    _ => self.newest = node.parent,
                }
                self.oldest = node.parent;
            }
        }
        Some(slot)
    }

    fn unlist(&mut self, slot: u32) {
        let Some(Node { older, newer, .. }) = self.nodes[slot as usize] else { return };
        match self.nodes.get_mut(older as usize) {
            Some(Some(before)) => before.newer = newer,
            _ => self.oldest = newer,
        }
        match self.nodes.get_mut(newer as usize) {
            Some(Some(after)) => after.older = older,
            _ => self.newest = older,
        }
    }

    /// Counts again: `holders` are the sequences that hold each slot.
    pub(crate) fn recount(&self, holders: &[u32]) -> Result<(), String> {
        let mut children = vec![0; self.nodes.len()];
        let (mut nodes, mut cached, mut leaves) = (0, 0, 0);
        for (slot, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            if self.edges.get(&(node.parent, node.token)) != Some(&Slot(slot as u32)) {
                return Err(format!("node {slot} is not found by its edge"));
            }
            if node.is_cached != (holders[slot] == 0) {
                let (said, held) = (if node.is_cached { "cached" } else { "held" }, holders[slot]);
                return Err(format!("node {slot} is said to be {said}, {held} sequences hold it"));
            }
            if node.parent != NONE {
                let Some(Some(parent)) = self.nodes.get(node.parent as usize) else {
                    return Err(format!("node {slot} hangs on {}, which is no node", node.parent));
                };
                if parent.is_cached && !node.is_cached {
                    return Err(format!("node {slot} is held, but {} before it is not", node.parent));
                }
                children[node.parent as usize] += 1;
            }
            nodes += 1;
            cached += u32::from(node.is_cached);
            leaves += u32::from(node.is_cached && node.children == 0);
        }
        let wrong =
            self.nodes.iter().zip(&children).position(|(node, counted)| node.is_some_and(|n| n.children != *counted));
        if let Some(slot) = wrong {
            return Err(format!("node {slot} has {} children, not what it says", children[slot]));
        }
        if nodes != self.edges.len() || cached != self.cached {
            let (edges, said) = (self.edges.len(), self.cached);
            return Err(format!("{nodes} nodes and {edges} edges; {cached} nodes cached, {said} said to be"));
        }
        self.recount_list(leaves)
    }

    fn recount_list(&self, leaves: u32) -> Result<(), String> {
        let (mut at, mut before, mut listed) = (self.oldest, NONE, 0);
        while at != NONE {
            let node = self.nodes.get(at as usize).copied().flatten();
            let Some(node) = node.filter(|node| node.is_cached && node.children == 0 && node.older == before) else {
                return Err(format!("slot {at} does not belong on the list of leaves"));
            };
            listed += 1;
            if listed > leaves {
                break;
            }
            (before, at) = (at, node.newer);
        }
        if listed != leaves || before != self.newest {
            return Err(format!("{leaves} leaves can be evicted, {listed} are listed"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chain(tree: &mut Tree, tokens: &[Token], slots: &[u32]) {
        let mut parent = None;
        for (token, slot) in tokens.iter().zip(slots) {
            assert!(tree.insert(parent, *token, Slot(*slot)));
            parent = Some(Slot(*slot));
        }
    }

    #[test]
    fn the_longest_unused_end_goes_first_and_a_shared_beginning_last() {
        let mut tree = Tree::new(8);
        chain(&mut tree, &[7, 8, 9], &[0, 1, 2]);
        assert!(tree.insert(Some(Slot(0)), 5, Slot(3)));
        assert!(!tree.insert(Some(Slot(0)), 5, Slot(4)), "there is one already");
        [2, 1, 3, 0].into_iter().for_each(|slot| tree.let_go(Slot(slot)));
        assert_eq!(tree.cached(), 4);
        tree.hold(Slot(0));
        tree.hold(Slot(3));
        [3, 0].into_iter().for_each(|slot| tree.let_go(Slot(slot)));
        tree.recount(&[0; 8]).unwrap();
        let evicted: Vec<u32> = std::iter::from_fn(|| tree.evict()).map(|slot| slot.0).collect();
        assert_eq!(evicted, [2, 1, 3, 0]);
        assert_eq!(tree.child(None, 7), None);
    }

    #[test]
    fn planted_corruption_is_named() {
        type Plant = fn(&mut Tree);
        let cases: [(Plant, &str); 5] = [
            (|tree| tree.cached += 1, "said to be"),
            (|tree| tree.nodes[1].as_mut().unwrap().children = 0, "children"),
            (|tree| tree.nodes[2].as_mut().unwrap().is_cached = false, "said to be held"),
            (|tree| tree.oldest = NONE, "are listed"),
            (|tree| tree.edges.retain(|edge, _| *edge != (0, 8)), "not found by its edge"),
        ];
        for (plant, expected) in cases {
            let mut tree = Tree::new(8);
            chain(&mut tree, &[7, 8, 9], &[0, 1, 2]);
            [2, 1, 0].into_iter().for_each(|slot| tree.let_go(Slot(slot)));
            tree.recount(&[0; 8]).unwrap();
            plant(&mut tree);
            let found = tree.recount(&[0; 8]).expect_err(expected);
            assert!(found.contains(expected), "expected {expected:?} in {found:?}");
        }
    }
}
