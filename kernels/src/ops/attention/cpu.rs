//! A block of rows of one sequence under one KV head, tile by tile with an online softmax.
//!
//! A tile's keys and values are gathered and widened into scratch on the stack, once for all rows that share them; keys
//! are laid with their 32 tokens in the lanes, so that scores need no horizontal sum and one loaded vector serves
//! several queries. The order within a query is fixed: a score is one sum over ascending dimensions, a tile's weights
//! are summed in lanes, values are added by ascending index. None of it looks at the other rows of the block.

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

/// What the softmaxes of the block's queries have seen so far.
struct Queries<'a> {
    /// `[queries, lines]`.
    q: &'a [Line],
    /// Greatest score, and the sum of exp(score - greatest).
    greatest: [f32; MAX_GROUP],
    total: [f32; MAX_GROUP],
    /// Sum of exp(score - greatest) * value, `[queries, lines]`.
    sums: &'a mut [Line],
    /// Lines of a head.
    lines: usize,
    head_dim: usize,
    scale: f32,
}

/// A gathered tile.
struct Tile<'a> {
    /// `[head_dim, 2]`: dimension d of 32 tokens.
    keys: &'a mut [Line],
    /// `[32, lines]`.
    values: &'a mut [Line],
    /// `[16, lines]`: keys before they are laid across.
    staged: &'a mut [Line],
}

