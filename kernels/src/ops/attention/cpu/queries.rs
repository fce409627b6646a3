//! The online softmaxes of a block's queries.

use super::tile::{FEW, Gathered, Source, TILE, Values};
use super::{floats, floats_mut};
use crate::ops::attention::{AttentionShape, MAX_GROUP};
use crate::simd::{LANES, Line, MOST_PARTS, Simd, exp};
use std::ops::Range;

/// What the softmaxes of the block's queries have seen so far.
pub(super) struct Queries<'a> {
    /// `[queries, lines]`.
    q: &'a [Line],
    /// Greatest score, by query.
    greatest: [f32; MAX_GROUP],
    /// Sum of exp(score - greatest), by query, in lanes.
    totals: &'a mut [Line],
    /// Sum of exp(score - greatest) * value, `[queries, lines]`.
    sums: &'a mut [Line],
    /// Lines of a head.
    lines: usize,
    head_dim: usize,
    scale: f32,
}

impl<'a> Queries<'a> {
    /// Queries `q`, padded with zeros; `sums` and `totals` must be 0.
    #[inline(always)]
    pub fn new(shape: &AttentionShape, q: &'a [Line], sums: &'a mut [Line], totals: &'a mut [Line]) -> Self {
        let AttentionShape { head_dim, scale, .. } = *shape;
        let greatest = [f32::NEG_INFINITY; MAX_GROUP];
        Self { q, greatest, totals, sums, lines: head_dim.div_ceil(LANES), head_dim, scale }
    }

