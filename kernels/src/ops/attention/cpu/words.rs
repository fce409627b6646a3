//! What attention multiplies: numbers one at a time, bf16 in pairs, or integers in quads.
//!
//! Keys, queries, weights and values are words of 32 bits. With [`Singles`] a word is an f32, widened from what is stored.
//! With [`Pairs`], for bf16 keys and values where the processor multiplies two bf16 at once, it is two of them: neighbouring
//! dimensions of a key, or one dimension of two neighbouring tokens' values. Queries and weights are then rounded to bf16
//! as well, which changes a score by about as much as the rounding of its key did; sums stay f32. A pair half of which is
//! not attended to adds it with weight 0: exactly nothing, as long as its value is finite.
//! With [`Quads`], for q8_0, it is four integers: neighbouring dimensions of a key, or one dimension of four neighbouring
//! tokens' values. 32 dimensions of a query are rounded to int8, and 32 tokens' weights times their values' scales to bytes, of
//! which the greatest is 220 to 255: about as coarsely as keys and values were when they were stored. Sums of products are exact, so
//! all levels of vectors have the same bits; they are scaled once for 32 dimensions of a key or 32 tokens' values. A token that is not
//! attended to has a weight of 0 there as well, so what the others' are rounded to is no matter of their pass.

mod columns;
mod factors;
mod quads;
mod singles;

use super::Parts;
use super::queries::{Queries, Weights};
use super::tile::{Gathered, TokenRows};
use crate::blocks::kv_format::{Bf16, KvFormat};
use crate::bytes::Plain;
use crate::simd::{LANES, Line, Rows, Simd, Square, as_rows};
use columns::Columns;
pub(super) use factors::Factors;
use factors::{Bytes, Floats, Halves};
pub(super) use quads::{Quads, rounded};
pub(super) use singles::Singles;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Numbers of a line of pairs.
const PAIRS: usize = 2 * LANES;

pub(super) trait Words<S: Simd> {
    /// What a stored key or value is a slice of.
    type Element: Plain;
    /// Words of values, and those of weights.
    type Values: Factors<S>;
    /// Most queries at once.
    const MOST_QUERIES: usize = S::QUERIES;
    /// Queries up to which stored values are made into words where they are used.
    const FEW: usize;
    /// Whether words are times a scale for every 32 dimensions.
    const SCALED: bool = false;
    /// Squares of keys that are laid at once.
    const SQUARES: usize = 1;
    /// Dimensions of a square of keys.
    const SQUARE_DIMS: usize;
    /// Whether keys are laid with their tokens in the lanes, and not read as they are stored.
    const LAID: bool = true;
    /// Whether the next tile is asked for into the first-level cache, too. One row over 8,192 bf16 tokens takes 0.9 of the time
    /// with it on a Xeon; 8 rows over 520 cached ones take 1.3 times as long where they are f32.
    const ASKS_NEAR: bool;

