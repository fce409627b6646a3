//! The online softmaxes of a block's queries.

use super::tile::{Gathered, Next, Source, TILE, Values};
use super::words::{Factors, NOTES, WeightWords, Words};
use super::{MOST_BLOCKS, Parts, QUERY_LINES, floats};
use crate::ops::attention::{AttentionShape, MAX_GROUP};
use crate::simd::int8::BLOCK;
use crate::simd::{LANES, Line, MOST_PARTS, Simd, exp2_of_negative};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Dimensions of keys for each of which a key or value of the next tile but one is asked for.
const KEYS_A_ROW: usize = 4;
/// The same of tokens' values, which take longer.
const VALUES_A_ROW: usize = 2;

/// Dimensions of keys for each of which a token of the next tile is asked for.
const KEYS_A_NEAR_TOKEN: usize = 2;

/// Queries whose sums fit the registers in all parts at once.
const FEW: usize = 2;
/// Most queries at once, at any level.
const MOST_QUERIES: usize = 8;

/// Sums of a query's products with the first 16 keys of a tile, and with the last 16, part by part.
type KeySums<T> = [[T; 2]; MOST_PARTS];

/// What the softmaxes of the block's queries have seen so far.
pub(super) struct Queries<'a> {
    /// Their words, `QUERY_LINES` for each query, of which as many lines are there as a head has.
    q: &'a [MaybeUninit<Line>],
    /// Greatest score, by query; some more, so that 16 can be read from any on.
    greatest: [f32; MAX_GROUP + LANES],
    /// Sum of 2^(score - greatest), by query, in lanes.
    totals: &'a mut [Line],
    /// Sum of 2^(score - greatest) * value, `QUERY_LINES` for each query, of which as many are in use as a head has.
    sums: &'a mut [Line],
    /// Lines of a query.
    lines: usize,
    head_dim: usize,
    /// Queries of a row.
    group: usize,
}

impl<'a> Queries<'a> {
    /// Queries' words `q`, scaled, `QUERY_LINES` for each; `sums` and `totals`, one for each query, must be 0.
    #[inline(always)]
    pub fn new<S: Simd, W: Words<S>>(
        shape: &AttentionShape,
        q: &'a [MaybeUninit<Line>],
        sums: &'a mut [Line],
        totals: &'a mut [Line],
    ) -> Self {
        let (head_dim, lines) = (shape.head_dim, W::lines(shape.head_dim));
        let greatest = [f32::NEG_INFINITY; MAX_GROUP + LANES];
        Self { q, greatest, totals, sums, lines, head_dim, group: shape.group() }
    }

    /// Takes in a tile for the queries of rows `rows`, each of which attends to its part of it, or else to all of it.
    #[inline(always)]
    pub fn attend<S: Simd, W: Words<S>>(
        &mut self,
        rows: Range<usize>,
        parts: Option<&Parts>,
        tile: &mut Gathered<'_, '_, W::Element>,
        weights: &mut Weights,
    ) {
        let (mut at, end) = (rows.start * self.group, rows.end * self.group);
        while at < end {
            let left = end - at;
            at += match left.div_ceil(left.div_ceil(S::QUERIES)) {
                1 => self.several::<S, W, 1>(at, parts, tile, weights),
                2 => self.several::<S, W, 2>(at, parts, tile, weights),
                3 => self.several::<S, W, 3>(at, parts, tile, weights),
                4 => self.several::<S, W, 4>(at, parts, tile, weights),
                5 => self.several::<S, W, 5>(at, parts, tile, weights),
                6 => self.several::<S, W, 6>(at, parts, tile, weights),
                7 => self.several::<S, W, 7>(at, parts, tile, weights),
                _ => self.several::<S, W, 8>(at, parts, tile, weights),
            };
        }
    }

