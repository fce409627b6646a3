//! What a draft looks like: a chain, a tree that is grown, or one of fixed shape.

use std::sync::Arc;

use super::Growth;
use crate::error::{Error, Result};
use crate::guess::DraftSampling;
use crate::tree::{StaticTree, TreeGrower, TreeShape};
use crate::types::{LaneNeed, Needs};

/// The options `num_speculative_tokens`, `tree` and `choices` of a proposer, checked.
#[derive(Debug, Clone)]
pub enum DraftShape {
    /// One token behind the other.
    Chain {
        /// Tokens of a draft.
        len: usize,
        /// How they are chosen.
        sampling: DraftSampling,
    },
    /// The most probable paths.
    Grown(TreeShape),
    /// Always the same tree.
    Fixed {
        /// The tree.
        tree: Arc<StaticTree>,
        /// How a node's children are chosen.
        sampling: DraftSampling,
    },
}

impl DraftShape {
    /// A chain of `len` tokens for the proposer `part`.
    ///
    /// # Errors
    /// If `len` is 0.
    pub fn chain(part: &str, len: usize, sampling: DraftSampling) -> Result<Self> {
        match len {
            0 => Err(Error::options(format!("{part}: num_speculative_tokens is 0, expected at least 1"))),
            len => Ok(Self::Chain { len, sampling }),
        }
    }

    /// The tree that the proposer `part` was given, if any; the children of a fixed one are the most probable tokens.
    ///
    /// # Errors
    /// If two are given, or what is given is none.
    pub fn of_tree(part: &str, tree: Option<TreeShape>, choices: Option<&[Vec<usize>]>) -> Result<Option<Self>> {
        match (tree, choices) {
            (None, None) => Ok(None),
            (Some(_), Some(_)) => {
                Err(Error::options(format!("{part}: tree and choices are both given, expected one of them")))
            }
            (Some(shape), None) if shape.nodes == 0 || shape.depth == 0 || shape.branch == 0 => {
                Err(Error::options(format!("{part}: tree is {shape:?}, expected nodes, depth and branch above 0")))
            }
            (Some(shape), None) => Ok(Some(Self::Grown(shape))),
            (None, Some(paths)) => {
                let tree =
                    StaticTree::new(paths).map_err(|error| Error::options(format!("{part}: {}", error.message)))?;
                Ok(Some(Self::Fixed { tree: Arc::new(tree), sampling: DraftSampling::Deterministic }))
            }
        }
    }

    /// Most tokens between the anchor and the end of a draft.
    pub fn depth(&self) -> usize {
        match self {
            Self::Chain { len, .. } => *len,
            Self::Grown(shape) => shape.depth,
            Self::Fixed { tree, .. } => tree.depth(),
        }
    }

    /// Scratch rows of one draft in the lane of a network that runs it token by token: the anchor's, and one for every
    /// node that has something behind it.
    pub fn scratch_rows(&self) -> usize {
        match self {
            Self::Chain { len, .. } => *len,
            Self::Grown(shape) => 1 + shape.branch * (shape.depth - 1),
            Self::Fixed { tree, .. } => 1 + tree.inner_nodes(),
        }
    }

    /// A draft of this shape, of at most `remaining` tokens.
    pub fn growth(&self, remaining: usize) -> Growth {
        match self {
            Self::Chain { len, sampling } => Growth::chain(*sampling, (*len).min(remaining)),
            Self::Grown(shape) => {
                Growth::grown(TreeGrower::new(TreeShape { nodes: shape.nodes.min(remaining), ..*shape }))
            }
            Self::Fixed { tree, sampling } => Growth::fixed(Arc::clone(tree), *sampling),
        }
    }

    /// What a proposer of such drafts needs.
    pub fn needs(&self, lanes: Vec<LaneNeed>) -> Needs {
        let (max_draft, tree, draws) = match self {
            Self::Chain { len, sampling } => (*len, false, *sampling == DraftSampling::Drawn),
            Self::Grown(shape) => (shape.nodes, true, false),
            Self::Fixed { tree, sampling } => (tree.len(), tree.branches(), *sampling == DraftSampling::Drawn),
        };
        Needs { max_draft, tree, draws, lanes, ..Needs::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_shape_says_what_it_needs() {
        let chain = DraftShape::chain("part", 3, DraftSampling::Drawn).unwrap();
        let grown = DraftShape::of_tree("part", Some(TreeShape { nodes: 9, depth: 4, branch: 3 }), None);
        let paths = [vec![0], vec![2], vec![0, 0], vec![0, 0, 1]];
        let fixed = DraftShape::of_tree("part", None, Some(&paths));
        let of = |shape: &DraftShape| {
            let Needs { max_draft, tree, draws, .. } = shape.needs(Vec::new());
            (shape.depth(), shape.scratch_rows(), max_draft, tree, draws)
        };
        assert_eq!(of(&chain), (3, 3, 3, false, true));
        assert_eq!(of(&grown.unwrap().unwrap()), (4, 10, 9, true, false));
        assert_eq!(of(&fixed.unwrap().unwrap()), (3, 3, 4, true, false));
    }

    #[test]
    fn what_is_no_shape_is_refused_with_the_part_s_name() {
        let refusal = |made: Result<Option<DraftShape>>| made.err().map(|error| error.message).unwrap_or_default();
        let shape = TreeShape { nodes: 9, depth: 0, branch: 3 };
        let zero = refusal(DraftShape::of_tree("part", Some(shape), None));
        assert!(zero.starts_with("part: tree") && zero.contains("above 0"), "{zero}");
        let both = refusal(DraftShape::of_tree("part", Some(shape), Some(&[vec![0]])));
        assert!(both.contains("one of them"), "{both}");
        let orphan = refusal(DraftShape::of_tree("part", None, Some(&[vec![0, 1]])));
        assert!(orphan.starts_with("part: choices"), "{orphan}");
        assert!(DraftShape::chain("part", 0, DraftSampling::Drawn).is_err());
    }
}
