//! The lane operations against scalar arithmetic, at every level of this machine.
//!
//! Bit-for-bit agreement between levels is tested here for single operations, and in `tests/ops` for whole ops.
//! The bound on the exponential is the one that `math` documents.

use super::*;
use half::{bf16, f16};

fn levels() -> impl Iterator<Item = SimdLevel> {
    SimdLevel::available()
}

struct ExpOf([f32; LANES]);

impl Kernel for ExpOf {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<S: Simd>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        S::store(exp::<S>(S::load(&self.0)), &mut out);
        out
    }
}

#[test]
fn exp_is_within_its_documented_error() {
    for level in levels() {
        let mut worst = 0f64;
        for block in 0..11_000 {
            let x: [f32; LANES] = std::array::from_fn(|i| -87.3 + (block * LANES + i) as f32 * 0.000_997);
            for (x, got) in x.iter().zip(dispatch(level, ExpOf(x))) {
                let want = f64::from(*x).exp();
                worst = worst.max((f64::from(got) - want).abs() / want);
            }
        }
        assert!(worst < 2e-7, "{level}: {worst:e}");
    }
}

#[test]
fn exp_edges() {
    for level in levels() {
        let out = dispatch(level, ExpOf(padded(&[f32::NEG_INFINITY, -1e30, -88.0, 0.0, 88.3, 1e30], 0.0)));
        assert_eq!(out[..4], [0.0, 0.0, 0.0, 1.0], "{level}");
        assert!(out[4].is_finite() && out[5].is_finite(), "{level}");
    }
}

struct Exp2Of([f32; LANES]);

impl Kernel for Exp2Of {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<S: Simd>(self) -> [f32; LANES] {
        let mut out = [0.0; LANES];
        S::store(exp2_of_negative::<S>(S::load(&self.0)), &mut out);
        out
    }
}

#[test]
fn powers_of_two_are_within_their_documented_error() {
    for level in levels() {
        let mut worst = 0f64;
        for block in 0..8_000 {
            let x: [f32; LANES] = std::array::from_fn(|i| -124.9 + (block * LANES + i) as f32 * 0.000_975);
            for (x, got) in x.iter().zip(dispatch(level, Exp2Of(x.map(|x| x.min(0.0))))) {
                let want = f64::from(x.min(0.0)).exp2();
                worst = worst.max((f64::from(got) - want).abs() / want);
            }
        }
        assert!(worst < 2e-7, "{level}: {worst:e}");
        let edges = dispatch(level, Exp2Of(padded(&[f32::NEG_INFINITY, -1e30, -126.0, f32::NAN, 0.0], 0.0)));
        assert_eq!(edges[..5], [0.0, 0.0, 0.0, 0.0, 1.0], "{level}");
    }
}

struct Words([u16; 2 * LANES], [u16; 2 * LANES]);

impl Kernel for Words {
    type Output = ([[u16; 2 * LANES]; 2], Square, [Square; 2]);
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let (mut columns, mut widened) = ([[0.0; LANES]; LANES], [[[0.0; LANES]; LANES]; 2]);
        let bytes = |words: [u16; 2 * LANES]| std::array::from_fn(|i| words[i / 2].to_ne_bytes()[i % 2]);
        let mut rows = [bytes(self.0); LANES];
        rows[3] = bytes(self.1);
        // Rows that all differ, so that none can stand for another.
        let mut differ = [self.0; LANES];
        for (i, row) in differ.iter_mut().enumerate() {
            row.iter_mut().for_each(|word| *word += 64 * i as u16);
        }
        S::transpose(&rows.each_ref(), &mut columns);
        S::transpose_bf16(&differ.map(bytes).each_ref(), &mut widened);
        ([S::interleave(&self.0, &self.1, 0), S::interleave(&self.0, &self.1, 1)], columns, widened)
    }
}