    /// Takes in a tile for N queries from `at` on. Returns N.
    #[inline(always)]
    fn several<S: Simd, W: Words<S>, const N: usize>(
        &mut self,
        at: usize,
        parts: Option<&Parts>,
        tile: &mut Gathered<'_, '_, W::Element>,
        weights: &mut Weights,
    ) -> usize {
        // Larger groups than a level has registers for would only be dead code.
        if N > S::QUERIES {
            return N;
        }
        // The sums of few queries fit the registers in all parts at once, and few would wait for each other.
        match (S::PARTS, N) {
            (1, _) => self.score::<S, W, N, 0, 1>(at, &tile.keys, tile.scales[0], weights, &mut tile.next),
            (_, ..=FEW) => self.score::<S, W, N, 0, 2>(at, &tile.keys, tile.scales[0], weights, &mut tile.next),
            _ => {
                self.score::<S, W, N, 0, 1>(at, &tile.keys, tile.scales[0], weights, &mut tile.next);
                self.score::<S, W, N, 1, 2>(at, &tile.keys, tile.scales[0], weights, &mut tile.next);
            }
        }
        // What any of them attends to: a weight of 0 adds nothing to a sum, as long as values are finite.
        let (mut start, mut end) = (0, TILE);
        if let Some(parts) = parts {
            (start, end) = (TILE, 0);
            for i in 0..N {
                let part = &parts[(at + i) / self.group];
                (start, end) = (start.min(part.start), end.max(part.end));
            }
        }
        self.weigh::<S, W, N>(at, parts, tile.scales[1], weights);
        // Two words at a time, which leaves less to do around them.
        let words = start / W::Values::NUMBERS / 2..end.div_ceil(W::Values::NUMBERS).div_ceil(2);
        match &tile.values {
            Values::Kept(values) => self.add_values::<S, W, _, N>(at, weights, words, values, &mut tile.next),
            Values::Stored(_) if N > W::FEW => unreachable!("only few queries read values as they are stored"),
            Values::Stored(values) => self.add_values::<S, W, _, N>(at, weights, words, values, &mut tile.next),
        }
        tile.next.ask_far::<S>(2 * TILE);
        N
    }

    /// Scores of N queries with parts FROM to TO of the 32 keys of a tile.
    #[inline(always)]
    fn score<S: Simd, W: Words<S>, const N: usize, const FROM: usize, const TO: usize>(
        &self,
        at: usize,
        keys: &[&[Line]; 2],
        scales: &[Line],
        out: &mut Weights,
        next: &mut Next<'_, W::Element>,
    ) {
        let words = self.head_dim.div_ceil(W::Keys::NUMBERS);
        if !W::SCALED {
            let sums = self.products::<S, W, N, FROM, TO>((at, 0), [0.0; N], keys, 0..words, next);
            for (sums, to) in sums.iter().zip(&mut out.scores) {
                for part in FROM..TO {
                    for half in 0..2 {
                        S::store_part(W::Keys::total(sums[part][half], part), &mut to[half].0, part);
                    }
                }
            }
            return;
        }
        let zero = S::splat_part(0.0);
        let (low_scales, high_scales) = scales.split_at(scales.len() / 2);
        for (block, scales) in low_scales.iter().zip(high_scales).enumerate() {
            let (len, start) = (BLOCK / W::Keys::NUMBERS, block * BLOCK / W::Keys::NUMBERS);
            let first = block * (len + NOTES);
            assert!(first + len + NOTES <= self.lines * LANES && (at + N) * QUERY_LINES <= self.q.len());
            let notes = self.q[at * QUERY_LINES..].as_ptr().cast::<f32>().wrapping_add(first + len);
            let mut starts = [0.0; N];
            for i in 0..N {
                // SAFETY: by the assertion, there are such words of such a query.
                starts[i] = unsafe { *notes.add(i * QUERY_LINES * LANES) };
            }
            let words = start..words.min(start + len);
            let sums = self.products::<S, W, N, FROM, TO>((at, first), starts, keys, words, next);
            for part in FROM..TO {
                let scales = [S::load_part(&scales.0.0, part), S::load_part(&scales.1.0, part)];
                for i in 0..N {
                    // SAFETY: as above.
                    let scale = S::splat_part(unsafe { *notes.add(i * QUERY_LINES * LANES + 1) });
                    for half in 0..2 {
                        let to = &mut out.scores[i][half].0;
                        let before = if block == 0 { zero } else { S::load_part(to, part) };
                        let both = S::fma_part(scales[half], scale, zero);
                        S::store_part(S::fma_part(W::Keys::total(sums[i][part][half], part), both, before), to, part);
                    }
                }
            }
        }
    }

