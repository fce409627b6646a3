//! Keys and values of bf16 or q8_0 by matrix instructions (AMX): up to 16 queries at once.
//!
//! Keys are rows of the first operand as they are stored, so that scores come as `[tokens, queries]`; only their weights, a
//! few vectors, change places, and a lone query's do not need to. Words of the second operand are two tokens' bf16 (`pairs`), or
//! four tokens' integers (`quads`); values are interleaved as they are copied (`coming`).
//!
//! Scores are exponents of 2 relative to the greatest so far, rounded up: a greater one makes all sums fade by a power of
//! two, which is exact, and there are few. A score is one sum over ascending steps of 32 dimensions, a sum of weighted
//! values one over ascending tiles (the order within a step is the processor's, see `simd::amx`), whatever else is
//! multiplied at once.

mod coming;
mod lanes;
mod pairs;
mod quads;

use super::tile::TILE;
use super::words::{Pairs, Words};
use super::{AttendBlock, MAX_GROUP, MOST_LINES, Parts, Scratch};
use crate::blocks::KvDtype;
use crate::blocks::kv_format::{Bf16, Q8_0};
use crate::bytes::Plain;
use crate::simd::amx::Tiles;
use crate::simd::{Avx512, LANES, Line, SHIFT, Simd};
use coming::{Coming, Copied};
use lanes::{differ, exp2_for_bf16, greatest_by_query, rounded_up};
use pairs::InPairs;
use quads::InQuads;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// The lanes of the level, with the bf16 that a processor with tiles has.
type Lanes = Avx512<true>;
/// What asks for memory as Intel's processors do: the bf16 of `Lanes` stands for AMD's. Asked for into the first-level cache, a
/// row over 4,096 tokens took a fifth longer.
type Asking = Avx512<false>;

/// Most rows of an operand, and queries at once.
const ROWS: usize = 16;
/// Bytes of a line.
const LINE: usize = size_of::<Line>();
/// Dimensions of a step: numbers of a line of bf16, or a block of q8_0.
const STEP: usize = 2 * LANES;
/// Steps of the longest head.
const MOST: usize = MOST_LINES / 2;
/// Most groups of a block.
const GROUPS: usize = MAX_GROUP / ROWS;
/// Most queries of a row and KV head whose q8_0 is multiplied as integers, and not as bf16. That is copied in half the time and takes
/// twice as long for each query: on a Xeon 8,192 tokens take 0.75 of the time with one, 0.8 with 8, 0.9 with 16, and 1.3 times with
/// 64. A row must have the same bits whoever shares its pass, so it goes by the queries that all rows have.
const FEW: usize = 4;
/// What a query has seen before it attends to anything: less than any score, and yet finite.
const LEAST: f32 = -1e30;

/// What keys and values of a dtype are copied as, and how they are multiplied. L are the steps of a head, C the queries of a
/// group, of which every line has 16 / C tokens' in the order of `[tokens, queries]`.
trait Operands: Sized {
    /// What a stored key or value is a slice of.
    type Element: Plain;
    /// Tokens of a word of values, which are copied together: as far from each other as a tile has words.
    const TOKENS: usize;
    /// Words of a tile.
    const WORDS: usize = TILE / Self::TOKENS;
    /// Weights of a group, as operands, and what they are times.
    type Weights<const C: usize, const L: usize>;

    /// Lines of a group's queries of so many steps.
    fn query_lines(steps: usize) -> usize;
    /// Lines of a tile's keys and values of so many steps.
    fn copied_lines(steps: usize) -> usize;
    /// Rows and bytes of the tiles.
    fn shapes<const C: usize>() -> [(usize, usize); 8];
    /// No weights yet.
    fn weights<const C: usize, const L: usize>() -> Self::Weights<C, L>;
    /// Writes all lines of a block's queries, scaled so that scores are exponents of 2, a lane for each query.
    fn pack<const C: usize, const L: usize>(block: &AttendBlock<'_>, to: &mut [MaybeUninit<Line>]);
    /// Copies word `word` of a tile, the keys of its tokens and their values. These have `dims_and_value.0` dimensions, and get zeros
    /// behind the last; FULL if all of L steps are there. Meanwhile calls `ask` with each token of the word and step, for the key
    /// and for the value.
    ///
    /// # Safety
    /// There must be such keys, and values `dims_and_value.1` elements behind them, and `to` must have room for the tile; called
    /// only inside `attend_in_groups`.
    unsafe fn copy<const FULL: bool, const L: usize>(
        keys: &[*const Self::Element],
        dims_and_value: (usize, usize),
        word: usize,
        to: *mut Line,
        ask: impl FnMut(usize, usize, bool),
    );
    /// Scores of a group's queries with a tile's keys.
    fn score<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    );
    /// Turns the scores of a group into weights; `shift` is `SHIFT` less the greatest.
    fn weigh<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        shift: __m512,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    );
    /// Adds a tile's weighted values to the sums of a group.
    fn add_values<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    );
}

