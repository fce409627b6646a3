//! q8_0: fours of integers, rounded as those of vectors are (see `words`).
//!
//! Keys are copied as they are stored. Dimensions of a query are rounded to int8, 32 with a scale, and weights times their
//! values' scales to bytes, 32 tokens with a scale, of which the greatest is 255. Tiles sum their products, which is exact, for 32
//! dimensions of a key or 32 tokens' values; vectors scale these sums and add them up.

use super::coming::Coming;
use super::lanes::{by_query, exp2_for_bf16, greatest_by_query, in_order, sum_by_query};
use super::{LINE, Lanes, Operands, Queries, ROWS, STEP};
use crate::ops::attention::cpu::AttendBlock;
use crate::ops::attention::cpu::tile::TILE;
use crate::ops::attention::cpu::words::rounded;
use crate::simd::int8::Int8;
use crate::simd::{LANES, Line, Simd};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Words of a step of a query, and of a tile's values.
const WORDS: usize = 8;
/// Lines of a step's scales.
const SCALE_LINES: usize = 2;
/// Steps of a line of bytes.
const BOTH: usize = 2;
/// Where lines of two steps of a group's queries have their sums' start and their scales, and how many there are.
const START: usize = BOTH * WORDS;
const SCALES: usize = START + BOTH;
const QUERY: usize = SCALES + BOTH;
/// What the greatest weight becomes, times an inverse that errs by up to 2^-14, before it is rounded to 255.
const GREATEST: f32 = 254.9;
/// Least of what the greatest byte stands for. A query's greatest weight so far is 1/2 to 1.
const LEAST: f32 = 1e-30;

/// Weights of a group.
pub(super) struct Weights<const C: usize, const L: usize> {
    /// Bytes `[steps, queries, 32 tokens]`, half a line each.
    bytes: [[Line; C]; L],
    /// What they are times.
    scales: [Line; L],
    /// What 2^(score - greatest) is of each token.
    powers: [[Line; C]; 2],
    /// That times the scales of a step of values.
    scaled: [[[Line; C]; 2]; BOTH],
    /// Sums that tiles leave.
    sums: [[[Line; C]; BOTH]; 2],
}

/// q8_0 as fours of integers.
pub(super) struct InQuads;

impl Operands for InQuads {
    type Element = u8;
    const TOKENS: usize = 4;
    type Weights<const C: usize, const L: usize> = Weights<C, L>;

    fn query_lines(steps: usize) -> usize {
        steps / BOTH * QUERY
    }

    fn copied_lines(steps: usize) -> usize {
        TILE * steps + SCALE_LINES * steps
    }

    fn shapes<const C: usize>() -> [(usize, usize); 8] {
        // Scores of the first 16 tokens and of the last; queries; keys; weights; values; sums of two lines of values.
        let [by_token, queries, keys] = if C < ROWS {
            [(ROWS, 2 * C * size_of::<i32>()), (BOTH * WORDS, 2 * C * size_of::<i32>()), (ROWS, LINE)]
        } else {
            [(ROWS, LINE), (WORDS, LINE), (ROWS, STEP)]
        };
        [by_token, by_token, queries, keys, (C, TILE), (WORDS, LINE), (C, LINE), (C, LINE)]
    }

    fn weights<const C: usize, const L: usize>() -> Weights<C, L> {
        let zero = Line([0.0; LANES]);
        Weights {
            bytes: [[zero; C]; L],
            scales: [zero; L],
            powers: [[zero; C]; 2],
            scaled: [[[zero; C]; 2]; BOTH],
            sums: [[[zero; C]; BOTH]; 2],
        }
    }

    /// `[groups, L / 2, QUERY]`: words of two steps, where their sums start, and their scales. Up to 8 queries share lines, the
    /// second step's behind the first's, so that one product has both sums.
    #[inline(always)]
    fn pack<const C: usize, const L: usize>(block: &AttendBlock<'_>, to: &mut [MaybeUninit<Line>]) {
        let scale = block.shape.scale * std::f32::consts::LOG2_E;
        let shares = C < ROWS;
        for (i, lines) in to.as_chunks_mut::<QUERY>().0.iter_mut().enumerate() {
            let (group, both) = (i / (L / BOTH), i % (L / BOTH));
            let lines = lines.each_mut().map(|line| line.write(Line([0.0; LANES])));
            for (query, number) in (group * C..block.queries().min((group + 1) * C)).enumerate() {
                for i in 0..BOTH {
                    // SAFETY: of one at a time.
                    let q = unsafe { block.query(number) }.chunks(STEP).nth(BOTH * both + i).unwrap_or_default();
                    let (quants, of_quants) = rounded::<Lanes>(q, scale);
                    let (line, lane, apart) = if shares { (0, i * C + query, 2 * C) } else { (i, query, C) };
                    for (word, quants) in quants.as_chunks::<4>().0.iter().enumerate() {
                        let bits = u32::from_le_bytes(quants.map(|quant| quant as u8));
                        lines[i * WORDS + word].0[lane] = f32::from_bits(bits);
                    }
                    let sum: i32 = quants.iter().map(|quant| i32::from(*quant)).sum();
                    lines[START + line].0[lane] = f32::from_bits((-128 * sum) as u32);
                    let scales = lines[SCALES + line].0.iter_mut();
                    scales.skip(lane).step_by(apart).for_each(|scale| *scale = of_quants);
                }
            }
        }
    }