    /// Lines of a word of values, and of a sum of values.
    fn lines(head_dim: usize) -> usize;
    /// Whether the dimensions fill the lines.
    fn fills(head_dim: usize) -> bool {
        Self::lines(head_dim) * LANES == head_dim
    }
    /// 16 words of 16 keys from token `first` on, words to columns, then anything finite; as many for each of
    /// [`SQUARES`](Self::SQUARES) squares, from `square` on.
    fn columns(_keys: &TokenRows<'_, Self::Element>, _first: usize, _square: usize, _to: &mut [Square]) {
        unreachable!("keys that are not laid")
    }
    /// All lines of word `word` of values, then zeros.
    fn values(values: &TokenRows<'_, Self::Element>, word: usize, to: &mut [Line]);
    /// Part `part` of line `lines.0 + lines.1` of word `word`, where `lines.0` is even.
    ///
    /// # Safety
    /// The word's tokens must be among the 32, and the line must need no zeros.
    unsafe fn stored(
        values: &TokenRows<'_, Self::Element>,
        word: usize,
        lines: (usize, usize),
        part: usize,
    ) -> <Self::Values as Factors<S>>::Word;
    /// Writes the words of query `query` times `scale` among those of all, `QUERY_LINES` for each. Called by ascending query.
    fn query(q: &[f32], scale: f32, query: usize, all: &mut [MaybeUninit<Line>]);
    /// How many of the queries from `at` on, of those before `end`, take in a tile at once.
    #[inline(always)]
    fn at_once(at: usize, end: usize) -> usize {
        let left = end - at;
        left.div_ceil(left.div_ceil(Self::MOST_QUERIES))
    }
    /// Finds the scores of queries with a tile's tokens, and their weights of those that they attend to, where that does not
    /// depend on how many they are.
    #[inline(always)]
    fn weigh(
        _seen: &mut Queries<'_>,
        _queries: Range<usize>,
        _parts: Option<&Parts>,
        _tile: &mut Gathered<'_, '_, Self::Element>,
        _weights: &mut Weights,
    ) {
    }
    /// The same of N queries from `at` on, where it does.
    #[inline(always)]
    fn weigh_each<const N: usize>(
        _seen: &mut Queries<'_>,
        _at: usize,
        _parts: Option<&Parts>,
        _tile: &mut Gathered<'_, '_, Self::Element>,
        _weights: &mut Weights,
    ) {
    }
    /// Where that left, among the lanes of [`Weights::words`], a query's weights of a word of values' block; the query is the
    /// first but so many that are at once, and before the first there are so many [`skipped`](Self::skipped) lanes.
    fn weight(query: usize, block: usize, word: usize) -> usize;
    /// The same of their scale.
    fn scale(_query: usize, _block: usize) -> usize {
        0
    }
    /// The same of what the query's sums so far fade by.
    fn faded(query: usize) -> usize {
        query
    }
    /// See [`weight`](Self::weight).
    #[inline(always)]
    fn skipped(_at: usize) -> usize {
        0
    }
    /// The sum of a query's weights.
    #[inline(always)]
    fn total(totals: &[Line], query: usize) -> f32 {
        S::sum(S::load(&totals[query].0))
    }
    /// The dimensions of a query's sums, in order.
    fn dims(sums: &[Line], out: &mut [f32]);
}

/// 64 bytes of each of 16 tokens' rows, from token `first` and its number `start` on; zeros behind the last number. Panics unless
/// there are as many tokens, and one of the numbers.
#[inline(always)]
fn rows_of<'a, T: Plain + Default, const N: usize>(
    rows: &TokenRows<'a, T>,
    (first, start): (usize, usize),
    padded: &'a mut MaybeUninit<[[T; N]; LANES]>,
) -> Rows<'a> {
    if start + N <= rows.head_dim {
        return as_rows::<T, N>(&rows.of(first, start));
    }
    let padded = padded.write([[T::default(); N]; LANES]);
    for (i, to) in padded.iter_mut().enumerate() {
        let rest = &rows.get(first + i)[start..rows.head_dim];
        to[..rest.len()].copy_from_slice(rest);
    }
    as_rows(&padded.each_ref())
}

/// Numbers `start ..` of 32 of each of the N tokens of word `word`, then what `padded` has.
#[inline(always)]
fn tokens_of<'a, T: Plain, const N: usize>(
    rows: &TokenRows<'a, T>,
    (word, start): (usize, usize),
    padded: &'a mut [[T; PAIRS]; N],
) -> [&'a [T; PAIRS]; N] {
    if start + PAIRS <= rows.head_dim {
        return rows.of(word * N, start);
    }
    for (i, to) in padded.iter_mut().enumerate() {
        let rest = &rows.get(word * N + i)[start..rows.head_dim];
        to[..rest.len()].copy_from_slice(rest);
    }
    padded.each_ref()
}

/// bf16, two by two.
pub(super) struct Pairs;