#[test]
fn words_go_where_they_are_said_to_go() {
    let (a, b) = (std::array::from_fn(|i| 0x3f00 + i as u16), std::array::from_fn(|i| 0x4000 + i as u16));
    for level in levels() {
        let (halves, columns, widened) = dispatch(level, Words(a, b));
        for (half, got) in halves.iter().enumerate() {
            for (pair, got) in got.as_chunks::<2>().0.iter().enumerate() {
                let dim = pair / 4 * 8 + half * 4 + pair % 4;
                assert_eq!(*got, [a[dim], b[dim]], "{level} half {half} pair {pair}");
            }
        }
        for (word, column) in columns.iter().enumerate() {
            for (row, got) in column.iter().enumerate() {
                let from = if row == 3 { b } else { a };
                let want = u32::from(from[2 * word]) | u32::from(from[2 * word + 1]) << 16;
                assert_eq!(got.to_bits(), want, "{level} word {word} of row {row}");
            }
        }
        for (dim, column) in widened.as_flattened().iter().enumerate() {
            for (row, got) in column.iter().enumerate() {
                assert_eq!(got.to_bits(), u32::from(a[dim] + 64 * row as u16) << 16, "{level} dim {dim} of row {row}");
            }
        }
    }
}

/// Four rows of bytes interleaved, and products of quads.
struct Quads([[u8; 2 * LANES]; 6]);

impl Kernel for Quads {
    type Output = ([[f32; LANES]; 2], [f32; LANES]);
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let Self(bytes) = self;
        let mut products = [0.0; LANES];
        let rows = S::interleave_quads([&bytes[2], &bytes[3], &bytes[4], &bytes[5]]).map(|line| line.0);
        let sums = S::add_quad(S::splat_i32(-7), S::load_bits(&rows[0]), S::load_bits(&rows[1]));
        S::store(S::from_i32(sums), &mut products);
        (rows, products)
    }
}

#[test]
fn quads_are_laid_and_multiplied_exactly() {
    // All bytes, the greatest and the least beside each other.
    let bytes: [[u8; 2 * LANES]; 6] =
        std::array::from_fn(|i| std::array::from_fn(|j| [(i * 32 + j * 7) as u8, 255, 0][j % 5 % 3]));
    for level in levels() {
        let (rows, products) = dispatch(level, Quads(bytes));
        let dims = |line: usize, lane: usize| lane / 4 * 8 + line * 4 + lane % 4;
        let signed = |line: usize, lane: usize| [2, 3, 4, 5].map(|row| (bytes[row][dims(line, lane)] ^ 128) as i8);
        for lane in 0..LANES {
            for (line, got) in rows.iter().enumerate() {
                let got = got[lane].to_bits().to_ne_bytes().map(|byte| byte as i8);
                assert_eq!(got, signed(line, lane), "{level} lane {lane} of line {line}");
            }
            let both = signed(0, lane).into_iter().zip(signed(1, lane));
            let product: i32 = both.map(|(a, b)| i32::from(a as u8) * i32::from(b)).sum();
            assert_eq!(products[lane], (product - 7) as f32, "{level} lane {lane}");
        }
    }
}

/// What goes by four lanes: sums of quads' words in all of four, pairs of fours, the greatest of fours, bytes of fours, and
/// halves in fours.
struct Fours {
    quads: [[u8; 4 * LANES]; 4],
    inputs: [[f32; LANES]; 2],
    numbers: [[f32; LANES]; 4],
    pairs: [u32; 4],
}

impl Kernel for Fours {
    type Output = ([[[f32; LANES]; 4]; 2], [[f32; LANES]; 2], [f32; LANES], Line, [[[f32; LANES]; 2]; 2], [bool; 2]);
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let lanes = |vector: S::F| {
            let mut lanes = [0.0; LANES];
            S::store(vector, &mut lanes);
            lanes
        };
        let quads = self.quads.map(|quads| S::load_bytes(&quads));
        let mut sums = [[S::splat_i32(5); 4]; 2];
        for word in 0..4 {
            S::add_spread(&mut sums, &quads, word, self.inputs.each_ref());
        }
        let [[a, b, ..], _] = sums;
        let pairs = [S::even_fours(a, b), S::add_i32(S::even_fours(a, b), S::odd_fours(a, b))];
        let vectors = self.numbers.map(|numbers| S::load(&numbers));
        (
            sums.map(|sums| sums.map(|sums| lanes(S::from_i32(sums)))),
            pairs.map(|sums| lanes(S::from_i32(sums))),
            lanes(S::greatest_of_fours(vectors[1])),
            S::bytes_of_fours(vectors),
            [false, true].map(|skips| S::halves_in_fours(self.pairs, skips).map(lanes)),
            [S::any_less(vectors[0], vectors[0]), S::any_less(vectors[0], S::max(vectors[0], vectors[1]))],
        )
    }
}