    /// Keys, `[32 tokens, L]` steps of 32 bytes; values, `[8 words, 2 L]`, lines of a word's 16 dimensions; then scales of keys
    /// and of values, `[L / 2, 32 tokens, 2]` f16.
    #[inline(always)]
    unsafe fn copy<const FULL: bool, const L: usize>(
        keys: &[*const u8],
        (dims, value): (usize, usize),
        word: usize,
        to: *mut Line,
        mut ask: impl FnMut(usize, usize, bool),
    ) {
        let to_values = to.wrapping_add(TILE * L / BOTH + word * 2 * L).cast::<__m512i>();
        let to_scales = to.wrapping_add(TILE * L).cast::<u32>();
        // SAFETY: by this function's contract; a step without a dimension is not read, and masks leave what is there.
        unsafe {
            let bias = _mm512_set1_epi8(i8::MIN);
            let line = |row: *const u8, both: usize| {
                let at = both * BOTH * STEP;
                if FULL {
                    _mm512_loadu_si512(row.add(at).cast())
                } else {
                    let there = dims.saturating_sub(at).min(LINE);
                    let mask = u64::MAX.checked_shr((LINE - there) as u32).unwrap_or(0);
                    _mm512_mask_loadu_epi8(bias, mask, row.wrapping_add(at).cast())
                }
            };
            let scales = |row: *const u8, both: usize, to: *mut u32| {
                let from = row.add(dims.next_multiple_of(2)).cast::<u16>().wrapping_add(BOTH * both);
                let scales = match dims.div_ceil(STEP).saturating_sub(BOTH * both) {
                    _ if FULL => from.cast::<u32>().read_unaligned(),
                    0 => 0,
                    1 => u32::from(from.read_unaligned()),
                    _ => from.cast::<u32>().read_unaligned(),
                };
                to.write(scales);
            };
            for i in 0..Self::TOKENS {
                let token = word + i * Self::WORDS;
                for both in 0..L / BOTH {
                    _mm512_store_si512(to.add(token * L / BOTH + both).cast(), line(keys[i], both));
                    scales(keys[i], both, to_scales.add(both * TILE + token));
                    scales(keys[i].add(value), both, to_scales.add((L / BOTH + both) * TILE + token));
                    ask(i, BOTH * both, false);
                    ask(i, BOTH * both + 1, false);
                }
            }
            // Eight dimensions of the first step, eight of the second, and so on.
            let order = _mm512_set_epi64(7, 3, 6, 2, 5, 1, 4, 0);
            for both in 0..L / BOTH {
                let mut rows = [_mm512_setzero_si512(); 4];
                for i in 0..Self::TOKENS {
                    let row = _mm512_permutexvar_epi64(order, line(keys[i].add(value), both));
                    rows[i] = _mm512_xor_si512(row, bias);
                    ask(i, BOTH * both, true);
                    ask(i, BOTH * both + 1, true);
                }
                let [a, b, c, d] = rows;
                let (low, high) = (_mm512_unpacklo_epi8(a, b), _mm512_unpacklo_epi8(c, d));
                _mm512_store_si512(to_values.add(4 * both), _mm512_unpacklo_epi16(low, high));
                _mm512_store_si512(to_values.add(4 * both + 1), _mm512_unpackhi_epi16(low, high));
                let (low, high) = (_mm512_unpackhi_epi8(a, b), _mm512_unpackhi_epi8(c, d));
                _mm512_store_si512(to_values.add(4 * both + 2), _mm512_unpacklo_epi16(low, high));
                _mm512_store_si512(to_values.add(4 * both + 3), _mm512_unpackhi_epi16(low, high));
            }
        }
    }

