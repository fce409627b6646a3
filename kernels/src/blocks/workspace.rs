//! Every buffer that a pass through layers needs, grown to the largest pass seen and then reused.
//!
//! Heads hold one of their own. The buffers are of the size of the current pass; capacity stays, so a
//! steady state allocates nothing (asserted with a counting allocator in the tests).

use crate::floats::AlignedFloats;
use crate::ops::PackedRows;

/// Buffers of a decoder layer's pass.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Packed inputs of the linear at hand.
    pub packed: PackedRows,
    /// Normed rows, `[rows, width]`.
    pub normed: AlignedFloats,
    /// Queries and then what they attended to, `[rows, heads * head_dim]`.
    pub q: AlignedFloats,
    /// Keys, `[rows, kv_dim]`.
    pub k: AlignedFloats,
    /// Values, `[rows, kv_dim]`.
    pub v: AlignedFloats,
    /// Gates of the MLP and then its gated rows, of as many rows as go through it together, `[rows, mlp_width]`.
    pub gate: AlignedFloats,
    /// The MLP's other inner rows, `[rows, mlp_width]`.
    pub up: AlignedFloats,
}

impl Workspace {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }
}