/// Computes a block with bf16 or q8_0 keys and values.
///
/// # Safety
/// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
pub(super) unsafe fn attend(block: AttendBlock<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        match block.kv.shape().dtype {
            KvDtype::Q8_0 if block.shape.group() <= FEW => attend_as::<InQuads>(&block),
            KvDtype::Q8_0 => attend_as::<InPairs<Q8_0>>(&block),
            _ => attend_as::<InPairs<Bf16>>(&block),
        }
    }
}

/// The same with operands D.
///
/// # Safety
/// As above.
unsafe fn attend_as<D: Operands>(block: &AttendBlock<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        match block.shape.head_dim {
            ..=64 => attend_steps::<D, 2>(block),
            65..=128 => attend_steps::<D, 4>(block),
            _ => attend_steps::<D, 8>(block),
        }
    }
}

/// The same with L steps for a key.
///
/// # Safety
/// As above.
unsafe fn attend_steps<D: Operands, const L: usize>(block: &AttendBlock<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        match block.queries() {
            1 => attend_in_groups::<D, 1, L>(block),
            2..=4 => attend_in_groups::<D, 4, L>(block),
            5..=8 => attend_in_groups::<D, 8, L>(block),
            _ => attend_in_groups::<D, ROWS, L>(block),
        }
    }
}

/// The same for groups of C queries, a power of two.
///
/// # Safety
/// As above.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx512vbmi,avx2,fma,f16c")]
unsafe fn attend_in_groups<D: Operands, const C: usize, const L: usize>(block: &AttendBlock<'_>) {
    let count = block.queries();
    let groups = count.div_ceil(C);
    let mut q = Scratch::<{ MAX_GROUP * MOST }>::new(groups * D::query_lines(L));
    let mut sums = Scratch::<{ MAX_GROUP * MOST_LINES }>::new(groups * C * 2 * L);
    let mut copies = [Copied::new(D::copied_lines(L)), Copied::new(D::copied_lines(L))];
    // SAFETY: the level is what the caller says.
    let tiles = unsafe { Tiles::new(D::shapes::<C>()) };
    let mut rows = [block.rows.len() - 1; MAX_GROUP];
    for (row, queries) in rows[..count].chunks_exact_mut(block.shape.group()).enumerate() {
        queries.fill(row);
    }
    D::pack::<C, L>(block, q.lines());
    let zero = Line([0.0; LANES]);
    let mut queries = Queries::<D, C, L> {
        tiles,
        rows,
        // SAFETY: `pack` wrote all of it.
        q: unsafe { q.written() },
        greatest: [Line([LEAST; LANES]); GROUPS],
        totals: [zero; GROUPS],
        sums: sums.zeroed(),
        scores: [[zero; C]; 2],
        weights: D::weights(),
    };
    let mut steps = block.steps();
    let (mut step, mut now) = (steps.next(), 0);
    let kv = block.kv.rows::<D::Element>(block.kv_head);
    Coming::<D, L>::new(block, kv, step.as_ref(), &mut copies[now]).copy_until(D::WORDS);
    while let Some(current) = step {
        step = steps.next();
        let [a, b] = &mut copies;
        let (tile, free) = if now == 0 { (a, b) } else { (b, a) };
        let mut coming = Coming::<D, L>::new(block, kv, step.as_ref(), free);
        let parts = block.parts(&current);
        for group in 0..groups {
            // SAFETY: all of it was copied.
            queries.take_in(group, unsafe { tile.written() }, parts.as_ref(), &mut coming);
        }
        coming.copy_until(D::WORDS);
        now = 1 - now;
    }
    for query in 0..count {
        // SAFETY: of one at a time.
        queries.finish(query, unsafe { block.query(query) });
    }
}

/// What the softmaxes of a block's queries have seen so far, in groups of C. Lane `i` of what belongs to a group is query
/// `i % C`'s.
struct Queries<'a, D: Operands, const C: usize, const L: usize> {
    tiles: Tiles,
    /// Rows of the queries; behind the last query, its row.
    rows: [usize; MAX_GROUP],
    /// The queries, as they were packed.
    q: &'a [Line],
    /// Greatest score, rounded up, by group.
    greatest: [Line; GROUPS],
    /// Sum of 2^(score - greatest), by group.
    totals: [Line; GROUPS],
    /// Sum of 2^(score - greatest) * value, `[groups, lines, 2, queries]`.
    sums: &'a mut [Line],
    /// Scores of the tokens of two operands with a group, `[tokens, queries]`.
    scores: [[Line; C]; 2],
    weights: D::Weights<C, L>,
}

