//! The online softmaxes of a block's queries.

use super::tile::{Gathered, Next, Source, TILE, Values};
use super::words::{Factors, Words};
use super::{MOST_BLOCKS, Parts, QUERY_LINES, floats};
use crate::ops::attention::{AttentionShape, MAX_GROUP};
use crate::simd::{LANES, Line, MOST_PARTS, Simd};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Dimensions of tokens' values for each of which a key or value of the next tile but one is asked for.
const VALUES_A_ROW: usize = 2;

/// Queries whose sums fit the registers in all parts at once.
pub(super) const FEW: usize = 2;
/// Most queries at once, at any level.
pub(super) const MOST_QUERIES: usize = 8;

/// What the softmaxes of the block's queries have seen so far.
pub(super) struct Queries<'a> {
    /// Their words, as [`Words::query`] wrote them.
    pub q: &'a [MaybeUninit<Line>],
    /// Greatest scores, as [`Words::weigh`] keeps them; at first minus infinity.
    pub greatest: [Line; MAX_GROUP / 4],
    /// Sums of 2^(score - greatest), as [`Words::weigh`] keeps them.
    pub totals: &'a mut [Line],
    /// Sum of 2^(score - greatest) * value, `QUERY_LINES` for each query, of which as many are in use as a head has.
    sums: &'a mut [Line],
    /// Lines of a query's sums.
    pub lines: usize,
    pub head_dim: usize,
    /// Queries of a row.
    pub group: usize,
}

impl<'a> Queries<'a> {
    /// Queries' words `q`, scaled; `sums`, `QUERY_LINES` for each query, and `totals`, one for each, must be 0.
    #[inline(always)]
    pub fn new<S: Simd, W: Words<S>>(
        shape: &AttentionShape,
        q: &'a [MaybeUninit<Line>],
        sums: &'a mut [Line],
        totals: &'a mut [Line],
    ) -> Self {
        let (head_dim, lines) = (shape.head_dim, W::lines(shape.head_dim));
        let greatest = [Line([f32::NEG_INFINITY; LANES]); MAX_GROUP / 4];
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
            let count = W::at_once(at, end);
            W::weigh(self, at..at + count, parts, tile, weights);
            at += match count {
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
        if N > W::MOST_QUERIES {
            return N;
        }
        W::weigh_each::<N>(self, at, parts, tile, weights);
        if weights.fade {
            self.fade::<S, W, N>(at, weights);
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

    /// `sums = sums * faded` for N queries.
    #[inline(always)]
    fn fade<S: Simd, W: Words<S>, const N: usize>(&mut self, at: usize, weights: &Weights) {
        let sums = self.sums[at * QUERY_LINES..].chunks_mut(QUERY_LINES).take(N);
        for (i, sums) in sums.enumerate() {
            let faded = S::splat(floats(&weights.faded)[W::faded(i) + W::skipped(at)]);
            for Line(sum) in &mut sums[..self.lines] {
                S::store(S::mul(S::load(sum), faded), sum);
            }
        }
    }

    /// `sums += weight * value` for N queries, by ascending word.
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
        assert!(2 * words.end * W::Values::NUMBERS <= TILE);
        values.check(2 * words.end, line + B - 1);
        let block = |b: usize| if W::SCALED { line / 2 + b / 2 } else { 0 };
        let skipped = W::skipped(at);
        let zero = S::splat_part(0.0);
        let mut sums = [[[W::Values::resume(zero); MOST_PARTS]; B]; N];
        let seen = &mut self.sums[at * QUERY_LINES + line..][..(N - 1) * QUERY_LINES + B];
        let before = |seen: &[Line], (i, b): (usize, usize), part: usize| {
            // SAFETY: `seen` goes up to this line of the last query.
            S::load_part(unsafe { &seen.get_unchecked(i * QUERY_LINES + b).0 }, part)
        };
        for i in 0..N {
            for b in 0..B {
                for part in FROM..TO {
                    sums[i][b][part] = W::Values::resume(before(seen, (i, b), part));
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
                        let at = W::weight(i, block(b), word) + skipped;
                        // SAFETY: by the assertion, the word is one of the tile's, and the block one of a head's.
                        let weight = W::Values::splat(unsafe { *floats(&weights.words).get_unchecked(at) });
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
                let scale = if W::SCALED {
                    unsafe { *floats(&weights.scales).get_unchecked(W::scale(i, block(b)) + skipped) }
                } else {
                    1.0
                };
                for part in FROM..TO {
                    let mut sum = W::Values::total(sums[i][b][part], part);
                    if W::SCALED {
                        sum = S::fma_part(sum, S::splat_part(scale), before(seen, (i, b), part));
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
        let share = S::splat(1.0 / W::total(self.totals, query));
        let sums = &mut self.sums[query * QUERY_LINES..][..self.lines];
        for Line(sum) in &mut *sums {
            S::store(S::mul(S::load(sum), share), sum);
        }
        W::dims(sums, out);
    }
}

/// What [`Words::weigh`] finds of the queries that take in a tile at once.
pub(super) struct Weights {
    /// Their scores with the tile's 32 tokens.
    pub scores: [Line; 2 * MOST_QUERIES],
    /// The words of their weights.
    pub words: [Line; WEIGHT_LINES],
    /// What these are times, where words are scaled.
    pub scales: [Line; 2 * MOST_BLOCKS],
    /// The inverse of that: what the weights were times to be words.
    pub raised: [Line; 2 * MOST_BLOCKS],
    /// Scales of the tile's keys and values, of four tokens a line, block by block, where they have any.
    pub key_scales: [Line; MOST_BLOCKS * TILE / 4],
    pub value_scales: [Line; MOST_BLOCKS * TILE / 4],
    /// What the queries' sums so far fade by.
    pub faded: [Line; 2],
    /// Whether any of them do.
    pub fade: bool,
}

/// Lines of words of weights: four of each block of values, or two of each query.
const WEIGHT_LINES: usize = if MOST_BLOCKS > MOST_QUERIES / 2 { 4 * MOST_BLOCKS } else { 2 * MOST_QUERIES };

impl Weights {
    pub fn new() -> Self {
        let zero = Line([0.0; LANES]);
        Self {
            scores: [zero; 2 * MOST_QUERIES],
            words: [zero; WEIGHT_LINES],
            scales: [zero; 2 * MOST_BLOCKS],
            raised: [zero; 2 * MOST_BLOCKS],
            key_scales: [zero; MOST_BLOCKS * TILE / 4],
            value_scales: [zero; MOST_BLOCKS * TILE / 4],
            faded: [zero; 2],
            fade: false,
        }
    }
}