    #[inline(always)]
    fn score<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        assert_eq!(tile.len(), Self::copied_lines(L));
        let q = &queries.q.as_chunks::<QUERY>().0[group * (L / BOTH)..][..L / BOTH];
        let (tiles, sums) = (&queries.tiles, &mut queries.weights.sums);
        for (both, q) in q.iter().enumerate() {
            let key = tile.as_ptr().wrapping_add(both).cast::<u8>();
            // SAFETY: there are keys of 32 tokens, words of the queries, and lines where sums start; C lines are C numbers for
            // each of 16 tokens.
            unsafe {
                let [first, last] = &mut *sums;
                if C < ROWS {
                    let (start, stride) = (q[START..].as_ptr().cast(), 2 * C * size_of::<i32>());
                    tiles.load::<2>(q.as_ptr().cast(), LINE);
                    tiles.load::<0>(start, 0);
                    tiles.load::<3>(key, L * STEP);
                    tiles.multiply_unsigned::<0, 3, 2>();
                    tiles.load::<1>(start, 0);
                    tiles.load::<3>(key.add(ROWS * L * STEP), L * STEP);
                    tiles.multiply_unsigned::<1, 3, 2>();
                    tiles.store::<0>(first.as_mut_ptr().cast(), stride);
                    tiles.store::<1>(last.as_mut_ptr().cast(), stride);
                } else {
                    for i in 0..BOTH {
                        let (start, key) = (q[START + i..].as_ptr().cast(), key.add(i * STEP));
                        tiles.load::<2>(q[i * WORDS..].as_ptr().cast(), LINE);
                        tiles.load::<0>(start, 0);
                        tiles.load::<3>(key, L * STEP);
                        tiles.multiply_unsigned::<0, 3, 2>();
                        tiles.load::<1>(start, 0);
                        tiles.load::<3>(key.add(ROWS * L * STEP), L * STEP);
                        tiles.multiply_unsigned::<1, 3, 2>();
                        tiles.store::<0>(first[i].as_mut_ptr().cast(), LINE);
                        tiles.store::<1>(last[i].as_mut_ptr().cast(), LINE);
                    }
                }
            }
            coming.copy_until(3);
            let of_queries = [Lanes::load(&q[SCALES].0), Lanes::load(&q[SCALES + 1].0)];
            for (operand, scores) in queries.scores.iter_mut().enumerate() {
                let of_keys = scales(&tile[TILE * L + 2 * both + operand]);
                for i in 0..C {
                    let mut products = [Lanes::splat(0.0); 2];
                    for j in 0..2 {
                        let (sum, first, scale) = if C < ROWS {
                            let at = 2 * i + j;
                            (&sums[operand].as_flattened()[at], at * LANES / C, of_queries[0])
                        } else {
                            (&sums[operand][j][i], 2 * i + j, of_queries[j])
                        };
                        let scale = Lanes::mul(spread::<C>(&of_keys[first / LANES], first % LANES), scale);
                        products[j] = Lanes::mul(Lanes::from_i32(Lanes::load_bits(&sum.0)), scale);
                    }
                    let mut score = added::<C>(products);
                    let Line(to) = &mut scores[i];
                    if both > 0 {
                        score = Lanes::add(Lanes::load(to), score);
                    }
                    Lanes::store(score, to);
                }
            }
        }
    }

    #[inline(always)]
    fn weigh<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        shift: __m512,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        let Weights { bytes: to, scales: to_scales, powers, scaled, .. } = &mut queries.weights;
        for i in 0..C {
            for (scores, powers) in queries.scores.iter().zip(&mut *powers) {
                Lanes::store(exp2_for_bf16(Lanes::load(&scores[i].0), shift), &mut powers[i].0);
            }
        }
        coming.copy_until(4);
        let Line(total) = &mut queries.totals[group];
        Lanes::store(Lanes::add(Lanes::load(total), sum_by_query(powers)), total);
        for both in 0..L / BOTH {
            let lines = &tile[TILE * L + L + 2 * both..];
            let mut most = [[Lanes::splat(LEAST); 4]; BOTH];
            for operand in 0..2 {
                let of_values = scales(&lines[operand]);
                for i in 0..C {
                    let power = Lanes::load(&powers[operand][i].0);
                    for step in 0..BOTH {
                        let weight = Lanes::mul(power, of_tokens::<C>(&of_values, step, i));
                        Lanes::store(weight, &mut scaled[step][operand][i].0);
                        let most = &mut most[step][(2 * i + operand) % 4];
                        *most = Lanes::max(*most, weight);
                    }
                }
            }
            let mut raised = [Lanes::splat(0.0); BOTH];
            for step in 0..BOTH {
                let [a, b, c, d] = most[step];
                let most = greatest_by_query::<C>(Lanes::max(Lanes::max(a, b), Lanes::max(c, d)));
                // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512.
                let inverse = unsafe { _mm512_rcp14_ps(most) };
                raised[step] = Lanes::mul(Lanes::splat(GREATEST), inverse);
            }
            for step in 0..BOTH {
                let at = BOTH * both + step;
                Lanes::store(Lanes::div(Lanes::splat(1.0), raised[step]), &mut to_scales[at].0);
                bytes(&scaled[step], raised[step], &mut to[at]);
            }
            coming.copy_until(6);
        }
    }

    #[inline(always)]
    fn add_values<const C: usize, const L: usize>(
        queries: &mut Queries<'_, Self, C, L>,
        group: usize,
        tile: &[Line],
        coming: &mut Coming<'_, Self, L>,
    ) {
        assert_eq!(tile.len(), Self::copied_lines(L));
        let (tiles, values) = (&queries.tiles, tile[TILE * L / BOTH..].as_ptr().cast::<u8>());
        let sums = queries.sums[group * C * 2 * L..].as_chunks_mut::<C>().0;
        let Weights { bytes, scales, sums: added, .. } = &mut queries.weights;
        for (both, sums) in sums.as_chunks_mut::<{ 2 * BOTH }>().0.iter_mut().enumerate().take(L / BOTH) {
            for (i, added) in added.iter_mut().enumerate() {
                let step = BOTH * both + i;
                // SAFETY: there is half a line of weights for each query, and values of 8 words; a line for each query takes the
                // sums.
                unsafe {
                    let values = values.add(2 * step * LINE);
                    tiles.load::<4>(bytes[step].as_ptr().cast(), LINE);
                    tiles.zero::<6>();
                    tiles.load::<5>(values, 2 * L * LINE);
                    tiles.multiply_unsigned::<6, 4, 5>();
                    tiles.zero::<7>();
                    tiles.load::<5>(values.add(LINE), 2 * L * LINE);
                    tiles.multiply_unsigned::<7, 4, 5>();
                    tiles.store::<6>(added[0].as_mut_ptr().cast(), LINE);
                    tiles.store::<7>(added[1].as_mut_ptr().cast(), LINE);
                }
            }
            coming.copy_until(8);
            for (i, (sums, added)) in sums.iter_mut().zip(added.as_flattened()).enumerate() {
                let scales = &scales[BOTH * both + i / 2].0;
                for query in 0..C {
                    let (Line(sum), added) = (&mut sums[query], Lanes::from_i32(Lanes::load_bits(&added[query].0)));
                    Lanes::store(Lanes::fma(added, Lanes::splat(scales[query]), Lanes::load(sum)), sum);
                }
            }
        }
    }
}