impl Kernel for AttendBlock<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let (group, lines) = (self.shape.group(), self.shape.head_dim.div_ceil(LANES));
        let queries = self.rows.len() * group;
        let (mut keys, mut values) = (Scratch::<{ TILE * MAX_LINES }>::new(), Scratch::<{ TILE * MAX_LINES }>::new());
        let mut staged = Scratch::<{ LANES * MAX_LINES }>::new();
        let (mut q, mut sums) =
            (Scratch::<{ MAX_GROUP * MAX_LINES }>::new(), Scratch::<{ MAX_GROUP * MAX_LINES }>::new());
        let (keys, values) = (keys.zeroed(TILE * lines), values.zeroed(TILE * lines));
        let mut tile = Tile { keys, values, staged: staged.zeroed(LANES * lines) };
        let q = q.zeroed(queries * lines);
        for query in 0..queries {
            let head = self.head(query);
            fill(&mut q[query * lines..][..lines], &self.q[head]);
        }
        let (greatest, total) = ([f32::NEG_INFINITY; MAX_GROUP], [0.0; MAX_GROUP]);
        let (sums, head_dim, scale) = (sums.zeroed(queries * lines), self.shape.head_dim, self.shape.scale);
        let mut seen = Queries { q, greatest, total, sums, lines, head_dim, scale };
        let attended = || self.rows.clone().map(|row| self.attended(row));
        let first = attended().map(|attended| attended.start).min().unwrap_or(0);
        let longest = attended().map(|attended| attended.end).max().unwrap_or(0);
        for first in (first / TILE * TILE..longest).step_by(TILE) {
            self.attend_tile::<S>(first, longest, &mut tile, &mut seen);
        }
        for query in 0..queries {
            let sums = &seen.sums[query * lines..][..lines];
            // SAFETY: this task alone has these rows and this KV head, and each of its queries its own range.
            let out = unsafe { self.out.range(self.head(query)) };
            for (out, sum) in out.iter_mut().zip(sums.iter().flat_map(|line| line.0)) {
                *out = sum / seen.total[query];
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

    /// The part of its list that a row attends to: all, or the last of it under a sliding window.
    #[inline(always)]
    fn attended(&self, row: usize) -> Range<usize> {
        let len = self.seq.attended_len(row);
        let window = self.shape.window.unwrap_or(len);
        len.saturating_sub(window)..len
    }

    /// All rows with the tile at `first`; `longest` is where the block's last list ends.
    #[inline(always)]
    fn attend_tile<S: Simd>(&self, first: usize, longest: usize, tile: &mut Tile<'_>, seen: &mut Queries<'_>) {
        let group = self.shape.group();
        let shared = self.sharer(first);
        if let Some(sharer) = shared {
            self.gather::<S>(sharer, first..longest.min(first + TILE), tile);
            self.prefetch::<S>(sharer, first + TILE..self.seq.attended_len(sharer).min(first + 2 * TILE));
        }
        let part = |row: usize| {
            let attended = self.attended(row);
            attended.start.saturating_sub(first).min(TILE)..attended.end.saturating_sub(first).min(TILE)
        };
        let mut row = self.rows.start;
        while row < self.rows.end {
            let tokens = part(row);
            // Rows that attend to the same part of a shared tile go together.
            let mut end = row + 1;
            while shared.is_some() && end < self.rows.end && part(end) == tokens {
                end += 1;
            }
            if !tokens.is_empty() {
                if shared.is_none() {
                    self.gather::<S>(row, first..first + tokens.end, tile);
                }
                let queries = (row - self.rows.start) * group..(end - self.rows.start) * group;
                seen.attend::<S>(queries, tokens, tile);
            }
            row = end;
        }
    }

    /// A row whose list all rows of the block agree with in the tile at `first`, as far as theirs goes.
    #[inline(always)]
    fn sharer(&self, first: usize) -> Option<usize> {
        let in_context = first + TILE <= self.seq.context.len();
        (self.seq.tree.is_none() || in_context).then_some(self.rows.end - 1)
    }

    /// This KV head's part of a key or value.
    #[inline(always)]
    fn dims(&self) -> Range<usize> {
        self.kv_head * self.shape.head_dim..(self.kv_head + 1) * self.shape.head_dim
    }

    /// Widens the keys and values of a part of `row`'s list.
    #[inline(always)]
    fn gather<S: Simd>(&self, row: usize, part: Range<usize>, tile: &mut Tile<'_>) {
        let head_dim = self.shape.head_dim;
        let lines = head_dim.div_ceil(LANES);
        for (half, start) in part.clone().step_by(LANES).enumerate() {
            for (i, index) in (start..part.end.min(start + LANES)).enumerate() {
                let slot = self.seq.attended_slot(row, index);
                let key = &mut floats(&mut tile.staged[i * lines..(i + 1) * lines])[..head_dim];
                self.kv.load::<S>(false, slot, self.dims(), key);
                let at = (half * LANES + i) * lines;
                self.kv.load::<S>(true, slot, self.dims(), &mut floats(&mut tile.values[at..at + lines])[..head_dim]);
            }
            for line in 0..lines {
                let (mut across, mut down) = ([[0.0; LANES]; LANES], [[0.0; LANES]; LANES]);
                for (i, row) in across.iter_mut().enumerate() {
                    *row = tile.staged[i * lines + line].0;
                }
                S::transpose(&across, &mut down);
                for (d, lanes) in down.iter().enumerate().take(head_dim - (line * LANES).min(head_dim)) {
                    tile.keys[2 * (line * LANES + d) + half].0 = *lanes;
                }
            }
        }
    }

    /// Asks for the keys and values of a part of `row`'s list.
    #[inline(always)]
    fn prefetch<S: Simd>(&self, row: usize, part: Range<usize>) {
        for index in part {
            self.kv.prefetch::<S>(self.seq.attended_slot(row, index), self.dims());
        }
    }
}

impl Queries<'_> {
    /// Takes in tokens `tokens` of a tile, for queries `queries`.
    #[inline(always)]
    fn attend<S: Simd>(&mut self, queries: Range<usize>, tokens: Range<usize>, tile: &Tile<'_>) {
        let mut at = queries.start;
        while at < queries.end {
            let left = queries.end - at;
            at += match left.div_ceil(left.div_ceil(S::QUERIES)) {
                1 => self.several::<S, 1>(at, tokens.clone(), tile),
                2 => self.several::<S, 2>(at, tokens.clone(), tile),
                3 => self.several::<S, 3>(at, tokens.clone(), tile),
                4 => self.several::<S, 4>(at, tokens.clone(), tile),
                5 => self.several::<S, 5>(at, tokens.clone(), tile),
                6 => self.several::<S, 6>(at, tokens.clone(), tile),
                7 => self.several::<S, 7>(at, tokens.clone(), tile),
                _ => self.several::<S, 8>(at, tokens.clone(), tile),
            };
        }
    }

    /// The same for N queries from `at` on. Returns N.
    #[inline(always)]
    fn several<S: Simd, const N: usize>(&mut self, at: usize, tokens: Range<usize>, tile: &Tile<'_>) -> usize {
        // Larger groups than a level has registers for would only be dead code.
        if N > S::QUERIES {
            return N;
        }
        let scores = self.scores::<S, N>(at, tile);
        let (mut weights, mut faded) = ([[Line([0.0; LANES]); 2]; N], [S::splat(0.0); N]);
        for i in 0..N {
            faded[i] = self.weigh::<S>(at + i, scores[i], &tokens, &mut weights[i]);
        }
        let mut line = 0;
        while line + 2 <= self.lines {
            self.add_values::<S, N, 2>(at, line, &faded, &weights, (tokens.clone(), &*tile.values));
            line += 2;
        }
        if line < self.lines {
            self.add_values::<S, N, 1>(at, line, &faded, &weights, (tokens, &*tile.values));
        }
        N
    }

    /// Scores of N queries with the 32 keys of a tile.
    #[inline(always)]
    fn scores<S: Simd, const N: usize>(&self, at: usize, tile: &Tile<'_>) -> [[S::F; 2]; N] {
        let keys = tile.keys.as_chunks::<2>().0;
        let q = floats_of(&self.q[at * self.lines..(at + N) * self.lines]);
        let stride = self.lines * LANES;
        let mut sums = [[S::splat(0.0); 2]; N];
        for (d, [low, high]) in keys[..self.head_dim].iter().enumerate() {
            let (low, high) = (S::load(&low.0), S::load(&high.0));
            for i in 0..N {
                let q = S::splat(q[i * stride + d]);
                sums[i][0] = S::fma(q, low, sums[i][0]);
                sums[i][1] = S::fma(q, high, sums[i][1]);
            }
        }
        let scale = S::splat(self.scale);
        for sums in &mut sums {
            *sums = [S::mul(sums[0], scale), S::mul(sums[1], scale)];
        }
        sums
    }

    /// One query's weights of a tile, of which only `tokens` are attended to; returns what its sums so far fade by.
    #[inline(always)]
    fn weigh<S: Simd>(&mut self, query: usize, scores: [S::F; 2], tokens: &Range<usize>, out: &mut [Line; 2]) -> S::F {
        let [mut low, mut high] = scores;
        if *tokens != (0..TILE) {
            S::store(low, &mut out[0].0);
            S::store(high, &mut out[1].0);
            for (token, score) in floats(out).iter_mut().enumerate() {
                if !tokens.contains(&token) {
                    *score = f32::NEG_INFINITY;
                }
            }
            (low, high) = (S::load(&out[0].0), S::load(&out[1].0));
        }
        let greatest = S::greatest(S::max(low, high)).max(self.greatest[query]);
        let shift = S::splat(greatest);
        let (low, high) = (exp::<S>(S::sub(low, shift)), exp::<S>(S::sub(high, shift)));
        let faded = exp::<S>(S::sub(S::splat(self.greatest[query]), shift));
        S::store(low, &mut out[0].0);
        S::store(high, &mut out[1].0);
        let mut faded_lanes = [0.0; LANES];
        S::store(faded, &mut faded_lanes);
        self.total[query] = self.total[query] * faded_lanes[0] + S::sum(S::add(low, high));
        self.greatest[query] = greatest;
        faded
    }

    /// `sums = sums * faded + sum of weight * value` for N queries and B lines from `line` on, by ascending token.
    #[inline(always)]
    fn add_values<S: Simd, const N: usize, const B: usize>(
        &mut self,
        at: usize,
        line: usize,
        faded: &[S::F; N],
        weights: &[[Line; 2]; N],
        (tokens, values): (Range<usize>, &[Line]),
    ) {
        let weights = weights.each_ref().map(|weights| floats_of(weights));
        let mut sums = [[S::splat(0.0); B]; N];
        for i in 0..N {
            for b in 0..B {
                sums[i][b] = S::mul(S::load(&self.sums[(at + i) * self.lines + line + b].0), faded[i]);
            }
        }
        for token in tokens {
            let value: &[Line; B] = values[token * self.lines + line..].first_chunk().expect("lines of a value");
            let mut loaded = [S::splat(0.0); B];
            for b in 0..B {
                loaded[b] = S::load(&value[b].0);
            }
            for i in 0..N {
                let weight = S::splat(weights[i][token]);
                for b in 0..B {
                    sums[i][b] = S::fma(weight, loaded[b], sums[i][b]);
                }
            }
        }
        for i in 0..N {
            for b in 0..B {
                S::store(sums[i][b], &mut self.sums[(at + i) * self.lines + line + b].0);
            }
        }
    }
}

/// The lanes of lines in a row.
#[inline(always)]
fn floats(lines: &mut [Line]) -> &mut [f32] {
    // SAFETY: a `Line` is 16 f32 without padding.
    unsafe { std::slice::from_raw_parts_mut(lines.as_mut_ptr().cast(), lines.len() * LANES) }
}

/// The same, to read.
#[inline(always)]
fn floats_of(lines: &[Line]) -> &[f32] {
    // SAFETY: a `Line` is 16 f32 without padding.
    unsafe { std::slice::from_raw_parts(lines.as_ptr().cast(), lines.len() * LANES) }
}

/// Copies `values` to the start of `lines`.
#[inline(always)]
fn fill(lines: &mut [Line], values: &[f32]) {
    floats(lines)[..values.len()].copy_from_slice(values);
}
