//! Four integers, times a scale: what is rounded, and where sums start and are scaled.
//!
//! Keys are not laid: one is loaded as it is stored, each word of its quarters of 64 dimensions is multiplied with that word of
//! four queries, and what the quarters of four tokens' keys give is added so that lanes are four tokens by four queries. From
//! there on no lane needs another but for the greatest of a query's tokens, and bytes of weights. With tokens alone in the lanes,
//! 8 rows over 8,192 tokens took 1.2 times as long on Zen 5, 4 rows as well, and one row 1.06 times; with AVX2 4 rows take 0.83
//! of that time and 8 rows the same, but one row, which leaves three of four lanes idle, 1.15 times.

use super::{Bytes, Factors, PAIRS, Pairs, Words, tokens_of};
use crate::ops::attention::cpu::queries::{Queries, Weights};
use crate::ops::attention::cpu::tile::{Gathered, TILE, TokenRows};
use crate::ops::attention::cpu::{MOST_BLOCKS, Parts, QUERY_LINES, zeroed};
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{LANES, Line, Simd, exp2_of_negative};
use std::f32::consts::LN_2;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Queries whose words share lines.
const FOUR: usize = 4;
/// Tokens that share scores' lines, of a tile.
const FOURS: usize = TILE / FOUR;
/// Dimensions of the words of a line.
const DIMS: usize = 4 * LANES;
/// Lines of four queries for 64 dimensions: of their words, of where sums start, and of their scales.
const CHUNK: usize = FOUR + 1 + DIMS / BLOCK;
/// log2 of the greatest byte, rounded down.
const MOST: f32 = 7.9943;
/// log2 of a number is the integer of its bits times 2^-23, plus at most this: log2(1 + x) - x is at most 0.08607.
const BITS_BELOW: f32 = 0.0861 - 127.0;
/// Greatest exponent of what weights are times, so that its inverse is finite.
const MOST_RAISED: f32 = 100.0;

/// `q8_0` multiplied as integers.
pub(in super::super) struct Quads;

impl<S: Simd> Words<S> for Quads {
    type Element = u8;
    type Values = Bytes;
    const MOST_QUERIES: usize = if S::QUERIES < 2 * FOUR { FOUR } else { 2 * FOUR };
    const FEW: usize = <Self as Words<S>>::MOST_QUERIES;
    const SCALED: bool = true;
    const SQUARE_DIMS: usize = DIMS;
    const LAID: bool = false;
    const ASKS_NEAR: bool = false;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        <Pairs as Words<S>>::lines(head_dim)
    }

    #[inline(always)]
    fn values(values: &TokenRows<'_, u8>, word: usize, to: &mut [Line]) {
        for (block, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate() {
            // What stands for 0.
            let mut padded = [[128; PAIRS]; 4];
            *to = S::interleave_quads(tokens_of(values, (word, block * BLOCK), &mut padded));
        }
    }

    #[inline(always)]
    unsafe fn stored(values: &TokenRows<'_, u8>, word: usize, lines: (usize, usize), part: usize) -> S::I {
        let (at, first) = (lines.0 * LANES + lines.1 / 2 * BLOCK, 4 * word);
        // SAFETY (all): by this function's contract.
        let [a, b] = unsafe { [values.chunk(first, at), values.chunk(first + 1, at)] };
        let [c, d] = unsafe { [values.chunk(first + 2, at), values.chunk(first + 3, at)] };
        <Bytes as Factors<S>>::load(&S::interleave_quads([a, b, c, d])[lines.1 % 2], part)
    }

    #[inline(always)]
    fn query(q: &[f32], scale: f32, query: usize, all: &mut [MaybeUninit<Line>]) {
        let (first, lane) = (query / FOUR * FOUR * QUERY_LINES, query % FOUR);
        let lines = &mut all[first..][..CHUNK * q.len().div_ceil(DIMS)];
        if lane == 0 {
            zeroed(lines);
        }
        // SAFETY: queries come by ascending number, and the first of each four found them `zeroed`.
        let lines = unsafe { lines.assume_init_mut() };
        for (block, q) in q.chunks(BLOCK).enumerate() {
            let (quants, of_quants) = rounded::<S>(q, scale);
            let (words, rest) = lines[block / 2 * CHUNK..][..CHUNK].split_at_mut(FOUR);
            for (word, quants) in quants.as_chunks::<4>().0.iter().enumerate() {
                let quarter = block % 2 * 2 + word / 4;
                let bits = u32::from_le_bytes(quants.map(|quant| quant as u8));
                words[word % 4].0[quarter * FOUR + lane] = f32::from_bits(bits);
            }
            let sum: i32 = quants.iter().map(|quant| i32::from(*quant)).sum();
            rest[0].0[block % 2 * 2 * FOUR + lane] = f32::from_bits((-128 * sum) as u32);
            for scale in rest[1 + block % 2].0.iter_mut().skip(lane).step_by(FOUR) {
                *scale = of_quants;
            }
        }
    }

    #[inline(always)]
    fn at_once(at: usize, end: usize) -> usize {
        let most = if at.is_multiple_of(FOUR) { <Self as Words<S>>::MOST_QUERIES } else { FOUR - at % FOUR };
        most.min(end - at)
    }

    #[inline(always)]
    fn weigh(
        seen: &mut Queries<'_>,
        queries: Range<usize>,
        parts: Option<&Parts>,
        tile: &mut Gathered<'_, '_, u8>,
        weights: &mut Weights,
    ) {
        match queries.len() {
            ..=FOUR => weigh::<S, 1>(seen, queries, parts, tile, weights),
            _ => weigh::<S, 2>(seen, queries, parts, tile, weights),
        }
    }

    #[inline(always)]
    fn weight(query: usize, block: usize, word: usize) -> usize {
        (4 * block + query / FOUR * 2) * LANES + word * FOUR + query % FOUR
    }

    #[inline(always)]
    fn scale(query: usize, block: usize) -> usize {
        (2 * block + query / FOUR) * LANES + query % FOUR
    }

    #[inline(always)]
    fn faded(query: usize) -> usize {
        query / FOUR * LANES + query % FOUR
    }

    #[inline(always)]
    fn skipped(at: usize) -> usize {
        at % FOUR
    }

    #[inline(always)]
    fn total(totals: &[Line], query: usize) -> f32 {
        let Line(lanes) = &totals[query / FOUR];
        let lane = |four: usize| lanes[four * FOUR + query % FOUR];
        lane(0) + lane(1) + (lane(2) + lane(3))
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        <Pairs as Words<S>>::dims(sums, out);
    }
}

