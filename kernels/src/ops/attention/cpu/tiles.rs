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
use std::arch::x86_64::*;
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
            self.weigh(queries, at, count, parts);
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

    /// Turns the scores of `count` queries from `at` on into weights of the tokens that they attend to.
    #[inline(always)]
    fn weigh(&mut self, queries: &mut Queries<'_>, at: usize, count: usize, parts: &Parts) {
        for i in 0..count {
            self.weights.mask(i, &parts[(at + i) / queries.group]);
        }
        let Weights { tokens, faded } = &mut self.weights;
        // Of queries that are not there, anything.
        let mut scores = [Lanes::splat(0.0); ROWS];
        for i in 0..ROWS {
            scores[i] = Lanes::max(Lanes::load(&tokens[i][0].0), Lanes::load(&tokens[i][1].0));
        }
        let (mut before, mut greatest) = (Line([0.0; LANES]), Line([0.0; LANES]));
        before.0[..count].copy_from_slice(&queries.greatest[at..at + count]);
        let most = Lanes::max(Lanes::load(&before.0), greatest_of_each(scores));
        Lanes::store(most, &mut greatest.0);
        Lanes::store(exp2_for_bf16(Lanes::sub(Lanes::load(&before.0), most)), &mut faded.0);
        queries.greatest[at..at + count].copy_from_slice(&greatest.0[..count]);
        for i in 0..count {
            let greatest = Lanes::splat(greatest.0[i]);
            let low = exp2_for_bf16(Lanes::sub(Lanes::load(&tokens[i][0].0), greatest));
            let high = exp2_for_bf16(Lanes::sub(Lanes::load(&tokens[i][1].0), greatest));
            let sum = round(low, high, &mut tokens[i][0]);
            let total = &mut queries.totals[at + i].0;
            Lanes::store(Lanes::fma(Lanes::load(total), Lanes::splat(faded.0[i]), sum), total);
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

/// The greatest lane of each vector, in lanes.
#[inline(always)]
fn greatest_of_each(v: [__m512; LANES]) -> __m512 {
    let mut fours = [Lanes::splat(0.0); 4];
    for (four, v) in fours.iter_mut().zip(v.as_chunks().0) {
        *four = greatest_of_four(v);
    }
    greatest_of_quarters(greatest_of_quarters(fours[0], fours[1]), greatest_of_quarters(fours[2], fours[3]))
}

/// In each quarter, the greatest lane of that quarter of each vector.
#[inline(always)]
fn greatest_of_four(v: &[__m512; 4]) -> __m512 {
    // SAFETY: called only inside `attend`, so the processor has AVX-512.
    unsafe {
        let a = _mm512_max_ps(_mm512_unpacklo_ps(v[0], v[1]), _mm512_unpackhi_ps(v[0], v[1]));
        let b = _mm512_max_ps(_mm512_unpacklo_ps(v[2], v[3]), _mm512_unpackhi_ps(v[2], v[3]));
        _mm512_max_ps(_mm512_shuffle_ps::<0x44>(a, b), _mm512_shuffle_ps::<0xee>(a, b))
    }
}

/// The greater of the first and second, and of the third and fourth quarters of `a`, then those of `b`.
#[inline(always)]
fn greatest_of_quarters(a: __m512, b: __m512) -> __m512 {
    // SAFETY: as above.
    unsafe { _mm512_max_ps(_mm512_shuffle_f32x4::<0x88>(a, b), _mm512_shuffle_f32x4::<0xdd>(a, b)) }
}

/// 2^x for x <= 0 with an error of 1e-4, a twentieth of what rounding to bf16 adds; 1 for 0, and 0 below -127. (What is
/// subnormal becomes 0 when it is rounded.)
#[inline(always)]
fn exp2_for_bf16(x: __m512) -> __m512 {
    /// 1.5 * 2^23: added to a number, it leaves the nearest integer in the lowest bits.
    const SHIFT: f32 = 12_582_912.0;
    // SAFETY: called only inside `attend`, so the processor has AVX-512.
    unsafe {
        // As integers, the lesser of two negative numbers is the greater. Integers have a port of their own.
        let least = _mm512_castps_si512(_mm512_set1_ps(-127.0));
        let x = _mm512_castsi512_ps(_mm512_min_epu32(_mm512_castps_si512(x), least));
        let shifted = Lanes::add(x, Lanes::splat(SHIFT));
        let r = Lanes::sub(x, Lanes::sub(shifted, Lanes::splat(SHIFT)));
        let mut p = Lanes::splat(0.055_008_95);
        for coefficient in [0.242_211_01, 0.693_282_9, 1.0] {
            p = Lanes::fma(p, r, Lanes::splat(coefficient));
        }
        let exponent = _mm512_slli_epi32::<23>(_mm512_castps_si512(shifted));
        _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), exponent))
    }
}

