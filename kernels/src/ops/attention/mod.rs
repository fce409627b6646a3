//! Grouped-query attention over slot lists, for prefill, decode and draft trees alike.
//!
//! A row attends to an ordered list: the context's slots by position, then the new rows on its own path, itself last.
//! A chain is the tree whose paths are all the rows so far. The softmax is online in f32, in tiles of 32 *by index in
//! that list*, and masked lanes add exact zero; so a row's result depends on its list alone, not on whether the list
//! came from a cache, a chunk or a tree. A sliding window masks the head of the list. Rows of one task share the widened
//! keys and values of the tiles they have in common, which keeps long prefills from reading the cache once per row.

mod cpu;
pub mod reference;

use crate::blocks::KvLayer;
use crate::error::KernelError;
use crate::exec::Exec;
use crate::profile::Op;
use crate::shared::SharedMut;
use std::ops::Range;

/// Greatest head_dim, and most query heads per KV head, that fit the kernel's scratch.
const MAX_HEAD_DIM: usize = 256;
const MAX_GROUP: usize = 64;
/// Rows of a task at most: beyond this, sharing tiles saves little.
const MAX_BLOCK_ROWS: usize = 16;

/// Heads of an attention, checked.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct AttentionShape {
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scale: f32,
    window: Option<usize>,
}

impl AttentionShape {
    /// `heads` query heads over `kv_heads` key heads; scores are scaled by 1 / sqrt(head_dim).
    pub fn new(heads: usize, kv_heads: usize, head_dim: usize) -> Result<Self, KernelError> {
        let error = |what, rule, got| Err(KernelError::HeadLayout { what, rule, got });
        if kv_heads == 0 || heads == 0 || !heads.is_multiple_of(kv_heads) {
            return error("heads", "a multiple of kv_heads", heads);
        }
        if heads / kv_heads > MAX_GROUP {
            return error("heads per KV head", "at most 64", heads / kv_heads);
        }
        if head_dim == 0 || head_dim > MAX_HEAD_DIM || !head_dim.is_multiple_of(2) {
            return error("head_dim", "even and at most 256", head_dim);
        }
        Ok(Self { heads, kv_heads, head_dim, scale: 1.0 / (head_dim as f32).sqrt(), window: None })
    }

    /// The same with another scale of the scores.
    pub fn with_scale(self, scale: f32) -> Self {
        Self { scale, ..self }
    }

    /// The same with a sliding window: a row attends to itself and the `window - 1` tokens before it, at most. `None`
    /// is no window. Panics if it is 0.
    pub fn with_window(self, window: Option<usize>) -> Self {
        assert_ne!(window, Some(0), "a row attends to itself at least");
        Self { window, ..self }
    }

    /// The sliding window.
    pub fn window(&self) -> Option<usize> {
        self.window
    }

    /// Query heads.
    pub fn heads(&self) -> usize {
        self.heads
    }

    /// Key heads.
    pub fn kv_heads(&self) -> usize {
        self.kv_heads
    }

    /// Dimensions of a head.
    pub fn head_dim(&self) -> usize {
        self.head_dim
    }

    /// kv_heads * head_dim.
    pub fn kv_dim(&self) -> usize {
        self.kv_heads * self.head_dim
    }

    /// heads * head_dim.
    pub fn q_dim(&self) -> usize {
        self.heads * self.head_dim
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

/// For each new row of a sequence, the new rows it attends to.
#[derive(Debug, Clone, Copy)]
pub struct TreePaths<'a> {
    /// `[rows + 1]`: the path of row r is `rows[offsets[r] .. offsets[r + 1]]`.
    pub offsets: &'a [u32],
    /// Row indices within the sequence, in the order in which they are attended to; each path ends in its own row. A
    /// tree's ascend; in a block whose rows all see each other they do not.
    pub rows: &'a [u32],
}

/// One sequence's part of a pass.
#[derive(Debug, Clone)]
pub struct AttentionSeq<'a> {
    /// Slots of the tokens already stored, in position order.
    pub context: &'a [u32],
    /// The sequence's rows of the batch.
    pub rows: Range<usize>,
    /// Slot of each of those rows.
    pub new_slots: &'a [u32],
    /// Paths of a draft tree; `None` for a chain, whose row r attends to rows 0 to r.
    pub tree: Option<TreePaths<'a>>,
}