/// Up to 32 dimensions of a query times `scale` as int8, and what these are times.
#[inline(always)]
pub(in super::super) fn rounded<S: Simd>(q: &[f32], scale: f32) -> ([i8; BLOCK], f32) {
    let mut scaled = [[0.0; LANES]; 2];
    scaled.as_flattened_mut().iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
    let (low, high) = (S::load(&scaled[0]), S::load(&scaled[1]));
    let most = S::greatest(S::max(S::max(low, high), S::sub(S::splat(0.0), S::min(low, high))));
    (S::round_int8(low, high, if most > 0.0 { 127.0 / most } else { 0.0 }), most / 127.0)
}

/// As [`Words::weigh`], of queries of up to G fours.
#[inline(always)]
fn weigh<S: Simd, const G: usize>(
    seen: &mut Queries<'_>,
    queries: Range<usize>,
    parts: Option<&Parts>,
    tile: &mut Gathered<'_, '_, u8>,
    weights: &mut Weights,
) {
    let first = queries.start / FOUR;
    let mut greater = score::<S, G>(seen, first, tile, weights);
    if let Some(parts) = parts {
        for g in 0..G {
            let mut of_lanes = [const { 0..0 }; FOUR];
            for (lane, part) in of_lanes.iter_mut().enumerate() {
                let query = (first + g) * FOUR + lane;
                if queries.contains(&query) {
                    *part = parts[query / seen.group].clone();
                }
            }
            if of_lanes.iter().any(|part| *part != (0..TILE)) {
                greater[g] = within::<S>(&mut weights.scores[g * FOURS..][..FOURS], &of_lanes);
            }
        }
    }
    let mut before = [S::splat(0.0); G];
    let mut now = before;
    for g in 0..G {
        let Line(greatest) = &mut seen.greatest[first + g];
        before[g] = S::load(greatest);
        now[g] = S::max(S::greatest_of_fours(greater[g]), before[g]);
        S::store(now[g], greatest);
    }
    let blocks = seen.lines / 2;
    assert!(blocks <= MOST_BLOCKS);
    for block in 0..blocks {
        raise::<S, G>(&greater, &now, block, weights);
    }
    let mut powers = [[S::splat(0.0); FOURS]; G];
    let mut sums = [S::splat(0.0); G];
    for g in 0..G {
        for i in 0..FOURS {
            let score = S::load(&weights.scores[g * FOURS + i].0);
            powers[g][i] = exp2_of_negative::<S>(S::sub(score, now[g]));
            sums[g] = S::add(sums[g], powers[g][i]);
        }
    }
    for block in 0..blocks {
        let scales = &weights.value_scales.as_chunks::<FOURS>().0[block];
        for g in 0..G {
            let raised = S::load(&weights.raised[2 * block + g].0);
            for half in 0..2 {
                let mut scaled = [raised; FOUR];
                for i in 0..FOUR {
                    let four = half * FOUR + i;
                    scaled[i] = S::mul(powers[g][four], S::mul(S::load(&scales[four].0), raised));
                }
                weights.words[4 * block + 2 * g + half] = S::bytes_of_fours(scaled);
            }
        }
    }
    weights.fade = false;
    for g in 0..G {
        let Line(total) = &mut seen.totals[first + g];
        let mut sum = S::load(total);
        let mut faded = S::splat(1.0);
        if S::any_less(before[g], now[g]) {
            weights.fade = true;
            faded = exp2_of_negative::<S>(S::sub(before[g], now[g]));
            sum = S::mul(sum, faded);
        }
        S::store(faded, &mut weights.faded[g].0);
        S::store(S::add(sum, sums[g]), total);
    }
}