    /// Sums of some words' products of 32 keys, as above, and N queries, whose words are behind `first` others, and where
    /// the sums start.
    #[inline(always)]
    fn products<S: Simd, W: Words<S>, const N: usize, const FROM: usize, const TO: usize>(
        &self,
        (at, first): (usize, usize),
        starts: [f32; N],
        keys: &[&[Line]; 2],
        words: Range<usize>,
        next: &mut Next<'_, W::Element>,
    ) -> [KeySums<<W::Keys as Factors<S>>::Sum>; N] {
        let mut sums = [[[W::Keys::start(0.0); 2]; MOST_PARTS]; N];
        for i in 0..N {
            for part in FROM..TO {
                sums[i][part] = [W::Keys::start(starts[i]); 2];
            }
        }
        assert!(first + words.len() <= self.lines * LANES && (at + N) * QUERY_LINES <= self.q.len());
        let q = self.q[at * QUERY_LINES..].as_ptr().cast::<f32>().wrapping_add(first);
        for (word, (low, high)) in keys[0][words.clone()].iter().zip(&keys[1][words]).enumerate() {
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
        sums
    }

    /// Turns the scores of N queries with a tile's tokens into weights of those that they attend to.
    #[inline(always)]
    fn weigh<S: Simd, W: Words<S>, const N: usize>(
        &mut self,
        at: usize,
        parts: Option<&Parts>,
        scales: &[Line],
        weights: &mut Weights,
    ) {
        let mut scores = [[S::splat(0.0); 2]; N];
        let mut greater = [S::splat(0.0); N];
        for i in 0..N {
            for half in 0..2 {
                scores[i][half] = S::load(&weights.scores[i][half].0);
            }
            if let Some(parts) = parts {
                scores[i] = within::<S>(scores[i], &parts[(at + i) / self.group]);
            }
            greater[i] = S::max(scores[i][0], scores[i][1]);
        }
        let seen = self.greatest[at..].first_chunk_mut().expect("room for 16 behind any query");
        let before = S::load(seen);
        let greatest = S::max(S::greatest_of_each(greater), before);
        S::store(greatest, seen);
        S::store(exp2_of_negative::<S>(S::sub(before, greatest)), &mut weights.faded.0);
        let mut found = [[greatest; 2]; N];
        for i in 0..N {
            let greatest = S::splat(seen[i]);
            for half in 0..2 {
                found[i][half] = exp2_of_negative::<S>(S::sub(scores[i][half], greatest));
            }
        }
        let sums = W::weights(&found, scales, &mut weights.words);
        for (i, Line(total)) in self.totals[at..at + N].iter_mut().enumerate() {
            S::store(S::fma(S::load(total), S::splat(weights.faded.0[i]), sums[i]), total);
        }
    }

    /// `sums = sums * faded + sum of weight * value` for N queries, by ascending word.
    #[inline(always)]
    fn add_values<S: Simd, W: Words<S>, V: Source<S, W>, const N: usize>(
        &mut self,
        at: usize,
        weights: &Weights,
        words: Range<usize>,
        values: &V,
        next: &mut Next<'_, W::Element>,
    ) {
        let mut line = 0;
        while line < self.lines {
            let words = words.clone();
            // As many sums as the registers take.
            line += match (N, self.lines - line, S::PARTS) {
                (1, 4.., 1) => self.add_lines::<S, W, V, N, 4, 0, 1>(at, line, weights, words, values, next),
                (1, 4.., _) => self.add_lines::<S, W, V, N, 4, 0, 2>(at, line, weights, words, values, next),
                (_, 2.., 1) => self.add_lines::<S, W, V, N, 2, 0, 1>(at, line, weights, words, values, next),
                (..=FEW, 2.., _) => self.add_lines::<S, W, V, N, 2, 0, 2>(at, line, weights, words, values, next),
                (_, 2.., _) => {
                    self.add_lines::<S, W, V, N, 2, 0, 1>(at, line, weights, words.clone(), values, next);
                    self.add_lines::<S, W, V, N, 2, 1, 2>(at, line, weights, words, values, next)
                }
                (.., 1) => self.add_lines::<S, W, V, N, 1, 0, 1>(at, line, weights, words, values, next),
                _ => {
                    self.add_lines::<S, W, V, N, 1, 0, 1>(at, line, weights, words.clone(), values, next);
                    self.add_lines::<S, W, V, N, 1, 1, 2>(at, line, weights, words, values, next)
                }
            };
        }
    }

    /// Parts FROM to TO of B lines of that. Returns B.
    #[inline(always)]
    fn add_lines<
        S: Simd,
        W: Words<S>,
        V: Source<S, W>,
        const N: usize,
        const B: usize,
        const FROM: usize,
        const TO: usize,
    >(
        &mut self,
        at: usize,
        line: usize,
        weights: &Weights,
        words: Range<usize>,
        values: &V,
        next: &mut Next<'_, W::Element>,
    ) -> usize {
        assert!(words.end <= TILE / 2);
        values.check(2 * words.end, line + B - 1);
        let block = |b: usize| if W::SCALED { line / 2 + b / 2 } else { 0 };
        let zero = S::splat_part(0.0);
        let mut sums = [[[W::Values::resume(zero); MOST_PARTS]; B]; N];
        let seen = &mut self.sums[at * QUERY_LINES + line..][..(N - 1) * QUERY_LINES + B];
        // What a query's sums so far have faded to.
        let faded = |seen: &[Line], (i, b): (usize, usize), part: usize| {
            // SAFETY: `seen` goes up to this line of the last query.
            let sum = unsafe { &seen.get_unchecked(i * QUERY_LINES + b).0 };
            S::fma_part(S::load_part(sum, part), S::splat_part(weights.faded.0[i]), zero)
        };
        for i in 0..N {
            for b in 0..B {
                for part in FROM..TO {
                    sums[i][b][part] = W::Values::resume(faded(seen, (i, b), part));
                }
            }
        }
        for two in words {
            next.ask_far::<S>(2 * W::Values::NUMBERS / VALUES_A_ROW);
            for word in 2 * two..2 * two + 2 {
                let mut loaded = [[W::Values::splat(0.0); MOST_PARTS]; B];
                for b in 0..B {
                    for part in FROM..TO {
                        // SAFETY: `check` passed for the last word and the last line.
                        loaded[b][part] = unsafe { values.part(word, (line, b), part) };
                    }
                }
                for i in 0..N {
                    for b in 0..B {
                        let at = block(b) * LANES + word;
                        // SAFETY: by the assertion, the word is one of the tile's 32 at most, and the block one of a head's.
                        let weight = W::Values::splat(unsafe { *floats(&weights.words[i]).get_unchecked(at) });
                        for part in FROM..TO {
                            sums[i][b][part] = W::Values::add_product(weight, loaded[b][part], sums[i][b][part]);
                        }
                    }
                }
            }
        }
        for i in 0..N {
            for b in 0..B {
                // SAFETY (both): as above.
                let scale =
                    unsafe { *floats(&weights.words[i]).get_unchecked(block(b) * LANES + TILE / W::Values::NUMBERS) };
                for part in FROM..TO {
                    let mut sum = W::Values::total(sums[i][b][part], part);
                    if W::SCALED {
                        sum = S::fma_part(sum, S::splat_part(scale), faded(seen, (i, b), part));
                    }
                    S::store_part(sum, unsafe { &mut seen.get_unchecked_mut(i * QUERY_LINES + b).0 }, part);
                }
            }
        }
        B
    }

    /// The attention of one query, `[head_dim]`.
    #[inline(always)]
    pub fn finish<S: Simd, W: Words<S>>(&mut self, query: usize, out: &mut [f32]) {
        let share = S::splat(1.0 / S::sum(S::load(&self.totals[query].0)));
        let sums = &mut self.sums[query * QUERY_LINES..][..self.lines];
        for Line(sum) in &mut *sums {
            S::store(S::mul(S::load(sum), share), sum);
        }
        W::dims(sums, out);
    }
}

/// Queries' scores with a tile's 32 tokens, their weights, and what the queries' sums so far fade by.
pub(super) struct Weights {
    scores: [[Line; 2]; MOST_QUERIES],
    words: [WeightWords; MOST_QUERIES],
    faded: Line,
}

impl Weights {
    pub fn new() -> Self {
        let zero = Line([0.0; LANES]);
        Self { scores: [[zero; 2]; MOST_QUERIES], words: [[zero; MOST_BLOCKS]; MOST_QUERIES], faded: zero }
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
