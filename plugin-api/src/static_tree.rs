//! A tree of fixed shape: which ranks of each node's guesses are drafted, whatever their probabilities are.

use crate::error::{Error, Result};

/// One place of the tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Node {
    parent: Option<usize>,
    depth: usize,
    rank: usize,
}

/// A checked list of paths of ranks, parents before children: `[[0], [0, 0], [1]]` is the best two guesses behind the anchor
/// and, under the best of them, the best one. Medusa's published trees (`medusa_choices`) are written so.
///
/// ```
/// # use foretoken_plugin_api::tree::StaticTree;
/// let tree = StaticTree::new(&[vec![1], vec![0, 2], vec![0]]).unwrap();
/// assert_eq!(tree.children(None).collect::<Vec<_>>(), [(0, 0), (1, 1)]);
/// assert_eq!(tree.children(Some(0)).collect::<Vec<_>>(), [(2, 2)]);
/// assert!(StaticTree::new(&[vec![0, 1]]).is_err());
/// ```
#[derive(Debug, Clone)]
pub struct StaticTree {
    nodes: Vec<Node>,
}

impl StaticTree {
    /// Checks `paths`.
    ///
    /// # Errors
    /// If there is none, or one is empty, listed twice, or lacks the node above it.
    pub fn new(paths: &[Vec<usize>]) -> Result<Self> {
        let mut sorted: Vec<&Vec<usize>> = paths.iter().collect();
        // Shorter ones first, so that every parent comes before its children.
        sorted.sort_by(|a, b| a.len().cmp(&b.len()).then(a.cmp(b)));
        let bad = |path: &[usize], what: &str| Err(Error::options(format!("choices: {path:?} {what}")));
        if sorted.is_empty() {
            return Err(Error::options("choices is empty, expected at least [[0]]"));
        }
        let mut nodes = Vec::with_capacity(sorted.len());
        for (place, path) in sorted.iter().enumerate() {
            let Some((&rank, above)) = path.split_last() else { return bad(path, "is empty") };
            if place > 0 && sorted[place - 1] == *path {
                return bad(path, "is listed twice");
            }
            let parent = sorted[..place].iter().position(|other| other.as_slice() == above);
            if parent.is_none() && !above.is_empty() {
                return bad(path, &format!("is listed without {above:?}, the node above it"));
            }
            nodes.push(Node { parent, depth: path.len(), rank });
        }
        Ok(Self { nodes })
    }

    /// Nodes of the tree.
    #[allow(clippy::len_without_is_empty, reason = "there is always one")]
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// Levels of the tree.
    pub fn depth(&self) -> usize {
        self.nodes.iter().map(|node| node.depth).max().unwrap_or(0)
    }

    /// How many guesses of a node it looks at.
    pub fn width(&self) -> usize {
        self.nodes.iter().map(|node| node.rank + 1).max().unwrap_or(0)
    }

    /// Whether a node has several children.
    pub fn branches(&self) -> bool {
        let twice = |(place, node): (usize, &Node)| self.nodes[..place].iter().any(|other| other.parent == node.parent);
        self.nodes.iter().enumerate().any(twice)
    }

    /// Whether every node's children are its first ones, as drawing without replacement makes them.
    pub fn is_contiguous(&self) -> bool {
        let parents = (0..self.len()).map(Some).chain([None]);
        parents.into_iter().all(|parent| self.children(parent).enumerate().all(|(index, (_, rank))| index == rank))
    }

    /// Nodes that have children.
    pub fn inner_nodes(&self) -> usize {
        (0..self.len()).filter(|place| self.children(Some(*place)).next().is_some()).count()
    }

    /// Every node in order: the place of its parent (`None`: the anchor), its level from 0 on, and its rank.
    pub fn nodes(&self) -> impl Iterator<Item = (Option<usize>, usize, usize)> + '_ {
        self.nodes.iter().map(|node| (node.parent, node.depth - 1, node.rank))
    }

    /// The children of a place, in falling order of probability: their places and ranks.
    pub fn children(&self, parent: Option<usize>) -> impl Iterator<Item = (usize, usize)> + '_ {
        let of = move |(_, node): &(usize, &Node)| node.parent == parent;
        self.nodes.iter().enumerate().filter(of).map(|(place, node)| (place, node.rank))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_tree_is_refused_and_named() {
        let refusal = |paths: &[&[usize]]| {
            let paths: Vec<Vec<usize>> = paths.iter().map(|path| path.to_vec()).collect();
            StaticTree::new(&paths).err().map(|error| error.message).unwrap_or_default()
        };
        assert!(refusal(&[&[0], &[1, 0]]).contains("[1, 0] is listed without [1]"));
        assert!(refusal(&[&[0], &[]]).contains("is empty"));
        assert!(refusal(&[&[0], &[0]]).contains("twice"));
        assert!(refusal(&[]).contains("choices is empty"));
        assert_eq!(refusal(&[&[0, 1], &[0], &[0, 0], &[1]]), "");
    }

    #[test]
    fn depth_width_and_inner_nodes() {
        let tree = StaticTree::new(&[vec![0], vec![0, 1], vec![0, 1, 0], vec![4]]).unwrap();
        assert_eq!((tree.len(), tree.depth(), tree.width(), tree.inner_nodes()), (4, 3, 5, 2));
        assert!(tree.branches());
        assert!(!StaticTree::new(&[vec![2], vec![2, 0]]).unwrap().branches());
    }
}