impl<D: Operands, const C: usize, const L: usize> Queries<'_, D, C, L> {
    /// Takes in a tile for a group, while the next one comes; `parts` are those that the rows attend to, unless all do to
    /// all of it.
    #[inline(always)]
    fn take_in(&mut self, group: usize, tile: &[Line], parts: Option<&Parts>, coming: &mut Coming<'_, D, L>) {
        let rows = &self.rows[group * C..(group + 1) * C];
        if parts.is_some_and(|parts| rows.iter().all(|row| parts[*row].is_empty())) {
            return;
        }
        D::score(self, group, tile, coming);
        if let Some(parts) = parts {
            self.mask(group, parts);
        }
        let shift = self.fade(group);
        D::weigh(self, group, shift, tile, coming);
        D::add_values(self, group, tile, coming);
    }

    /// Scores with tokens that a query does not attend to become those of nothing.
    #[inline(always)]
    fn mask(&mut self, group: usize, parts: &Parts) {
        let (mut starts, mut lens, mut tokens) = ([0; LANES], [0; LANES], [0; LANES]);
        for lane in 0..LANES {
            let part = &parts[self.rows[group * C + lane % C]];
            (starts[lane], lens[lane], tokens[lane]) = (part.start as u32, part.len() as u32, (lane / C) as u32);
        }
        // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512; the arrays have as many bytes.
        unsafe {
            let lanes = |lanes: &[u32; LANES]| _mm512_loadu_si512(lanes.as_ptr().cast());
            let (starts, lens, mut tokens) = (lanes(&starts), lanes(&lens), lanes(&tokens));
            let nothing = Lanes::splat(f32::NEG_INFINITY);
            for i in 0..C {
                let mut of_operand = tokens;
                for scores in &mut self.scores {
                    let attends = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(of_operand, starts), lens);
                    let score = Lanes::load(&scores[i].0);
                    Lanes::store(_mm512_mask_blend_ps(attends, nothing, score), &mut scores[i].0);
                    of_operand = _mm512_add_epi32(of_operand, _mm512_set1_epi32(ROWS as i32));
                }
                tokens = _mm512_add_epi32(tokens, _mm512_set1_epi32((LANES / C) as i32));
            }
        }
    }

    /// Finds the greatest scores of a group, and lets what was summed so far fade where they are greater. Returns `SHIFT` less
    /// them.
    #[inline(always)]
    fn fade(&mut self, group: usize) -> __m512 {
        let scores = &self.scores;
        let before = Lanes::load(&self.greatest[group].0);
        // Four chains of waiting for the one before.
        let mut greatest = [before; 4];
        for i in 0..C {
            for half in 0..2 {
                let greatest = &mut greatest[(2 * i + half) % 4];
                *greatest = Lanes::max(*greatest, Lanes::load(&scores[half][i].0));
            }
        }
        let [a, b, c, d] = greatest;
        let greatest = Lanes::max(Lanes::max(a, b), Lanes::max(c, d));
        // Differences of integers are powers of two by which all fades exactly.
        let greatest = rounded_up(greatest_by_query::<C>(greatest));
        let shift = Lanes::sub(Lanes::splat(SHIFT), greatest);
        if differ(before, greatest) {
            let mut faded = Line([0.0; LANES]);
            Lanes::store(exp2_for_bf16(before, shift), &mut faded.0);
            Lanes::store(greatest, &mut self.greatest[group].0);
            let totals = &mut self.totals[group].0;
            Lanes::store(Lanes::mul(Lanes::load(totals), Lanes::load(&faded.0)), totals);
            for sums in self.sums.as_chunks_mut::<C>().0[2 * L * group..].iter_mut().take(2 * L) {
                for (Line(sum), faded) in sums.iter_mut().zip(&faded.0) {
                    Lanes::store(Lanes::mul(Lanes::load(sum), Lanes::splat(*faded)), sum);
                }
            }
        }
        shift
    }

    /// The attention of one query, `[head_dim]`.
    #[inline(always)]
    fn finish(&self, query: usize, out: &mut [f32]) {
        let (group, query) = (query / C, query % C);
        let share = Lanes::splat(1.0 / self.totals[group].0[query]);
        let mut sums = [[Line([0.0; LANES]); 2]; L];
        let lines = self.sums.as_chunks::<C>().0[2 * L * group..].iter();
        for (to, sums) in sums.as_flattened_mut().iter_mut().zip(lines) {
            Lanes::store(Lanes::mul(Lanes::load(&sums[query].0), share), &mut to.0);
        }
        <Pairs as Words<Lanes>>::dims(sums.as_flattened(), out);
    }
}