/// Both rounded to bf16, the low ones first. Returns a sum of what they are then, pair by pair.
#[inline(always)]
fn round(low: __m512, high: __m512, to: &mut Line) -> __m512 {
    // SAFETY: called only inside `attend`, so the processor has AVX-512 with BF16; the types have one size.
    unsafe {
        let pairs: __m512i = std::mem::transmute(_mm512_cvtne2ps_pbh(high, low));
        Lanes::store(_mm512_castsi512_ps(pairs), &mut to.0);
        let first = _mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs));
        Lanes::add(first, _mm512_castsi512_ps(_mm512_and_si512(pairs, _mm512_set1_epi32(-65536))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::SimdLevel;

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
    unsafe fn powers(x: &[f32; LANES]) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        Lanes::store(exp2_for_bf16(Lanes::load(x)), &mut out);
        out
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,avx2,fma,f16c")]
    unsafe fn greatest(lines: &[[f32; LANES]; LANES]) -> [f32; LANES] {
        let (mut v, mut out) = ([Lanes::splat(0.0); LANES], [0.0; LANES]);
        for (v, line) in v.iter_mut().zip(lines) {
            *v = Lanes::load(line);
        }
        Lanes::store(greatest_of_each(v), &mut out);
        out
    }

    fn has_bf16() -> bool {
        SimdLevel::detect() >= SimdLevel::Avx512Bf16
    }

    #[test]
    fn powers_of_two_err_as_stated_and_are_exact_at_the_ends() {
        if !has_bf16() {
            return;
        }
        for first in (0..126 * 1024).step_by(LANES) {
            let x: [f32; LANES] = std::array::from_fn(|i| -((first + i) as f32) / 1024.0);
            // SAFETY: the processor has what the function names.
            for (x, got) in x.iter().zip(unsafe { powers(&x) }) {
                let error = f64::from(got) / f64::from(*x).exp2() - 1.0;
                assert!(error.abs() < 1.1e-4, "2^{x}: {got}, wrong by {error}");
            }
        }
        let ends = [0.0, -127.0, -128.0, -1e9, f32::MIN, f32::NEG_INFINITY];
        let x = std::array::from_fn(|i| ends[i % ends.len()]);
        // SAFETY: as above.
        let got = unsafe { powers(&x) };
        assert_eq!(got[..ends.len()], [1.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
    }

    #[test]
    fn the_greatest_lane_of_each_vector_is_found_wherever_it_is() {
        if !has_bf16() {
            return;
        }
        for shift in 0..LANES {
            let mut lines = [[-2.0; LANES]; LANES];
            for (i, line) in lines.iter_mut().enumerate() {
                line[(i * 7 + shift) % LANES] = i as f32;
            }
            // SAFETY: as above.
            assert_eq!(unsafe { greatest(&lines) }, std::array::from_fn::<f32, LANES, _>(|i| i as f32), "{shift}");
        }
    }
}
