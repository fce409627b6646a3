//! `out[r, o] = dot(x[r, :], w[o, :]) + bias[o]`, with the weights read once for all rows.
//!
//! Speculation pays only if verifying n rows costs about as much as one, so this op is built around streaming the
//! weights: a task is a block of weight rows that stays in the second-level cache, inputs pass over it in chunks, and
//! a register tile shares each loaded vector. Inputs are packed once ([`PackedRows`]) and serve several weights in
//! one parallel region (q, k and v; gate and up). Outputs may be added to what is there, the residual stream.
//!
//! Batch invariance: an output element is one 16-lane sum over ascending k and one fixed horizontal sum (`rows`), one sum
//! over ascending k (`columns`), over ascending steps of a matrix instruction (`tiles`), or over ascending blocks of k
//! (`panels` and `tiles`, for quantised weights), whatever tile it falls in. A split
//! over k would balance better for small weights, and is what this rules out.

mod cpu;
mod pack;
pub mod reference;

pub use pack::PackedRows;

use crate::blocks::Linear;
use crate::exec::Exec;
use crate::profile::Op;
use crate::quant::{BAND_ROWS, PANEL};
use crate::shared::SharedMut;
use crate::weight::{Arrangement, COLUMN};
use cpu::WeightBlock;
use std::ops::Range;

/// Bytes of weights that one task walks over; they must stay cached while the chunks of inputs pass.
const BLOCK_BYTES: usize = 128 * 1024;
/// The same of long walks, since memory is slow to follow each new start.
const LONG_BLOCK_BYTES: usize = 1024 * 1024;
/// Tasks of a thread at least, so that threads of unequal speed end together.
const TASKS_PER_THREAD: usize = 8;
/// Weight rows of a task at least, and at most where inputs are many: both multiples of a panel and of every tile's height.
const BLOCK_ROWS: Range<usize> = 16..64;
/// Weights that one region may serve.
const MAX_JOBS: usize = 8;

/// One weight and where its output goes.
pub struct LinearJob<'a> {
    /// The weight, `[out features, in features]`, and its bias.
    pub linear: &'a Linear,
    /// Output, `[rows, out features]`.
    pub out: &'a mut [f32],
    /// Whether it is added to what `out` holds.
    pub adds: bool,
}

/// Runs all `jobs` on the same inputs, in one parallel region.
///
/// Panics if a job's in features, dtype or output length do not match `x`, or if there are more than 8 jobs.
pub fn linear(exec: &Exec, x: &PackedRows, jobs: &mut [LinearJob<'_>]) {
    let _timer = exec.time(Op::Linear);
    assert!(jobs.len() <= MAX_JOBS, "at most {MAX_JOBS} jobs share a region, got {}", jobs.len());
    assert_eq!(x.simd(), exec.simd(), "inputs must be packed for the SIMD level they run at");
    let mut parts: [Option<Part<'_>>; MAX_JOBS] = [const { None }; MAX_JOBS];
    let mut tasks = 0;
    let bytes: usize = jobs.iter().map(|job| job.linear.weight().byte_len()).sum();
    let fair = bytes / (TASKS_PER_THREAD * exec.threads());
    let most =
        if cpu::walks_are_long(x) { (fair.min(LONG_BLOCK_BYTES), usize::MAX) } else { (BLOCK_BYTES, BLOCK_ROWS.end) };
    for (part, job) in parts.iter_mut().zip(jobs) {
        let made = Part::new(x, job, tasks, most);
        tasks += made.tasks();
        *part = Some(made);
    }
    if x.rows() == 0 {
        return;
    }
    exec.run_in_stretches(tasks, &|task, begins| {
        let part = parts.iter().flatten().rfind(|part| part.first_task <= task);
        let part = part.expect("a part starts at task 0");
        part.block(x, task, begins).run(exec.simd());
    });
}

/// A job as the tasks see it.
struct Part<'a> {
    linear: &'a Linear,
    out: SharedMut<'a, f32>,
    adds: bool,
    first_task: usize,
    block_rows: usize,
}

impl<'a> Part<'a> {
    /// `most` is what a task may walk over: bytes, and weight rows.
    fn new(x: &PackedRows, job: &'a mut LinearJob<'_>, first_task: usize, most: (usize, usize)) -> Self {
        let weight = job.linear.weight();
        assert_eq!(weight.cols(), x.cols(), "in features of the weight and of the packed rows");
        let stored = (weight.dtype(), weight.folds(), pack::arrangement_for(weight, x.simd()));
        assert_eq!(
            stored,
            (x.dtype(), x.folds(), x.arrangement()),
            "form of the weight, and of what rows were packed for"
        );
        assert_eq!(job.out.len(), x.rows() * weight.rows(), "out must be [rows, out features]");
        let row_bytes = (weight.byte_len() / weight.rows().max(1)).max(1);
        let (most_bytes, most_rows) = most;
        let fitting = (most_bytes / row_bytes).clamp(BLOCK_ROWS.start, most_rows);
        // Whole bands, or whole tiles, where that costs the balance little: matrix instructions go over two or four panels
        // at once, and a band lies in the order of a walk. Three bands a thread are enough.
        let block_rows = if weight.dtype().is_quantised() && fitting >= BAND_ROWS * 3 / TASKS_PER_THREAD {
            (fitting / BAND_ROWS).max(1) * BAND_ROWS
        } else {
            let least = if weight.arrangement() == Arrangement::Columns { COLUMN } else { 2 * PANEL };
            fitting.next_multiple_of(if fitting >= BLOCK_ROWS.end / 2 { BLOCK_ROWS.end } else { least })
        };
        Self { linear: job.linear, out: SharedMut::new(job.out), adds: job.adds, first_task, block_rows }
    }

    fn tasks(&self) -> usize {
        self.linear.weight().rows().div_ceil(self.block_rows)
    }

    fn block<'b>(&'b self, x: &'b PackedRows, task: usize, begins: bool) -> WeightBlock<'b> {
        let first = (task - self.first_task) * self.block_rows;
        let rows = first..(first + self.block_rows).min(self.linear.weight().rows());
        let begins = begins || task == self.first_task;
        WeightBlock { linear: self.linear, rows, x, out: &self.out, adds: self.adds, begins }
    }
}
