//! A block of rows of one sequence under one KV head, tile by tile with an online softmax.
//!
//! A tile's keys and values are gathered and widened into scratch on the stack, once for all rows that share them.
//! The order within a query is fixed: a score is one 16-lane sum over head_dim, a tile's weights are summed in lanes,
//! values are added by ascending index. None of it looks at the other rows of the block.

use super::{AttentionSeq, AttentionShape, MAX_GROUP, MAX_HEAD_DIM};
use crate::blocks::KvLayer;
use crate::shared::SharedMut;
use crate::simd::{Kernel, LANES, Line, Simd, exp};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Attended tokens of a tile.
const TILE: usize = 2 * LANES;
const MAX_LINES: usize = MAX_HEAD_DIM / LANES;

pub(super) struct AttendBlock<'a> {
    pub shape: &'a AttentionShape,
    pub q: &'a [f32],
    pub kv: KvLayer<'a>,
    pub seq: &'a AttentionSeq<'a>,
    pub rows: Range<usize>,
    pub kv_head: usize,
    pub out: &'a SharedMut<'a, f32>,
}

/// Lines on the stack, of which only those in use are ever touched.
struct Scratch<const N: usize>([MaybeUninit<Line>; N]);

impl<const N: usize> Scratch<N> {
    #[inline(always)]
    fn new() -> Self {
        Self([MaybeUninit::uninit(); N])
    }

    /// The first `count` lines, zeroed.
    #[inline(always)]
    fn zeroed(&mut self, count: usize) -> &mut [Line] {
        let lines = &mut self.0[..count];
        for line in &mut *lines {
            line.write(Line([0.0; LANES]));
        }
        // SAFETY: each of these lines was just written.
        unsafe { &mut *(lines as *mut [MaybeUninit<Line>] as *mut [Line]) }
    }
}

/// What the softmax of one query has seen so far.
struct Query<'a> {
    q: &'a [Line],
    /// Greatest score, and the sum of exp(score - greatest).
    greatest: &'a mut f32,
    total: &'a mut f32,
    /// Sum of exp(score - greatest) * value.
    sums: &'a mut [Line],
}

impl Kernel for AttendBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (group, lines) = (self.shape.group(), self.shape.head_dim.div_ceil(LANES));
        let queries = self.rows.len() * group;
        let (mut keys, mut values) = (Scratch::<{ TILE * MAX_LINES }>::new(), Scratch::<{ TILE * MAX_LINES }>::new());
        let (mut q, mut sums) =
            (Scratch::<{ MAX_GROUP * MAX_LINES }>::new(), Scratch::<{ MAX_GROUP * MAX_LINES }>::new());
        let (keys, values) = (keys.zeroed(TILE * lines), values.zeroed(TILE * lines));
        let (q, sums) = (q.zeroed(queries * lines), sums.zeroed(queries * lines));
        let (mut greatest, mut total) = ([f32::NEG_INFINITY; MAX_GROUP], [0.0; MAX_GROUP]);
        for query in 0..queries {
            let head = self.head(query);
            fill(&mut q[query * lines..][..lines], &self.q[head]);
        }
        let longest = self.rows.clone().map(|row| self.seq.attended_len(row)).max().unwrap_or(0);
        for first in (0..longest).step_by(TILE) {
            let mut loaded = false;
            for (index, row) in self.rows.clone().enumerate() {
                let len = self.seq.attended_len(row).saturating_sub(first).min(TILE);
                if len == 0 {
                    continue;
                }
                match self.sharer(first) {
                    None => self.gather::<S>(row, first..first + len, keys, values),
                    Some(_) if loaded => {}
                    Some(sharer) => self.gather::<S>(sharer, first..longest.min(first + TILE), keys, values),
                }
                loaded = true;
                for query in index * group..(index + 1) * group {
                    let part = query * lines..(query + 1) * lines;
                    let (greatest, total) = (&mut greatest[query], &mut total[query]);
                    let query = Query { q: &q[part.clone()], greatest, total, sums: &mut sums[part] };
                    query.attend::<S>(self.shape.scale, &keys[..len * lines], &values[..len * lines]);
                }
            }
        }
        for query in 0..queries {
            let sums = &sums[query * lines..][..lines];
            // SAFETY: this task alone has these rows and this KV head, and each of its queries its own range.
            let out = unsafe { self.out.range(self.head(query)) };
            for (out, sum) in out.iter_mut().zip(sums.iter().flat_map(|line| line.0)) {
                *out = sum / total[query];
            }
        }
    }
}