impl<'a> AttentionSeq<'a> {
    fn path(&self, row: usize) -> Option<&'a [u32]> {
        let tree = self.tree?;
        Some(&tree.rows[tree.offsets[row] as usize..tree.offsets[row + 1] as usize])
    }

    /// Length of the list that `row` (within the sequence) attends to.
    pub fn attended_len(&self, row: usize) -> usize {
        self.context.len() + self.path(row).map_or(row + 1, <[u32]>::len)
    }

    /// Slot `index` of the list that `row` attends to.
    #[inline(always)]
    pub fn attended_slot(&self, row: usize, index: usize) -> u32 {
        match index.checked_sub(self.context.len()) {
            None => self.context[index],
            Some(new) => self.new_slots[self.path(row).map_or(new, |path| path[new] as usize)],
        }
    }

    fn check(&self, first_free_row: usize) {
        assert!(self.rows.start >= first_free_row, "rows of the sequences must ascend without overlap");
        assert!(self.rows.start <= self.rows.end, "rows must be a range");
        assert_eq!(self.new_slots.len(), self.rows.len(), "new_slots must have one slot per row");
        let Some(tree) = self.tree else { return };
        assert_eq!(tree.offsets.len(), self.rows.len() + 1, "tree offsets must be [rows + 1]");
        for row in 0..self.rows.len() {
            let last = self.path(row).and_then(|path| path.last().copied());
            assert_eq!(last, Some(row as u32), "the path of row {row} must end in the row itself");
        }
    }
}

/// Attention of every row of every sequence. Queries `q` are `[rows, heads * head_dim]`, and what they attended to takes their
/// place; the rows' own keys and values must already be stored. Rows of no sequence are left as they are.
pub fn attention(exec: &Exec, shape: &AttentionShape, q: &mut [f32], kv: KvLayer<'_>, seqs: &[AttentionSeq<'_>]) {
    let _timer = exec.time(Op::Attention);
    let heads = (kv.shape().heads, kv.shape().head_dim);
    assert_eq!(heads, (shape.kv_heads, shape.head_dim), "heads of the KV memory and KV heads of the attention");
    let mut end = 0;
    for seq in seqs {
        seq.check(end);
        end = seq.rows.end;
    }
    assert!(end * shape.q_dim() <= q.len(), "q must be [rows, heads * head_dim] for all rows of the sequences");
    let block_rows = block_rows(exec, shape, seqs);
    let blocks = |seq: &AttentionSeq<'_>| seq.rows.len().div_ceil(block_rows);
    let total: usize = seqs.iter().map(blocks).sum();
    let q = SharedMut::new(q);
    exec.run_in_stretches(total * shape.kv_heads, &|task, _| {
        // Long chains last rows first: they attend to the most, and what is left for others at the end should be short tasks.
        let (mut block, kv_head) = (total - 1 - task / shape.kv_heads, task % shape.kv_heads);
        for seq in seqs {
            if let Some(after) = block.checked_sub(blocks(seq)) {
                block = after;
                continue;
            }
            let rows = block * block_rows..seq.rows.len().min((block + 1) * block_rows);
            return cpu::AttendBlock { shape, q: &q, kv, seq, rows, kv_head }.run(exec.simd());
        }
    });
}

/// Rows of a task: many enough to share tiles, few enough that every thread has some tasks.
fn block_rows(exec: &Exec, shape: &AttentionShape, seqs: &[AttentionSeq<'_>]) -> usize {
    let rows: usize = seqs.iter().map(|seq| seq.rows.len()).sum();
    let fair = (rows * shape.kv_heads).div_ceil(exec.threads() * 2);
    fair.min(MAX_GROUP / shape.group()).clamp(1, MAX_BLOCK_ROWS)
}