/// Finds what the weights of G fours of queries times their values' scales are times in a block of dimensions, so that none is
/// above 255, and the inverse; `greater` are the tile's greatest scores by lane, `now` the greatest of all so far.
///
/// A weight times its scale is a power of 2 of which the bound is known from the score and the scale's bits, a few percent too
/// great, before any power is: so no product waits for the greatest one. 8 rows over 8,192 tokens take 0.94 to 0.97 of the time on Zen 5.
/// Scores are less the greatest of their lane, which is known first: next to a huge one nothing would be left of the bits.
#[inline(always)]
fn raise<S: Simd, const G: usize>(greater: &[S::F; G], now: &[S::F; G], block: usize, weights: &mut Weights) {
    let scales = &weights.value_scales.as_chunks::<FOURS>().0[block];
    let mut bounds = [S::splat(f32::NEG_INFINITY); G];
    for i in 0..FOURS {
        let bits = S::from_i32(S::load_bits(&scales[i].0));
        for g in 0..G {
            let score = S::sub(S::load(&weights.scores[g * FOURS + i].0), greater[g]);
            bounds[g] = S::max(S::fma(bits, S::splat(1.0 / (1 << 23) as f32), score), bounds[g]);
        }
    }
    for g in 0..G {
        let bound = S::greatest_of_fours(S::add(bounds[g], S::sub(greater[g], now[g])));
        let exponent = S::sub(S::splat(MOST - BITS_BELOW), bound);
        let exponent = S::min(exponent, S::splat(MOST_RAISED));
        // A power of 2 is nowhere less than its tangent.
        let whole = S::round(exponent);
        let tangent = S::fma(S::sub(exponent, whole), S::splat(LN_2), S::splat(1.0));
        let raised = S::scale_by_exponent(tangent, whole);
        S::store(raised, &mut weights.raised[2 * block + g].0);
        S::store(S::div(S::splat(1.0), raised), &mut weights.scales[2 * block + g].0);
    }
}