impl AttendBlock<'_> {
    /// Where query `query` of the block lies in q and out.
    #[inline(always)]
    fn head(&self, query: usize) -> Range<usize> {
        let group = self.shape.group();
        let row = self.seq.rows.start + self.rows.start + query / group;
        let head = self.kv_head * group + query % group;
        let start = row * self.shape.q_dim() + head * self.shape.head_dim;
        start..start + self.shape.head_dim
    }

    /// A row whose list all rows of the block agree with in the tile at `first`, as far as theirs goes.
    #[inline(always)]
    fn sharer(&self, first: usize) -> Option<usize> {
        let in_context = first + TILE <= self.seq.context.len();
        (self.seq.tree.is_none() || in_context).then_some(self.rows.end - 1)
    }

    /// Widens the keys and values of a part of `row`'s list.
    #[inline(always)]
    fn gather<S: Simd>(&self, row: usize, part: Range<usize>, keys: &mut [Line], values: &mut [Line]) {
        let head_dim = self.shape.head_dim;
        let lines = head_dim.div_ceil(LANES);
        let dims = self.kv_head * head_dim..(self.kv_head + 1) * head_dim;
        for (i, index) in part.enumerate() {
            let slot = self.seq.attended_slot(row, index);
            for (is_value, to) in [(false, &mut *keys), (true, &mut *values)] {
                let to = &mut floats(&mut to[i * lines..(i + 1) * lines])[..head_dim];
                self.kv.load::<S>(is_value, slot, dims.clone(), to);
            }
        }
    }
}

impl Query<'_> {
    /// Takes in one tile of keys and values (`[len, lines]`).
    #[inline(always)]
    fn attend<S: Simd>(self, scale: f32, keys: &[Line], values: &[Line]) {
        let mut weights = [Line([f32::NEG_INFINITY; LANES]); TILE / LANES];
        for (score, key) in floats(&mut weights).iter_mut().zip(keys.chunks_exact(self.q.len())) {
            let mut sum = S::splat(0.0);
            for (q, key) in self.q.iter().zip(key) {
                sum = S::fma(S::load(&q.0), S::load(&key.0), sum);
            }
            *score = S::sum(sum) * scale;
        }
        let [low, high] = weights.each_ref().map(|line| S::load(&line.0));
        let greatest = S::greatest(S::max(low, high)).max(*self.greatest);
        let shift = S::splat(greatest);
        let (low, high) = (exp::<S>(S::sub(low, shift)), exp::<S>(S::sub(high, shift)));
        let faded = exp::<S>(S::sub(S::splat(*self.greatest), shift));
        S::store(low, &mut weights[0].0);
        S::store(high, &mut weights[1].0);
        let mut faded_lanes = [0.0; LANES];
        S::store(faded, &mut faded_lanes);
        *self.total = *self.total * faded_lanes[0] + S::sum(S::add(low, high));
        *self.greatest = greatest;
        let weights = floats(&mut weights);
        let (lines, mut at) = (self.sums.len(), 0);
        while at < lines {
            at += match lines - at {
                8.. => add_values::<S, 8>(self.sums, at, faded, weights, values),
                4.. => add_values::<S, 4>(self.sums, at, faded, weights, values),
                _ => add_values::<S, 1>(self.sums, at, faded, weights, values),
            };
        }
    }
}

/// `sums = sums * faded + sum of weight * value` for B lines from `at` on, by ascending index. Returns B.
#[inline(always)]
fn add_values<S: Simd, const B: usize>(
    sums: &mut [Line],
    at: usize,
    faded: S::F,
    weights: &[f32],
    values: &[Line],
) -> usize {
    let lines = sums.len();
    let mut registers = [S::splat(0.0); B];
    for (register, sum) in registers.iter_mut().zip(&sums[at..at + B]) {
        *register = S::mul(S::load(&sum.0), faded);
    }
    for (value, weight) in values.chunks_exact(lines).zip(weights) {
        let weight = S::splat(*weight);
        for (register, value) in registers.iter_mut().zip(&value[at..at + B]) {
            *register = S::fma(weight, S::load(&value.0), *register);
        }
    }
    for (register, sum) in registers.into_iter().zip(&mut sums[at..at + B]) {
        S::store(register, &mut sum.0);
    }
    B
}

/// The lanes of lines in a row.
#[inline(always)]
fn floats(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a `Line` is 16 f32 without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

/// Copies `values` to the start of `lines`.
#[inline(always)]
fn fill(lines: &mut [Line], values: &[f32]) {
    floats(lines)[..values.len()].copy_from_slice(values);
}