/// Scales of 16 tokens, two steps each.
#[inline(always)]
fn scales(line: &Line) -> [Line; 2] {
    let mut scales = [Line([0.0; LANES]); 2];
    for (scales, bits) in scales.iter_mut().zip(line.u16s().as_chunks::<LANES>().0) {
        // SAFETY: called only inside `attend_in_groups`, so the processor has AVX-512; there are 32 bytes.
        let numbers = unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(bits.as_ptr().cast())) };
        Lanes::store(numbers, &mut scales.0);
    }
    scales
}

/// Lane `first` in C lanes, and so on.
#[inline(always)]
fn spread<const C: usize>(Line(v): &Line, first: usize) -> __m512 {
    if C == ROWS {
        return Lanes::splat(v[first]);
    }
    // SAFETY: as above.
    unsafe { _mm512_permutexvar_ps(numbered::<C>(first as i32, 0), Lanes::load(v)) }
}

/// `first` in C lanes, `first + 2^apart` in the next, and so on.
#[inline(always)]
fn numbered<const C: usize>(first: i32, apart: u32) -> __m512i {
    // SAFETY: as above.
    unsafe {
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let number = _mm512_srlv_epi32(lanes, _mm512_set1_epi32(C.ilog2() as i32));
        _mm512_add_epi32(_mm512_set1_epi32(first), _mm512_sllv_epi32(number, _mm512_set1_epi32(apart as i32)))
    }
}