#[test]
fn fours_of_lanes_are_what_they_are_said_to_be() {
    let quads: [[u8; 4 * LANES]; 4] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 91 + j * 37) as u8));
    let bytes: [[i8; 4 * LANES]; 2] = std::array::from_fn(|i| std::array::from_fn(|j| (i * 57 + j * 29) as i8));
    let inputs = bytes.map(|bytes| {
        let words = bytes.as_chunks::<4>().0;
        std::array::from_fn(|i| f32::from_bits(u32::from_ne_bytes(words[i].map(|byte| byte as u8))))
    });
    // Numbers of which none is halfway between two; one lane of the second alone is greater than that of the first.
    let mut numbers: [[f32; LANES]; 4] =
        std::array::from_fn(|i| std::array::from_fn(|j| ((i * 16 + j) * 4) as f32 + 0.3));
    numbers[1] = numbers[0];
    numbers[1][6] = 254.7;
    let halves: [f16; 8] = std::array::from_fn(|i| f16::from_f32([1.5, 6e-8, 500.0][i % 3] * (i + 1) as f32));
    let pairs =
        std::array::from_fn(|i| u32::from(halves[2 * i].to_bits()) | u32::from(halves[2 * i + 1].to_bits()) << 16);
    for level in levels() {
        let (sums, fours, greatest, packed, in_fours, less) = dispatch(level, Fours { quads, inputs, numbers, pairs });
        // The products of the four words of a quarter of `quad`, each with the input of the same word and lane.
        let sum = |input: usize, quad: usize, lane: usize| {
            let words = (0..4).map(|word| {
                let (at, input) = (lane / 4 * 16 + word * 4, &bytes[input][lane * 4..][..4]);
                quads[quad][at..at + 4].iter().zip(input).map(|(a, b)| i32::from(*a) * i32::from(*b)).sum::<i32>()
            });
            5 + words.sum::<i32>()
        };
        for lane in 0..LANES {
            for (input, sums) in sums.iter().enumerate() {
                for (quad, sums) in sums.iter().enumerate() {
                    assert_eq!(sums[lane], sum(input, quad, lane) as f32, "{level}: {input}, {quad}, lane {lane}");
                }
            }
            let (quad, even) = (lane / 8, lane / 4 % 2 * 8 + lane % 4);
            let want = [sum(0, quad, even), sum(0, quad, even) + sum(0, quad, even + 4)];
            assert_eq!(fours.map(|sums| sums[lane]), want.map(|sum| sum as f32), "{level} lane {lane}");
            let most = (0..4).map(|four| numbers[1][four * 4 + lane % 4]).fold(0.0, f32::max);
            assert_eq!(greatest[lane], most, "{level} lane {lane}");
            let want = std::array::from_fn(|four| numbers[lane / 4][four * 4 + lane % 4].round() as u8);
            assert_eq!(packed.0[lane].to_bits().to_le_bytes(), want, "{level} lane {lane}");
            let of = |i: usize| halves[lane / 4 * 2 + i].to_f32();
            assert_eq!(in_fours[0].map(|halves| halves[lane]), [of(0), of(1)], "{level} lane {lane}");
            assert_eq!(in_fours[1].map(|halves| halves[lane]), [of(1), 0.0], "{level} lane {lane}");
        }
        assert_eq!(less, [false, true], "{level}");
    }
}

