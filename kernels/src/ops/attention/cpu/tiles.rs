//! bf16 keys and values by matrix instructions (AMX): up to 16 queries at once.
//!
//! A tile's pairs of keys lie as one operand of a multiplication as they are, and so do its pairs of values; queries and
//! weights are rows of the other. Scores of up to 16 queries with 16 keys take as long as those of one. A score is one sum
//! over ascending steps of 32 dimensions, a tile's weighted values are one sum over its 32 tokens (the order within a
//! step is the processor's, see `simd::amx`), whatever else is multiplied at once.

use super::queries::{Multiply, Parts, Queries, Weights};
use super::tile::{Gathered, SOME, TILE, Values};
use super::words::Pairs;
use super::{AttendBlock, MOST_PADDING};
use crate::simd::amx::Tiles;
use crate::simd::{Avx512, LANES, Line, Simd};
use std::ops::Range;

/// The lanes of the level, with the bf16 that a processor with tiles has.
type Lanes = Avx512<true>;

/// Most rows of a tile, and queries at once.
const ROWS: usize = 16;
/// Bytes of a line.
const LINE: usize = size_of::<Line>();
/// Lines of sums that are multiplied at once.
const SUMS: usize = 4;

/// Computes a block with bf16 keys and values.
///
/// # Safety
/// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
pub(super) unsafe fn attend(block: AttendBlock<'_>) {
    let count = block.queries();
    let rows = count.div_ceil(count.div_ceil(ROWS));
    let (by_query, words) = ((rows, LINE), (ROWS, LINE));
    // Tiles 0 to 3 are sums, 4 and 5 queries or weights, 6 and 7 keys or values.
    let shapes = [by_query, by_query, by_query, by_query, by_query, by_query, words, words];
    // SAFETY: the level is what the caller says.
    let tiles = unsafe { Tiles::new(shapes) };
    let sums = [[Line([0.0; LANES]); ROWS]; SUMS];
    block.attend::<Lanes, Pairs, _>(Matrices { tiles, rows, weights: Weights::new(), sums });
}

struct Matrices {
    tiles: Tiles,
    /// Most queries at once.
    rows: usize,
    weights: Weights<ROWS>,
    /// Sums of a tile's weighted values, line by line.
    sums: [[Line; ROWS]; SUMS],
}

impl Multiply<Lanes, Pairs> for Matrices {
    const MOST_STORED: usize = 0;
    const PADDING: usize = MOST_PADDING;
    const ASKS_TWICE: bool = true;

    #[inline(always)]
    fn attend(&mut self, queries: &mut Queries<'_>, which: Range<usize>, parts: &Parts, tile: &mut Gathered<'_, u16>) {
        if which.is_empty() {
            return;
        }
        let each = which.len().div_ceil(which.len().div_ceil(self.rows));
        for at in which.clone().step_by(each) {
            let count = each.min(which.end - at);
            self.score(queries, at, tile);
            tile.next.ask::<Lanes>(SOME);
            queries.weigh::<Lanes, Pairs, ROWS>(at, count, parts, &mut self.weights);
            tile.next.ask::<Lanes>(SOME);
            self.add_values(queries, at, count, tile);
        }
        tile.next.ask::<Lanes>(TILE);
    }
}

impl Matrices {
    /// Scores of the queries from `at` on with a tile's keys.
    #[inline(always)]
    fn score(&mut self, queries: &Queries<'_>, at: usize, tile: &Gathered<'_, u16>) {
        let tiles = &self.tiles;
        let q = &queries.q[at * queries.lines..(at + self.rows) * queries.lines];
        let [low, high] = tile.keys.map(|keys| keys.as_chunks::<LANES>().0);
        tiles.zero::<0>();
        tiles.zero::<1>();
        for (dims, (low, high)) in low.iter().zip(high).enumerate() {
            // SAFETY: there are so many queries, a line of each for 32 dimensions; so many dimensions of keys are 16 lines.
            unsafe {
                tiles.load::<4>(q[dims..].as_ptr().cast(), queries.lines * LINE);
                tiles.load::<6>(low.as_ptr().cast(), LINE);
                tiles.multiply_bf16::<0, 4, 6>();
                tiles.load::<7>(high.as_ptr().cast(), LINE);
                tiles.multiply_bf16::<1, 4, 7>();
            }
        }
        let tokens = self.weights.tokens.as_mut_ptr().cast::<Line>();
        // SAFETY: there are lines for 16 queries, two for each.
        unsafe {
            tiles.store::<0>(tokens.cast(), 2 * LINE);
            tiles.store::<1>(tokens.add(1).cast(), 2 * LINE);
        }
    }

    /// Adds a tile's weighted values to the sums of `count` queries from `at` on.
    #[inline(always)]
    fn add_values(&mut self, queries: &mut Queries<'_>, at: usize, count: usize, tile: &mut Gathered<'_, u16>) {
        let Values::Kept(values) = &tile.values else { unreachable!("values are kept as words") };
        let lines = queries.lines;
        assert!(values.lines.len() == ROWS * lines && lines.is_multiple_of(2));
        // SAFETY: weights lie as queries' scores did, in the first line of two.
        unsafe { self.tiles.load::<5>(self.weights.tokens.as_ptr().cast(), 2 * LINE) };
        for line in (0..lines).step_by(SUMS) {
            let sums = (lines - line).min(SUMS);
            // SAFETY: words have so many lines, of which these are some.
            unsafe {
                self.sum::<0, 6>(&values.lines[line..], lines);
                self.sum::<1, 7>(&values.lines[line + 1..], lines);
                if sums == SUMS {
                    self.sum::<2, 6>(&values.lines[line + 2..], lines);
                    self.sum::<3, 7>(&values.lines[line + 3..], lines);
                }
            }
            for i in 0..count {
                let faded = Lanes::splat(self.weights.faded.0[i]);
                let to = &mut queries.sums[(at + i) * lines + line..][..sums];
                for (Line(to), sums) in to.iter_mut().zip(&self.sums) {
                    Lanes::store(Lanes::fma(Lanes::load(to), faded, Lanes::load(&sums[i].0)), to);
                }
            }
            tile.next.ask::<Lanes>(SOME);
        }
    }

    /// Line T of the sums, from the first word's line of values on, which become tile V.
    ///
    /// # Safety
    /// There must be a line for each of 16 words, `lines` apart.
    #[inline(always)]
    unsafe fn sum<const T: u8, const V: u8>(&mut self, values: &[Line], lines: usize) {
        let sums = &mut self.sums[usize::from(T)];
        self.tiles.zero::<T>();
        // SAFETY: by this function's contract; there are lines for 16 queries.
        unsafe {
            self.tiles.load::<V>(values.as_ptr().cast(), lines * LINE);
            self.tiles.multiply_bf16::<T, 5, V>();
            self.tiles.store::<T>(sums.as_mut_ptr().cast(), LINE);
        }
    }
}