/// Scales of a step of 16 tokens in the lanes of vector `i` of `[tokens, queries]`.
#[inline(always)]
fn of_tokens<const C: usize>(scales: &[Line; 2], step: usize, i: usize) -> __m512 {
    let first = 2 * i * LANES / C;
    if C == ROWS {
        return Lanes::splat(scales[first / LANES].0[first % LANES + step]);
    }
    let lanes = numbered::<C>((first % LANES + step) as i32, 1);
    // SAFETY: as above.
    unsafe {
        if C == 1 {
            _mm512_permutex2var_ps(Lanes::load(&scales[0].0), lanes, Lanes::load(&scales[1].0))
        } else {
            _mm512_permutexvar_ps(lanes, Lanes::load(&scales[first / LANES].0))
        }
    }
}

/// Products of two steps, added: those of 16 queries, or vectors `[tokens, 2 steps, C]`.
#[inline(always)]
fn added<const C: usize>([a, b]: [__m512; 2]) -> __m512 {
    if C == ROWS {
        return Lanes::add(a, b);
    }
    // SAFETY: as above.
    unsafe {
        let lanes = _mm512_set_epi32(15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1, 0);
        let query = _mm512_and_epi32(lanes, _mm512_set1_epi32(C as i32 - 1));
        let first = _mm512_add_epi32(numbered::<C>(0, 1 + C.ilog2()), query);
        let second = _mm512_add_epi32(first, _mm512_set1_epi32(C as i32));
        Lanes::add(_mm512_permutex2var_ps(a, first, b), _mm512_permutex2var_ps(a, second, b))
    }
}

/// Weights times `raised` as bytes, `[queries, 8 words]`: a word has tokens 8 apart.
#[inline(always)]
fn bytes<const C: usize>(weights: &[[Line; C]; 2], raised: __m512, to: &mut [Line; C]) {
    match C {
        1 => one([&weights[0][0], &weights[1][0]], raised, to),
        4 => several::<C, 2>(weights, raised, to),
        8 => several::<C, 4>(weights, raised, to),
        _ => several::<C, 8>(weights, raised, to),
    }
}

/// The same of a lone query.
#[inline(always)]
fn one(weights: [&Line; 2], raised: __m512, to: &mut [Line]) {
    // SAFETY: as above; half a line takes 32 bytes.
    unsafe {
        let a = _mm512_cvtepi32_epi8(integer(weights[0], raised));
        let c = _mm512_cvtepi32_epi8(integer(weights[1], raised));
        let ab = _mm_unpacklo_epi8(a, _mm_unpackhi_epi64(a, a));
        let cd = _mm_unpacklo_epi8(c, _mm_unpackhi_epi64(c, c));
        let to = to.as_mut_ptr().cast::<__m128i>();
        _mm_store_si128(to, _mm_unpacklo_epi16(ab, cd));
        _mm_store_si128(to.add(1), _mm_unpackhi_epi16(ab, cd));
    }
}

/// The same of C queries, twice H.
#[inline(always)]
fn several<const C: usize, const H: usize>(weights: &[[Line; C]; 2], raised: __m512, to: &mut [Line; C]) {
    let [low, high] = weights;
    // SAFETY: as above; half a line takes 32 bytes.
    unsafe {
        let mut words = [Lanes::splat(0.0); H];
        for (i, word) in words.iter_mut().enumerate() {
            let (a, b) = (integer(&low[i], raised), integer(&low[i + H], raised));
            let (c, d) = (integer(&high[i], raised), integer(&high[i + H], raised));
            // What is set in the masks is the former's.
            let ab = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(0xff), a, _mm512_slli_epi32::<8>(b));
            let (c, d) = (_mm512_slli_epi32::<16>(c), _mm512_slli_epi32::<24>(d));
            let cd = _mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(0xff_ffff), c, d);
            *word = _mm512_castsi512_ps(_mm512_ternarylogic_epi32::<0xca>(_mm512_set1_epi32(0xffff), ab, cd));
        }
        let order = _mm512_set_epi32(15, 13, 11, 9, 7, 5, 3, 1, 14, 12, 10, 8, 6, 4, 2, 0);
        for (i, both) in by_query(words).into_iter().enumerate() {
            let both = _mm512_permutexvar_epi32(order, _mm512_castps_si512(both));
            let query = in_order::<H>(i);
            _mm256_store_si256((&raw mut to[query]).cast(), _mm512_castsi512_si256(both));
            _mm256_store_si256((&raw mut to[query + H]).cast(), _mm512_extracti64x4_epi64::<1>(both));
        }
    }
}

/// A weight times `raised`, rounded: the last bits of such numbers are integers.
#[inline(always)]
fn integer(Line(weight): &Line, raised: __m512) -> __m512i {
    // SAFETY: as above.
    unsafe { _mm512_castps_si512(Lanes::fma(Lanes::load(weight), raised, Lanes::splat(12_582_912.0))) }
}