/// The greatest of each of N vectors of which only lane `lane` differs from the others.
struct GreatestOfEach<const N: usize>(usize);

impl<const N: usize> Kernel for GreatestOfEach<N> {
    type Output = [f32; LANES];
    #[inline(always)]
    fn run<S: Simd>(self) -> [f32; LANES] {
        let mut vectors = [S::splat(0.0); N];
        for (i, vector) in vectors.iter_mut().enumerate() {
            let mut lanes = [-1e9 - i as f32; LANES];
            lanes[(self.0 + i) % LANES] = -1.0 - i as f32;
            *vector = S::load(&lanes);
        }
        let mut greatest = [0.0; LANES];
        S::store(S::greatest_of_each(vectors), &mut greatest);
        greatest
    }
}

#[test]
fn the_greatest_lane_of_each_vector_is_found() {
    for level in levels() {
        for lane in 0..LANES {
            let got = [
                dispatch(level, GreatestOfEach::<1>(lane)),
                dispatch(level, GreatestOfEach::<2>(lane)),
                dispatch(level, GreatestOfEach::<5>(lane)),
                dispatch(level, GreatestOfEach::<8>(lane)),
            ];
            for (n, got) in [1, 2, 5, 8].into_iter().zip(got) {
                let want: [f32; LANES] =
                    std::array::from_fn(|i| if i < n { -1.0 - i as f32 } else { f32::NEG_INFINITY });
                assert_eq!(got, want, "{level}, {n} vectors");
            }
        }
    }
}

struct Everything([f32; LANES], [f32; LANES]);

impl Kernel for Everything {
    type Output = Vec<u32>;
    #[inline(always)]
    fn run<S: Simd>(self) -> Vec<u32> {
        let (a, b) = (S::load(&self.0), S::load(&self.1));
        let vectors = [
            S::add(a, b),
            S::sub(a, b),
            S::mul(a, b),
            S::div(a, b),
            S::fma(a, b, a),
            S::max(a, b),
            S::min(a, b),
            S::round(a),
            S::scale_by_exponent(a, S::round(b)),
            S::select_less(a, b, a, S::splat(7.0)),
            silu::<S>(a),
        ];
        let mut bits = vec![S::sum(a).to_bits(), S::greatest(b).to_bits()];
        for vector in vectors {
            let mut lanes = [0.0; LANES];
            S::store(vector, &mut lanes);
            bits.extend(lanes.map(f32::to_bits));
        }
        bits
    }
}

#[test]
fn levels_agree_bit_for_bit() {
    let a = std::array::from_fn(|i| (i as f32 - 7.3) * 1.37);
    let b = std::array::from_fn(|i| (i as f32 * 0.71 - 4.0).sin() * 9.1);
    let want = dispatch(SimdLevel::Portable, Everything(a, b));
    for level in levels() {
        assert_eq!(dispatch(level, Everything(a, b)), want, "{level}");
    }
}

struct RoundBf16([f32; LANES]);

impl Kernel for RoundBf16 {
    type Output = ([u16; LANES], [f32; LANES]);
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let (mut bits, mut back) = ([0; LANES], [0.0; LANES]);
        S::store_bf16(S::load(&self.0), &mut bits);
        let normal = self.0.map(|x| if x.is_subnormal() { 0.0 } else { x });
        let both = S::round_bf16(S::load(&normal), S::load(&self.0));
        for (i, (x, both)) in normal.iter().zip(both).enumerate() {
            assert_eq!(both, bf16::from_f32(*x).to_bits(), "{x} at {i}");
        }
        S::store(S::load_bf16(&bits), &mut back);
        (bits, back)
    }
}

#[test]
fn bf16_rounds_to_nearest_even() {
    let special = [1.0, -1.003_906_3, 1.011_718_8, 3.4e38, f32::INFINITY, f32::NEG_INFINITY, 1e-40, -0.0, f32::NAN];
    for level in levels() {
        let (bits, back) = dispatch(level, RoundBf16(padded(&special, 0.1)));
        for ((x, bits), back) in special.iter().zip(bits).zip(back) {
            assert_eq!(bits, bf16::from_f32(*x).to_bits(), "{level}: {x}");
            assert!(back.to_bits() == bf16::from_f32(*x).to_f32().to_bits(), "{level}: {x}");
        }
    }
}

