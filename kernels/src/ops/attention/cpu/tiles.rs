//! bf16 keys and values by matrix instructions (AMX), and those of q8_0 rounded to bf16: up to 16 queries at once.
//!
//! Keys are rows of the first operand as they are stored, so that scores come as `[tokens, queries]`; only their weights, a
//! few vectors, change places, and a lone query's do not need to. Words of the second operand are pairs of tokens: keys
//! are copied with the even tokens apart from the odd ones, so that two weights make a word where they are, and values are
//! interleaved as they are copied (`coming`). Queries' sums are operands too, that products are added to.
//!
//! Scores are exponents of 2 relative to the greatest so far, rounded up: a greater one makes all sums fade by a power of
//! two, which is exact, and there are few. A score is one sum over ascending steps of 32 dimensions, a sum of weighted
//! values one over ascending tokens (the order within a step is the processor's, see `simd::amx`), whatever else is
//! multiplied at once.

mod coming;
mod lanes;

use super::tile::TILE;
use super::words::{Pairs, Words};
use super::{AttendBlock, MAX_GROUP, MOST_LINES, Parts, Scratch};
use crate::blocks::KvDtype;
use crate::blocks::kv_format::{Bf16, Q8_0};
use crate::simd::amx::Tiles;
use crate::simd::{Avx512, LANES, Line, SHIFT, Simd, Square, as_rows};
use coming::{Coming, Copied, CopyAsBf16};
use lanes::{by_query, differ, exp2_for_bf16, greatest_by_query, in_order, rounded_pair, rounded_up};
use std::arch::x86_64::*;

/// The lanes of the level, with the bf16 that a processor with tiles has.
type Lanes = Avx512<true>;
/// What asks for memory as Intel's processors do: the bf16 of `Lanes` stands for AMD's. Asked for into the first-level cache, a
/// row over 4,096 tokens took a fifth longer.
type Asking = Avx512<false>;

/// Most rows of an operand, and queries at once.
const ROWS: usize = 16;
/// Bytes of a line.
const LINE: usize = size_of::<Line>();
/// Numbers of a line of bf16.
const NUMBERS: usize = 2 * LANES;
/// Lines of bf16 of the longest head.
const MOST: usize = MOST_LINES / 2;
/// Most groups of a block.
const GROUPS: usize = MAX_GROUP / ROWS;
/// Two ones.
static ONES: [u16; 2] = [0x3f80; 2];
/// What a query has seen before it attends to anything: less than any score, and yet finite.
const LEAST: f32 = -1e30;

/// Pairs of tokens that are copied at a time.
const SOME: usize = 2;

/// Computes a block with bf16 or q8_0 keys and values.
///
/// # Safety
/// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
pub(super) unsafe fn attend(block: AttendBlock<'_>) {
    // SAFETY: by this function's contract.
    unsafe {
        match (block.kv.shape().dtype, block.shape.head_dim) {
            (KvDtype::Q8_0, ..=64) => attend_lines::<Q8_0, 2>(&block),
            (KvDtype::Q8_0, 65..=128) => attend_lines::<Q8_0, 4>(&block),
            (KvDtype::Q8_0, _) => attend_lines::<Q8_0, 8>(&block),
            (_, ..=64) => attend_lines::<Bf16, 2>(&block),
            (_, 65..=128) => attend_lines::<Bf16, 4>(&block),
            _ => attend_lines::<Bf16, 8>(&block),
        }
    }
}

