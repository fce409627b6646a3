//! Every buffer that a pass through layers needs, grown to the largest pass seen and then reused.
//!
//! Heads hold one of their own. The buffers are plain vectors of the size of the current pass; capacity stays, so a
//! steady state allocates nothing (asserted with a counting allocator in the tests).

use crate::ops::PackedRows;

/// Buffers of a decoder layer's pass.
#[derive(Debug, Default)]
pub struct Workspace {
    /// Packed inputs of the linear at hand.
    pub packed: PackedRows,
    /// Normed rows, `[rows, width]`.
    pub normed: Vec<f32>,
    /// Queries, `[rows, heads * head_dim]`.
    pub q: Vec<f32>,
    /// Keys, `[rows, kv_dim]`.
    pub k: Vec<f32>,
    /// Values, `[rows, kv_dim]`.
    pub v: Vec<f32>,
    /// Attention's output, `[rows, heads * head_dim]`.
    pub attended: Vec<f32>,
    /// What a half-layer adds to the residual stream, `[rows, width]`.
    pub delta: Vec<f32>,
    /// Gates of the MLP, `[rows, mlp_width]`; then its gated inner rows.
    pub gate: Vec<f32>,
    /// The MLP's other inner rows, `[rows, mlp_width]`.
    pub up: Vec<f32>,
    /// The gated rows, `[rows, mlp_width]`.
    pub gated: Vec<f32>,
}

impl Workspace {
    /// Empty buffers.
    pub fn new() -> Self {
        Self::default()
    }
}

/// `buffer` with `len` elements; old contents stay or are 0, and are meant to be overwritten.
pub(crate) fn sized(buffer: &mut Vec<f32>, len: usize) -> &mut [f32] {
    buffer.resize(len, 0.0);
    buffer
}
