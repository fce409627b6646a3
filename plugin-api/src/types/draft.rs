//! The words of draft trees: a node, its parent, how a parent's children were made.

use abi_stable::StableAbi;

/// The index of a node in its draft, in topological order; the anchor is not a node.
pub type NodeId = u32;

/// The parent of a first-level node, where parents cross as plain numbers.
pub const NO_PARENT: NodeId = u32::MAX;

/// How the children of one parent came about, which decides how they must be verified.
#[repr(u8)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChildMode {
    /// Pushed: draft_prob is one-hot at each child and never materialised.
    Deterministic = 0,
    /// Drawn independently from draft_prob.
    WithReplacement = 1,
    /// Drawn one after the other, each from draft_prob renormalised without the earlier ones.
    WithoutReplacement = 2,
}