impl<S: Simd> Words<S> for Pairs {
    type Element = <Bf16 as KvFormat>::Element;
    type Values = Halves;
    const FEW: usize = S::QUERIES;
    const SQUARE_DIMS: usize = PAIRS;
    const ASKS_NEAR: bool = false;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        2 * head_dim.div_ceil(PAIRS)
    }

    #[inline(always)]
    fn columns(keys: &TokenRows<'_, u16>, first: usize, square: usize, to: &mut [Square]) {
        let [to] = to else { unreachable!("one square at a time") };
        S::transpose(&rows_of::<_, PAIRS>(keys, (first, square * PAIRS), &mut MaybeUninit::uninit()), to);
    }

    #[inline(always)]
    fn values(values: &TokenRows<'_, u16>, word: usize, to: &mut [Line]) {
        for (both, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            let mut padded = [[0; PAIRS]; 2];
            let [a, b] = tokens_of(values, (word, both * PAIRS), &mut padded);
            for (half, to) in to.iter_mut().enumerate() {
                *to.u16s_mut() = S::interleave(a, b, half);
            }
        }
    }

    #[inline(always)]
    unsafe fn stored(values: &TokenRows<'_, u16>, word: usize, lines: (usize, usize), part: usize) -> S::Half {
        let at = lines.0 * LANES + lines.1 / 2 * PAIRS;
        // SAFETY: by this function's contract.
        let (a, b) = unsafe { (values.chunk(2 * word, at), values.chunk(2 * word + 1, at)) };
        S::load_half(&S::interleave(a, b, lines.1 % 2), part, 0)
    }

    #[inline(always)]
    fn query(q: &[f32], scale: f32, query: usize, all: &mut [MaybeUninit<Line>]) {
        columns::query::<S, Self>(q, scale, query, all);
    }

    #[inline(always)]
    fn weigh_each<const N: usize>(
        seen: &mut Queries<'_>,
        at: usize,
        parts: Option<&Parts>,
        tile: &mut Gathered<'_, '_, Self::Element>,
        weights: &mut Weights,
    ) {
        columns::weigh::<S, Self, N>(seen, at, parts, tile, weights);
    }

    #[inline(always)]
    fn weight(query: usize, _block: usize, word: usize) -> usize {
        columns::weight(query, word)
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        // `Simd::interleave` has the first four of each eight dimensions in one line, the others in the next.
        for (both, out) in sums.as_chunks::<2>().0.iter().zip(out.chunks_mut(PAIRS)) {
            for (four, out) in out.chunks_mut(4).enumerate() {
                let sums = &both[four % 2].0.as_chunks::<4>().0[four / 2];
                match <&mut [f32; 4]>::try_from(&mut *out) {
                    Ok(out) => *out = *sums,
                    Err(_) => out.copy_from_slice(&sums[..out.len()]),
                }
            }
        }
    }
}

impl<S: Simd> Columns<S> for Pairs {
    type Keys = Halves;

    #[inline(always)]
    fn words(q: &[f32], scale: f32, to: &mut [f32]) {
        for (q, to) in q.chunks(PAIRS).zip(to.chunks_mut(LANES)) {
            let mut lines = [[0.0; LANES]; 2];
            lines.as_flattened_mut().iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
            let rounded = S::round_bf16(S::load(&lines[0]), S::load(&lines[1]));
            for (to, pair) in to.iter_mut().zip(rounded.as_chunks::<2>().0) {
                *to = f32::from_bits(u32::from(pair[0]) | u32::from(pair[1]) << 16);
            }
        }
    }

    #[inline(always)]
    fn weights<const N: usize>(weights: &[[S::F; 2]; N], to: &mut [Line]) -> [S::F; N] {
        let mut sums = [S::splat(0.0); N];
        for (i, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate().take(N) {
            let rounded = S::round_bf16(weights[i][0], weights[i][1]);
            *to[0].u16s_mut() = rounded;
            let halves: &[[u16; LANES]] = rounded.as_chunks().0;
            sums[i] = S::add(S::load_bf16(&halves[0]), S::load_bf16(&halves[1]));
        }
        sums
    }
}