/// The same with L lines for a key.
///
/// # Safety
/// As above.
unsafe fn attend_lines<D: CopyAsBf16, const L: usize>(block: &AttendBlock<'_>) {
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
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
unsafe fn attend_in_groups<D: CopyAsBf16, const C: usize, const L: usize>(block: &AttendBlock<'_>) {
    let count = block.queries();
    let groups = count.div_ceil(C);
    let mut q = Scratch::<{ MAX_GROUP * MOST }>::new(groups * L * ROWS);
    let mut sums = Scratch::<{ MAX_GROUP * MOST_LINES }>::new(groups * C * 2 * L);
    let mut copies = [Copied::new(TILE * 2 * L), Copied::new(TILE * 2 * L)];
    let number = size_of::<f32>();
    // Scores of even and odd tokens, queries; keys or values; weights; ones; sums of values and of weights.
    let by_token = (ROWS, C * number);
    let shapes = [by_token, by_token, by_token, (ROWS, LINE), (C, LINE), (ROWS, number), (C, LINE), (C, number)];
    // SAFETY: the level is what the caller says.
    let tiles = unsafe { Tiles::new(shapes) };
    let mut rows = [block.rows.len() - 1; MAX_GROUP];
    for (row, queries) in rows[..count].chunks_exact_mut(block.shape.group()).enumerate() {
        queries.fill(row);
    }
    let zero = Line([0.0; LANES]);
    let mut queries = Queries::<C, L> {
        tiles,
        rows,
        q: pack::<C, L>(block, &mut q),
        greatest: [Line([LEAST; LANES]); GROUPS],
        totals: [zero; GROUPS],
        sums: sums.zeroed(),
        scores: [[zero; C]; 2],
        weights: [zero; C],
    };
    let mut steps = block.steps();
    let (mut step, mut now) = (steps.next(), 0);
    Coming::<D, L>::new(block, step.as_ref(), &mut copies[now]).advance(ROWS);
    while let Some(current) = step {
        step = steps.next();
        let [a, b] = &mut copies;
        let (tile, free) = if now == 0 { (a, b) } else { (b, a) };
        let mut coming = Coming::<D, L>::new(block, step.as_ref(), free);
        let parts = block.parts(&current);
        for group in 0..groups {
            // SAFETY: all of it was copied.
            queries.take_in(group, unsafe { tile.written() }, parts.as_ref(), &mut coming);
        }
        coming.advance(ROWS);
        now = 1 - now;
    }
    for query in 0..count {
        // SAFETY: of one at a time.
        queries.finish(query, unsafe { block.query(query) });
    }
}

/// A block's queries, scaled so that scores are exponents of 2: `[groups, L, words]`, a lane for each query.
#[inline(always)]
fn pack<'a, const C: usize, const L: usize>(
    block: &AttendBlock<'_>,
    to: &'a mut Scratch<{ MAX_GROUP * MOST }>,
) -> &'a [Line] {
    let scale = Lanes::splat(block.shape.scale * std::f32::consts::LOG2_E);
    for (i, square) in to.lines().as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        let (group, line) = (i / L, i % L);
        let mut rows = [[0; NUMBERS]; LANES];
        for (query, row) in (group * C..block.queries().min((group + 1) * C)).zip(&mut rows) {
            let mut numbers = [[0.0; LANES]; 2];
            // SAFETY: of one at a time.
            let q = unsafe { block.query(query) }.chunks(NUMBERS).nth(line).unwrap_or_default();
            numbers.as_flattened_mut()[..q.len()].copy_from_slice(q);
            let low = Lanes::mul(Lanes::load(&numbers[0]), scale);
            let high = Lanes::mul(Lanes::load(&numbers[1]), scale);
            *row = Lanes::round_bf16(low, high);
        }
        // SAFETY: a `Line` is 16 f32 without padding, so 16 are a square; `transpose` writes all of it.
        Lanes::transpose(&as_rows(&rows.each_ref()), unsafe { &mut *square.as_mut_ptr().cast::<Square>() });
    }
    // SAFETY: every square was just written.
    unsafe { to.written() }
}

/// What the softmaxes of a block's queries have seen so far, in groups of C. Lane `i` of what belongs to a group is query
/// `i % C`'s.
struct Queries<'a, const C: usize, const L: usize> {
    tiles: Tiles,
    /// Rows of the queries; behind the last query, its row.
    rows: [usize; MAX_GROUP],
    /// Words of the queries, `[groups, lines, words]`, a lane for each query.
    q: &'a [Line],
    /// Greatest score, rounded up, by group.
    greatest: [Line; GROUPS],
    /// Sum of 2^(score - greatest), by group.
    totals: [Line; GROUPS],
    /// Sum of 2^(score - greatest) * value, `[groups, lines, 2, queries]`.
    sums: &'a mut [Line],
    /// Scores of even and odd tokens with a group, `[tokens, queries]`.
    scores: [[Line; C]; 2],
    /// Weights of pairs of tokens, query by query.
    weights: [Line; C],
}