    /// Takes in tokens `tokens` of a tile, for queries `queries`.
    #[inline(always)]
    pub fn attend<S: Simd>(&mut self, queries: Range<usize>, tokens: Range<usize>, tile: &Gathered<'_>) {
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
    fn several<S: Simd, const N: usize>(&mut self, at: usize, tokens: Range<usize>, tile: &Gathered<'_>) -> usize {
        // Larger groups than a level has registers for would only be dead code.
        if N > S::QUERIES {
            return N;
        }
        let mut weights = Weights { tokens: [[Line([0.0; LANES]); 2]; N], faded: Line([0.0; LANES]) };
        // The sums of few queries fit the registers in all parts at once, and few would wait for each other.
        match (S::PARTS, N) {
            (1, _) => self.score::<S, N, 0, 1>(at, tile, &mut weights),
            (_, ..=FEW) => self.score::<S, N, 0, 2>(at, tile, &mut weights),
            _ => {
                self.score::<S, N, 0, 1>(at, tile, &mut weights);
                self.score::<S, N, 1, 2>(at, tile, &mut weights);
            }
        }
        if tokens != (0..TILE) {
            weights.mask(&tokens);
        }
        self.weigh::<S, N>(at, &mut weights);
        match &tile.values {
            Values::Widened(values) => self.add_values::<S, _, N>(at, &weights, tokens, values),
            // Only few queries come with these.
            Values::Bf16(_) if N > FEW => unreachable!("only few queries read values as stored"),
            Values::Bf16(values) => self.add_values::<S, _, N>(at, &weights, tokens, values),
        }
        N
    }

    /// Scores of N queries with parts FROM to TO of the 32 keys of a tile.
    #[inline(always)]
    fn score<S: Simd, const N: usize, const FROM: usize, const TO: usize>(
        &self,
        at: usize,
        tile: &Gathered<'_>,
        out: &mut Weights<N>,
    ) {
        let mut sums = [[[S::splat_part(0.0); 2]; MOST_PARTS]; N];
        let stride = self.lines * LANES;
        let q = &floats(self.q)[at * stride..(at + N) * stride];
        for (d, (low, high)) in tile.keys[0][..self.head_dim].iter().zip(tile.keys[1]).enumerate() {
            for part in FROM..TO {
                let (low, high) = (S::load_part(&low.0, part), S::load_part(&high.0, part));
                for i in 0..N {
                    // SAFETY: d is below head_dim, which is at most the stride, so this is within the N queries.
                    let q = S::splat_part(unsafe { *q.get_unchecked(i * stride + d) });
                    sums[i][part][0] = S::fma_part(q, low, sums[i][part][0]);
                    sums[i][part][1] = S::fma_part(q, high, sums[i][part][1]);
                }
            }
        }
        for i in 0..N {
            for part in FROM..TO {
                for half in 0..2 {
                    let scaled = S::fma_part(sums[i][part][half], S::splat_part(self.scale), S::splat_part(0.0));
                    S::store_part(scaled, &mut out.tokens[i][half].0, part);
                }
            }
        }
    }

    /// Turns the scores of a tile's tokens into their weights.
    #[inline(always)]
    fn weigh<S: Simd, const N: usize>(&mut self, at: usize, weights: &mut Weights<N>) {
        let mut scores = [[S::splat(0.0); 2]; N];
        for i in 0..N {
            for half in 0..2 {
                scores[i][half] = S::load(&weights.tokens[i][half].0);
            }
            let greatest = self.greatest[at + i].max(S::greatest(S::max(scores[i][0], scores[i][1])));
            weights.faded.0[i] = self.greatest[at + i] - greatest;
            self.greatest[at + i] = greatest;
        }
        S::store(exp::<S>(S::load(&weights.faded.0)), &mut weights.faded.0);
        for i in 0..N {
            let greatest = S::splat(self.greatest[at + i]);
            let low = exp::<S>(S::sub(scores[i][0], greatest));
            let high = exp::<S>(S::sub(scores[i][1], greatest));
            S::store(low, &mut weights.tokens[i][0].0);
            S::store(high, &mut weights.tokens[i][1].0);
            let total = &mut self.totals[at + i].0;
            S::store(S::fma(S::load(total), S::splat(weights.faded.0[i]), S::add(low, high)), total);
        }
    }

    /// `sums = sums * faded + sum of weight * value` for N queries, by ascending token.
    #[inline(always)]
    fn add_values<S: Simd, V: Source, const N: usize>(
        &mut self,
        at: usize,
        weights: &Weights<N>,
        tokens: Range<usize>,
        values: &V,
    ) {
        let mut line = 0;
        while line < self.lines {
            let tokens = tokens.clone();
            // As many sums as the registers take.
            line += match (N, self.lines - line, S::PARTS) {
                (1, 4.., 1) => self.add_lines::<S, V, N, 4, 0, 1>(at, line, weights, tokens, values),
                (1, 4.., _) => self.add_lines::<S, V, N, 4, 0, 2>(at, line, weights, tokens, values),
                (_, 2.., 1) => self.add_lines::<S, V, N, 2, 0, 1>(at, line, weights, tokens, values),
                (..=FEW, 2.., _) => self.add_lines::<S, V, N, 2, 0, 2>(at, line, weights, tokens, values),
                (_, 2.., _) => {
                    self.add_lines::<S, V, N, 2, 0, 1>(at, line, weights, tokens.clone(), values);
                    self.add_lines::<S, V, N, 2, 1, 2>(at, line, weights, tokens, values)
                }
                (.., 1) => self.add_lines::<S, V, N, 1, 0, 1>(at, line, weights, tokens, values),
                _ => {
                    self.add_lines::<S, V, N, 1, 0, 1>(at, line, weights, tokens.clone(), values);
                    self.add_lines::<S, V, N, 1, 1, 2>(at, line, weights, tokens, values)
                }
            };
        }
    }

    /// Parts FROM to TO of B lines of that. Returns B.
    #[inline(always)]
    fn add_lines<S: Simd, V: Source, const N: usize, const B: usize, const FROM: usize, const TO: usize>(
        &mut self,
        at: usize,
        line: usize,
        weights: &Weights<N>,
        tokens: Range<usize>,
        values: &V,
    ) -> usize {
        assert!(tokens.end <= TILE);
        values.check(tokens.end, line + B - 1);
        let zero = S::splat_part(0.0);
        let mut sums = [[[zero; MOST_PARTS]; B]; N];
        for i in 0..N {
            let faded = S::splat_part(weights.faded.0[i]);
            for b in 0..B {
                for part in FROM..TO {
                    let sum = &self.sums[(at + i) * self.lines + line + b].0;
                    sums[i][b][part] = S::fma_part(S::load_part(sum, part), faded, zero);
                }
            }
        }
        for token in tokens {
            let mut loaded = [[zero; MOST_PARTS]; B];
            for b in 0..B {
                for part in FROM..TO {
                    // SAFETY: `check` passed for the last token and the last line.
                    loaded[b][part] = unsafe { values.part::<S>(token, line + b, part) };
                }
            }
            for i in 0..N {
                // SAFETY: by the assertion, the token is one of the tile's 32.
                let weight = S::splat_part(unsafe { *floats(&weights.tokens[i]).get_unchecked(token) });
                for b in 0..B {
                    for part in FROM..TO {
                        sums[i][b][part] = S::fma_part(weight, loaded[b][part], sums[i][b][part]);
                    }
                }
            }
        }
        for i in 0..N {
            for b in 0..B {
                for part in FROM..TO {
                    let sum = &mut self.sums[(at + i) * self.lines + line + b].0;
                    S::store_part(sums[i][b][part], sum, part);
                }
            }
        }
        B
    }

    /// The attention of one query, `[head_dim]`.
    #[inline(always)]
    pub fn finish<S: Simd>(&self, query: usize, out: &mut [f32]) {
        let total = S::sum(S::load(&self.totals[query].0));
        for (out, sum) in out.iter_mut().zip(floats(&self.sums[query * self.lines..][..self.lines])) {
            *out = sum / total;
        }
    }
}

/// N queries' scores with a tile's 32 tokens, then their weights, and what the queries' sums so far fade by.
struct Weights<const N: usize> {
    tokens: [[Line; 2]; N],
    faded: Line,
}

impl<const N: usize> Weights<N> {
    /// Scores of what is not among `tokens` become those of nothing.
    #[inline(always)]
    fn mask(&mut self, tokens: &Range<usize>) {
        for scores in &mut self.tokens {
            for (token, score) in floats_mut(scores).iter_mut().enumerate() {
                if !tokens.contains(&token) {
                    *score = f32::NEG_INFINITY;
                }
            }
        }
    }
}