/// Scores of G fours of queries from four `first` on with the keys of a tile, and the greatest by lane. Finds the scales of the
/// tile's values as well.
#[inline(always)]
fn score<S: Simd, const G: usize>(
    seen: &Queries<'_>,
    first: usize,
    tile: &mut Gathered<'_, '_, u8>,
    weights: &mut Weights,
) -> [S::F; G] {
    let mut greatest = [S::splat(f32::NEG_INFINITY); G];
    for (chunk, start) in (0..seen.head_dim).step_by(DIMS).enumerate() {
        let at = first * FOUR * QUERY_LINES + chunk * CHUNK;
        assert!(at + (G - 1) * FOUR * QUERY_LINES + CHUNK <= seen.q.len());
        let mut queries = [&[Line([0.0; LANES]); CHUNK]; G];
        for g in 0..G {
            // SAFETY: by the assertion, there are such lines of these queries, and `Words::query` wrote them.
            queries[g] = unsafe { &*seen.q.as_ptr().add(at + g * FOUR * QUERY_LINES).cast() };
        }
        let key_scales = &mut weights.key_scales[2 * chunk * FOURS..][..2 * FOURS];
        let value_scales = &mut weights.value_scales[2 * chunk * FOURS..][..2 * FOURS];
        // Of the last chunk, whose scores are whole.
        greatest = [S::splat(f32::NEG_INFINITY); G];
        for four in 0..FOURS {
            let mut keys = [S::splat_i32(0); FOUR];
            for i in 0..FOUR {
                keys[i] = key::<S>(&tile.key_rows, four * FOUR + i, start);
            }
            let mut sums = [[S::splat_i32(0); FOUR]; G];
            for g in 0..G {
                sums[g] = [S::load_bits(&queries[g][FOUR].0); FOUR];
            }
            for word in 0..FOUR {
                let mut words = [&queries[0][word].0; G];
                for g in 0..G {
                    words[g] = &queries[g][word].0;
                }
                S::add_spread(&mut sums, &keys, word, words);
            }
            // Once for all queries that share the tile.
            let mut of_keys = [S::splat(0.0); 2];
            if tile.fresh {
                of_keys = scales::<S>(&tile.key_rows, four, start);
                let of_values = scales::<S>(&tile.value_rows, four, start);
                for block in 0..2 {
                    S::store(of_keys[block], &mut key_scales[block * FOURS + four].0);
                    S::store(of_values[block], &mut value_scales[block * FOURS + four].0);
                }
            } else {
                for block in 0..2 {
                    of_keys[block] = S::load(&key_scales[block * FOURS + four].0);
                }
            }
            for g in 0..G {
                // The blocks of two tokens, each of which has two quarters, then those of the next two.
                let [a, b, c, d] = sums[g];
                let low = S::add_i32(S::even_fours(a, b), S::odd_fours(a, b));
                let high = S::add_i32(S::even_fours(c, d), S::odd_fours(c, d));
                let Line(to) = &mut weights.scores[g * FOURS + four];
                let mut scores = if start == 0 { S::splat(0.0) } else { S::load(to) };
                let sums = [S::even_fours(low, high), S::odd_fours(low, high)];
                for block in 0..2 {
                    let scale = S::mul(of_keys[block], S::load(&queries[g][FOUR + 1 + block].0));
                    scores = S::fma(S::from_i32(sums[block]), scale, scores);
                }
                S::store(scores, to);
                greatest[g] = S::max(scores, greatest[g]);
            }
            tile.next.ask_far::<S>(FOUR);
        }
    }
    tile.fresh = false;
    greatest
}

/// The scales of the blocks of dimensions `start ..` of 64 of four tokens' keys or values, each in four lanes; 0 of a block that is
/// not there.
#[inline(always)]
fn scales<S: Simd>(rows: &TokenRows<'_, u8>, four: usize, start: usize) -> [S::F; 2] {
    assert!(four < FOURS);
    // Where there is only one, the two bytes before it are read as well.
    let missing = start + BLOCK >= rows.head_dim;
    let at = rows.head_dim.next_multiple_of(2) + start / BLOCK * 2 - if missing { 2 } else { 0 };
    assert!(at + 4 <= rows.row_len());
    let mut pairs = [0; FOUR];
    for (i, pair) in pairs.iter_mut().enumerate() {
        // SAFETY: by the assertions, there are such a token and such bytes.
        *pair = u32::from_ne_bytes(*unsafe { rows.chunk(four * FOUR + i, at) });
    }
    S::halves_in_fours(pairs, missing)
}

/// 64 bytes of a key from one on; zeros behind the last.
#[inline(always)]
fn key<S: Simd>(keys: &TokenRows<'_, u8>, token: usize, start: usize) -> S::I {
    assert!(token < TILE);
    if start + QUAD <= keys.row_len() {
        // SAFETY: there is such a token, and its row has so many bytes.
        return S::load_bytes(unsafe { keys.chunk(token, start) });
    }
    let (mut bytes, rest) = ([0; QUAD], &keys.get(token)[start..]);
    bytes[..rest.len()].copy_from_slice(rest);
    S::load_bytes(&bytes)
}

/// Leaves of four queries' scores with four tokens a line those with tokens that are in the query's part, and makes the others
/// those of nothing. Returns the greatest by lane.
#[inline(always)]
fn within<S: Simd>(scores: &mut [Line], parts: &[Range<usize>; FOUR]) -> S::F {
    let (mut starts, mut ends) = ([0.0; LANES], [0.0; LANES]);
    for lane in 0..LANES {
        (starts[lane], ends[lane]) = (parts[lane % FOUR].start as f32, parts[lane % FOUR].end as f32);
    }
    let (starts, ends, nothing) = (S::load(&starts), S::load(&ends), S::splat(f32::NEG_INFINITY));
    let mut greatest = nothing;
    for (four, Line(scores)) in scores.iter_mut().enumerate() {
        let tokens = S::load(&std::array::from_fn(|lane| (four * FOUR + lane / FOUR) as f32));
        let started = S::select_less(tokens, starts, nothing, S::load(scores));
        let left = S::select_less(tokens, ends, started, nothing);
        S::store(left, scores);
        greatest = S::max(left, greatest);
    }
    greatest
}

const _: () = assert!(TILE == 4 * QUADS, "a tile's tokens are as many as a block's dimensions");