impl<const C: usize, const L: usize> Queries<'_, C, L> {
    /// Takes in a tile for a group, while the next one comes; `parts` are those that the rows attend to, unless all do to
    /// all of it.
    #[inline(always)]
    fn take_in<D: CopyAsBf16>(
        &mut self,
        group: usize,
        tile: &[Line],
        parts: Option<&Parts>,
        coming: &mut Coming<'_, D, L>,
    ) {
        let rows = &self.rows[group * C..(group + 1) * C];
        if parts.is_some_and(|parts| rows.iter().all(|row| parts[*row].is_empty())) {
            return;
        }
        self.score(group, tile, coming);
        if let Some(parts) = parts {
            self.mask(group, parts);
        }
        self.weigh(group, coming);
        self.add_values(group, tile, coming);
    }

    /// Scores of a group's queries with a tile's keys.
    #[inline(always)]
    fn score<D: CopyAsBf16>(&mut self, group: usize, tile: &[Line], coming: &mut Coming<'_, D, L>) {
        let q = &self.q.as_chunks::<ROWS>().0.as_chunks::<L>().0[group];
        assert_eq!(tile.len(), TILE * 2 * L);
        let (tiles, key, [low, high]) = (&self.tiles, tile.as_ptr().cast::<u8>(), &mut self.scores);
        tiles.zero::<0>();
        tiles.zero::<1>();
        // SAFETY: there are keys of 32 tokens, and a line for each word of the queries; C lines are C numbers for each of 16
        // tokens.
        unsafe {
            for (line, q) in q.iter().enumerate() {
                let key = key.add(line * LINE);
                tiles.load::<2>(q.as_ptr().cast(), LINE);
                tiles.load::<3>(key, L * LINE);
                tiles.multiply_bf16::<0, 3, 2>();
                coming.advance(SOME);
                tiles.load::<3>(key.add(ROWS * L * LINE), L * LINE);
                tiles.multiply_bf16::<1, 3, 2>();
            }
            tiles.store::<0>(low.as_mut_ptr().cast(), C * size_of::<f32>());
            tiles.store::<1>(high.as_mut_ptr().cast(), C * size_of::<f32>());
        }
    }

    /// Scores with tokens that a query does not attend to become those of nothing.
    #[inline(always)]
    fn mask(&mut self, group: usize, parts: &Parts) {
        let (mut starts, mut lens, mut tokens) = ([0; LANES], [0; LANES], [0; LANES]);
        for lane in 0..LANES {
            let part = &parts[self.rows[group * C + lane % C]];
            (starts[lane], lens[lane], tokens[lane]) = (part.start as u32, part.len() as u32, 2 * (lane / C) as u32);
        }
        // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512; the arrays have as many bytes.
        unsafe {
            let lanes = |lanes: &[u32; LANES]| _mm512_loadu_si512(lanes.as_ptr().cast());
            let (starts, lens, mut tokens) = (lanes(&starts), lanes(&lens), lanes(&tokens));
            let nothing = Lanes::splat(f32::NEG_INFINITY);
            for i in 0..C {
                for scores in &mut self.scores {
                    let attends = _mm512_cmplt_epu32_mask(_mm512_sub_epi32(tokens, starts), lens);
                    let score = Lanes::load(&scores[i].0);
                    Lanes::store(_mm512_mask_blend_ps(attends, nothing, score), &mut scores[i].0);
                    tokens = _mm512_add_epi32(tokens, _mm512_set1_epi32(1));
                }
                tokens = _mm512_add_epi32(tokens, _mm512_set1_epi32(2 * (LANES / C) as i32 - 2));
            }
        }
    }

    /// Turns the scores of a group into weights. What was summed so far fades where there is a greater score.
    #[inline(always)]
    fn weigh<D: CopyAsBf16>(&mut self, group: usize, coming: &mut Coming<'_, D, L>) {
        let scores = &self.scores;
        let before = Lanes::load(&self.greatest[group].0);
        let mut greatest = [before; 2];
        for i in 0..C {
            for half in 0..2 {
                greatest[half] = Lanes::max(greatest[half], Lanes::load(&scores[half][i].0));
            }
        }
        // Differences of integers are powers of two by which all fades exactly.
        let greatest = rounded_up(greatest_by_query::<C>(Lanes::max(greatest[0], greatest[1])));
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
        let mut pairs = [Lanes::splat(0.0); C];
        for (i, pair) in pairs.iter_mut().enumerate() {
            let low = exp2_for_bf16(Lanes::load(&scores[0][i].0), shift);
            let high = exp2_for_bf16(Lanes::load(&scores[1][i].0), shift);
            *pair = rounded_pair(low, high);
        }
        coming.advance(SOME);
        for (i, pair) in by_query(pairs).into_iter().enumerate() {
            Lanes::store(pair, &mut self.weights[in_order::<C>(i)].0);
        }
        coming.advance(SOME);
    }

    /// Adds a tile's weighted values to the sums of a group, and its weights to the totals.
    #[inline(always)]
    fn add_values<D: CopyAsBf16>(&mut self, group: usize, tile: &[Line], coming: &mut Coming<'_, D, L>) {
        assert_eq!(tile.len(), TILE * 2 * L);
        let (tiles, values, totals) = (&self.tiles, tile[TILE * L..].as_ptr().cast::<u8>(), &mut self.totals[group].0);
        let sums = self.sums[group * C * 2 * L..].as_chunks_mut::<C>().0;
        // SAFETY: there is a line of weights and a total for each query, and one word that is read 16 times.
        unsafe {
            tiles.load::<4>(self.weights.as_ptr().cast(), LINE);
            tiles.load::<5>((&raw const ONES).cast(), 0);
            tiles.load::<7>(totals.as_ptr().cast(), size_of::<f32>());
            tiles.multiply_bf16::<7, 4, 5>();
            tiles.store::<7>(totals.as_mut_ptr().cast(), size_of::<f32>());
        }
        for (i, sums) in sums.iter_mut().enumerate().take(2 * L) {
            // SAFETY: there are values of 16 pairs, and a line of sums for each query.
            unsafe {
                tiles.load::<6>(sums.as_ptr().cast(), LINE);
                tiles.load::<3>(values.add(i * LINE), 2 * L * LINE);
                tiles.multiply_bf16::<6, 4, 3>();
                coming.advance(SOME);
                tiles.store::<6>(sums.as_mut_ptr().cast(), LINE);
            }
        }
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
