//! What the verbs of one step hand to each other: one [`Entry`] per sequence that runs, and flat buffers, all reused.

use std::ops::Range;
use std::time::{Duration, Instant};

use foretoken_kernels::AlignedFloats;
use foretoken_plugin_api::{
    CommitSequence, ForwardSequence, LogitRows, NodeId, ProposeSequence, QueueSequence, SeqId, SequenceReport, Token,
    VerifySequence,
};

/// One sequence's part of a step.
#[derive(Debug, Clone)]
pub struct Entry {
    /// Its place in the queue.
    pub index: usize,
    /// Rows of its own tokens in the pass.
    pub rows: usize,
    /// Whether the last of them is the anchor.
    pub decodes: bool,
    /// Its tree in the draft store.
    pub tree: usize,
    /// The proposer that drafted it.
    pub proposer: Option<usize>,
    /// Most nodes the scheduler and the request allow.
    pub budget: usize,
    /// Where its rows are in the flat row buffers.
    pub row_range: Range<usize>,
    /// Its first row of logits.
    pub first_logit: usize,
    /// Its place among the verdicts, if it decodes.
    pub verdict: Option<usize>,
    /// How many slots it had before the step.
    pub base_len: usize,
    /// Kept nodes and next token, once verified.
    pub kept: Range<usize>,
    /// The token after the kept path.
    pub next_token: Option<Token>,
}

/// Buffers of a step.
#[derive(Default)]
pub struct StepBuffers {
    /// The sequences that run.
    pub entries: Vec<Entry>,
    /// Whether the scheduler preempted something (so the step was of use without rows).
    pub preempted: bool,
    pub(super) queue: Vec<QueueSequence>,
    pub(super) plan: super::schedule::PlanBuffer,
    pub(super) propose: Vec<ProposeSequence<'static>>,
    pub(super) propose_trees: Vec<usize>,
    pub(super) propose_entries: Vec<usize>,
    pub(super) reserved: Vec<SeqId>,
    pub(super) row_tokens: Vec<Token>,
    pub(super) row_parents: Vec<NodeId>,
    pub(super) row_logits: Vec<LogitRows>,
    pub(super) forward: Vec<ForwardSequence<'static>>,
    pub(super) logits: AlignedFloats,
    pub(super) logit_rows: usize,
    pub(super) path: Vec<Token>,
    pub(super) penalties: foretoken_kernels::ops::PenaltyScratch,
    pub(super) verify: Vec<VerifySequence<'static>>,
    pub(super) next_tokens: Vec<Token>,
    pub(super) keep_lens: Vec<u32>,
    pub(super) keep: Vec<NodeId>,
    pub(super) kept: Vec<NodeId>,
    pub(super) keep_rows: Vec<u32>,
    pub(super) keep_tokens: Vec<Token>,
    pub(super) commits: Vec<CommitSequence<'static>>,
    pub(super) reports: Vec<SequenceReport>,
    pub(super) times: Times,
}

/// When the step began and what its parts took.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub(super) start: Instant,
    pub(super) draft: Duration,
    pub(super) forward: Duration,
    pub(super) verify: Duration,
}

impl Default for Times {
    fn default() -> Self {
        let zero = Duration::ZERO;
        Self { start: Instant::now(), draft: zero, forward: zero, verify: zero }
    }
}

impl StepBuffers {
    /// Forgets the last step.
    pub fn begin(&mut self, start: Instant) {
        let zero = Duration::ZERO;
        self.entries.clear();
        self.preempted = false;
        self.times = Times { start, draft: zero, forward: zero, verify: zero };
    }
}