/// Eight blocks rounded, and the sums of their halves.
struct RoundInt8([[f32; 2 * LANES]; 8], f32);

impl Kernel for RoundInt8 {
    type Output = ([[i8; 2 * LANES]; 8], [[i32; 2]; 8]);
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let mut quants = [[0; 2 * LANES]; 8];
        for (quants, x) in quants.iter_mut().zip(&self.0) {
            let [low, high] = [0, 1].map(|half| x.as_chunks::<LANES>().0[half]);
            *quants = S::round_int8(S::load(&low), S::load(&high), self.1);
        }
        (quants, S::sum_int8(&quants))
    }
}

#[test]
fn int8_rounds_to_nearest_even_and_is_summed_by_halves() {
    // Every integer and every tie from -127 to 127, and numbers just beside the ties, scaled.
    for (inverse, nudge) in [(1.0, 0.0), (0.25, 0.001), (8.0, -0.001)] {
        for half in 0..2 {
            let exact = |block: usize, i: usize| (-127.0 + ((8 * half + block) * 32 + i) as f32 * 0.5).min(127.0);
            let blocks: [[f32; 2 * LANES]; 8] = std::array::from_fn(|block| std::array::from_fn(|i| exact(block, i)));
            let x = blocks.map(|block| block.map(|x| (x + nudge).clamp(-127.0, 127.0) / inverse));
            let want = x.map(|block| block.map(|x| (x * inverse).round_ties_even() as i8));
            let sum = |quants: &[i8]| quants.iter().map(|&quant| i32::from(quant)).sum();
            let sums = want.map(|block| [sum(&block[..LANES]), sum(&block[LANES..])]);
            for level in levels() {
                assert_eq!(dispatch(level, RoundInt8(x, inverse)), (want, sums), "{level}: {x:?} times {inverse}");
            }
        }
    }
}

/// Integers times scales: converted and multiplied, and as bits that a multiply-add scales.
struct Shifted([i32; LANES], [f32; LANES]);

impl Kernel for Shifted {
    type Output = [[f32; LANES]; 2];
    #[inline(always)]
    fn run<S: Simd>(self) -> Self::Output {
        let (scales, mut out) = (S::load(&self.1), [[0.0; LANES]; 2]);
        for (i, out) in out.as_flattened_mut().iter_mut().enumerate() {
            let (int, mut lanes) = (self.0[i % LANES], [0.0; LANES]);
            let product = if i < LANES {
                S::mul(S::from_i32(S::splat_i32(int)), scales)
            } else {
                let shifted = S::from_bits(S::splat_i32(SHIFT.to_bits() as i32 + int));
                S::fma(shifted, scales, S::mul(scales, S::splat(-SHIFT)))
            };
            S::store(product, &mut lanes);
            *out = lanes[i % LANES];
        }
        out
    }
}

#[test]
fn bits_of_a_shifted_integer_are_scaled_as_the_integer() {
    // The greatest sum of a block is 32 * 128 * 127; scales are f16, or an f16 times 8 bits and a sign.
    for round in 0..4_000 {
        let at = |i: usize| round * LANES + i;
        let ints = std::array::from_fn(|i| ((at(i) * 7_919) % 1_040_385) as i32 - 520_192);
        let f16s = |i: usize| half::f16::from_bits((at(i) * 40_503 % 31_744) as u16).to_f32();
        let scales = std::array::from_fn(|i| f16s(i) * [1.0, -128.0, 127.0, -93.0][at(i) / 7 % 4]);
        for level in levels() {
            let [want, got] = dispatch(level, Shifted(ints, scales));
            assert_eq!(got, want, "{level}: {ints:?} times {scales:?}");
        }
    }
}
