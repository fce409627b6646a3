//! Keys with their tokens in the lanes: a loaded word of 16 keys is multiplied with a word of each query.

use super::{Factors, Words};
use crate::ops::attention::cpu::queries::{FEW, Queries, Weights};
use crate::ops::attention::cpu::tile::{Gathered, Next};
use crate::ops::attention::cpu::{Parts, QUERY_LINES, floats_mut, zeroed};
use crate::simd::{LANES, Line, MOST_PARTS, Simd, exp2_of_negative};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Dimensions of keys for each of which a key or value of the next tile but one is asked for.
const KEYS_A_ROW: usize = 4;
/// Dimensions of keys for each of which a token of the next tile is asked for.
const KEYS_A_NEAR_TOKEN: usize = 2;

/// Words whose keys are laid so.
pub(super) trait Columns<S: Simd>: Words<S> {
    /// Words of keys, and those of queries.
    type Keys: Factors<S, Sum = S::Part>;

    /// The words of a query times `scale`.
    fn words(q: &[f32], scale: f32, to: &mut [f32]);
    /// The words of N queries' weights of the first 16 of a tile's tokens, and of the last 16, in two lines for each query.
    /// Returns the sums of both as they are rounded.
    fn weights<const N: usize>(weights: &[[S::F; 2]; N], to: &mut [Line]) -> [S::F; N];
}

/// Sums of a query's products with the first 16 keys of a tile, and with the last 16, part by part.
type KeySums<S> = [[<S as Simd>::Part; 2]; MOST_PARTS];

/// As [`Words::query`].
#[inline(always)]
pub(super) fn query<S: Simd, W: Columns<S>>(q: &[f32], scale: f32, query: usize, all: &mut [MaybeUninit<Line>]) {
    let to = &mut all[query * QUERY_LINES..][..W::lines(q.len())];
    W::words(q, scale, floats_mut(zeroed(to)));
}

/// As [`Words::weight`].
#[inline(always)]
pub(super) fn weight(query: usize, word: usize) -> usize {
    2 * query * LANES + word
}

/// As [`Words::weigh_each`].
#[inline(always)]
pub(super) fn weigh<S: Simd, W: Columns<S>, const N: usize>(
    seen: &mut Queries<'_>,
    at: usize,
    parts: Option<&Parts>,
    tile: &mut Gathered<'_, '_, W::Element>,
    weights: &mut Weights,
) {
    // The sums of few queries fit the registers in all parts at once, and few would wait for each other.
    match (S::PARTS, N) {
        (1, _) => score::<S, W, N, 0, 1>(seen, at, &tile.keys, weights, &mut tile.next),
        (_, ..=FEW) => score::<S, W, N, 0, 2>(seen, at, &tile.keys, weights, &mut tile.next),
        _ => {
            score::<S, W, N, 0, 1>(seen, at, &tile.keys, weights, &mut tile.next);
            score::<S, W, N, 1, 2>(seen, at, &tile.keys, weights, &mut tile.next);
        }
    }
    let mut scores = [[S::splat(0.0); 2]; N];
    let mut greater = [S::splat(0.0); N];
    for i in 0..N {
        for half in 0..2 {
            scores[i][half] = S::load(&weights.scores[2 * i + half].0);
        }
        if let Some(parts) = parts {
            scores[i] = within::<S>(scores[i], &parts[(at + i) / seen.group]);
        }
        greater[i] = S::max(scores[i][0], scores[i][1]);
    }
    let found = floats_mut(&mut seen.greatest)[at..].first_chunk_mut().expect("room for 16 behind any query");
    let before = S::load(found);
    let greatest = S::max(S::greatest_of_each(greater), before);
    S::store(greatest, found);
    weights.fade = S::any_less(before, greatest);
    let Line(faded) = &mut weights.faded[0];
    S::store(exp2_of_negative::<S>(S::sub(before, greatest)), faded);
    let mut powers = [[greatest; 2]; N];
    for i in 0..N {
        let greatest = S::splat(found[i]);
        for half in 0..2 {
            powers[i][half] = exp2_of_negative::<S>(S::sub(scores[i][half], greatest));
        }
    }
    let sums = W::weights(&powers, &mut weights.words);
    for (i, Line(total)) in seen.totals[at..at + N].iter_mut().enumerate() {
        S::store(S::fma(S::load(total), S::splat(faded[i]), sums[i]), total);
    }
}

/// Scores of N queries with parts FROM to TO of the 32 keys of a tile.
#[inline(always)]
fn score<S: Simd, W: Columns<S>, const N: usize, const FROM: usize, const TO: usize>(
    seen: &Queries<'_>,
    at: usize,
    keys: &[&[Line]; 2],
    out: &mut Weights,
    next: &mut Next<'_, W::Element>,
) {
    let words = seen.head_dim.div_ceil(W::Keys::NUMBERS);
    let mut sums: [KeySums<S>; N] = [[[S::splat_part(0.0); 2]; MOST_PARTS]; N];
    assert!(words <= seen.lines * LANES && (at + N) * QUERY_LINES <= seen.q.len());
    let q = seen.q[at * QUERY_LINES..].as_ptr().cast::<f32>();
    for (word, (low, high)) in keys[0][..words].iter().zip(&keys[1][..words]).enumerate() {
        if word % (KEYS_A_ROW / W::Keys::NUMBERS) == 0 {
            next.ask_far::<S>(1);
        }
        if W::ASKS_NEAR && word % (KEYS_A_NEAR_TOKEN / W::Keys::NUMBERS).max(1) == 0 {
            next.ask_near::<S>();
        }
        for part in FROM..TO {
            let (low, high) = (W::Keys::load(low, part), W::Keys::load(high, part));
            for i in 0..N {
                // SAFETY: by the assertion, there is such a word of such a query.
                let q = W::Keys::splat(unsafe { *q.add(i * QUERY_LINES * LANES + word) });
                sums[i][part][0] = W::Keys::add_product(low, q, sums[i][part][0]);
                sums[i][part][1] = W::Keys::add_product(high, q, sums[i][part][1]);
            }
        }
    }
    for (sums, to) in sums.iter().zip(out.scores.as_chunks_mut::<2>().0) {
        for part in FROM..TO {
            for half in 0..2 {
                S::store_part(sums[part][half], &mut to[half].0, part);
            }
        }
    }
}

/// Scores with a tile's tokens; with those that are not among `tokens`, those of nothing.
#[inline(always)]
fn within<S: Simd>(mut scores: [S::F; 2], tokens: &Range<usize>) -> [S::F; 2] {
    let (start, end) = (S::splat(tokens.start as f32), S::splat(tokens.end as f32));
    let nothing = S::splat(f32::NEG_INFINITY);
    for (half, scores) in scores.iter_mut().enumerate() {
        let token = S::load(&std::array::from_fn(|lane| (half * LANES + lane) as f32));
        *scores = S::select_less(token, start, nothing, *scores);
        *scores = S::select_less(token, end, *scores, nothing);
    }
    scores
}
