//! Sixteen f32 lanes, written once and run at every level.
//!
//! An op's CPU code is a [`Kernel`]: a struct of slices whose `run` is generic over [`Simd`]. [`dispatch`] calls it
//! inside a function that has the level's target features, and since everything is `inline(always)` the whole body is
//! compiled with them. (What must be inlined is not put into closures: where the compiler leaves one out of line, the
//! intrinsics in it become calls.) The lanes and the order of the horizontal sum are the same at every level, and the portable
//! code uses a fused multiply-add too, so levels agree bit for bit (except `Avx512Bf16` in `dot_half` and `round_bf16`).
//! `Amx` has the lanes of `Avx512`; what it has besides, linear and attention use by themselves. The alternative, per-level
//! accumulator widths, would be no faster where memory is the limit, and would make every level its own oracle.

#[cfg(target_arch = "x86_64")]
pub(crate) mod amx;
mod asks;
mod avx2;
mod avx512;
pub(crate) mod int8;
mod level;
mod math;
mod portable;
mod transpose;

pub(crate) use asks::Asks;
#[cfg(target_arch = "x86_64")]
pub(crate) use avx512::Avx512;
pub use level::SimdLevel;
pub(crate) use math::{exp, exp2_of_negative, silu};
pub(crate) use transpose::{Rows, Square, as_rows};

/// Lanes of a vector.
pub(crate) const LANES: usize = 16;
/// Parts of the lanes at any level.
pub(crate) const MOST_PARTS: usize = 2;
/// 1.5 * 2^23, whose last bit is worth 1: added to a number it leaves the nearest integer in the lowest bits, and an integer
/// below 2^22 added to its bits is added to it.
pub(crate) const SHIFT: f32 = 12_582_912.0;

/// A cache line of packed input: 16 f32, the bits of 32 bf16, or bytes.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub [f32; LANES]);

impl Line {
    /// The same bits as 32 words.
    #[inline(always)]
    pub fn u16s(&self) -> &[u16; 2 * LANES] {
        u16s(&self.0)
    }

    /// The same, to write.
    #[inline(always)]
    pub fn u16s_mut(&mut self) -> &mut [u16; 2 * LANES] {
        // SAFETY: as above, and every bit pattern is a number in both.
        unsafe { &mut *std::ptr::from_mut(self).cast() }
    }
}

/// The bits of 16 f32 as 32 words.
#[inline(always)]
pub(crate) fn u16s(lanes: &[f32; LANES]) -> &[u16; 2 * LANES] {
    // SAFETY: both are 64 plain bytes, and an f32 is aligned beyond a u16.
    unsafe { &*std::ptr::from_ref(lanes).cast() }
}

/// The vector operations of one level. All are lane-wise unless they say otherwise; none is called outside of
/// [`dispatch`], which is what makes the intrinsics behind them sound.
pub(crate) trait Simd: int8::Int8 + Sized {
    /// 16 f32.
    type F: Copy;
    /// One register's share of the 16 lanes. A tile of sums is made of these, so that it fills the registers of a
    /// level whose vectors are shorter than 16 lanes without spilling.
    type Part: Copy;
    /// What `dot_half` takes of 32 bf16: one part's share of the evens or the odds, or all of a part.
    type Half: Copy;
    /// Calls of `dot_half` that a part of 32 bf16 takes: 1 where bf16 multiplies in pairs, else 2, evens then odds.
    const HALVES: usize;
    /// Lines of 32 packed bf16 inputs: 1 as bf16, 2 where they are better widened once than at every use.
    const INPUT_LINES: usize;
    /// Parts of the 16 lanes.
    const PARTS: usize;
    /// Queries whose scores with 32 keys, part by part, fit the registers.
    const QUERIES: usize;
    /// Most input rows of a linear's tile.
    const TILE_ROWS: usize;
    /// Input rows whose sums with 64 weight rows, or the panels of them that go at once, fit the registers; at most 6.
    const COLUMN_ROWS: usize;

    fn splat(value: f32) -> Self::F;
    fn load(from: &[f32; LANES]) -> Self::F;
    fn store(value: Self::F, to: &mut [f32; LANES]);
    fn add(a: Self::F, b: Self::F) -> Self::F;
    fn sub(a: Self::F, b: Self::F) -> Self::F;
    fn mul(a: Self::F, b: Self::F) -> Self::F;
    fn div(a: Self::F, b: Self::F) -> Self::F;
    /// a * b + c, rounded once.
    fn fma(a: Self::F, b: Self::F, c: Self::F) -> Self::F;
    /// The greater; `b` where either is NaN.
    fn max(a: Self::F, b: Self::F) -> Self::F;
    /// The smaller; `b` where either is NaN.
    fn min(a: Self::F, b: Self::F) -> Self::F;
    /// To the nearest integer, ties to even.
    fn round(a: Self::F) -> Self::F;
    /// `a * 2^n` for integral `n` in [-126, 127] and a result that is not subnormal; unspecified for others.
    fn scale_by_exponent(a: Self::F, n: Self::F) -> Self::F;
    /// `x` where `a < b`, else `y`.
    fn select_less(a: Self::F, b: Self::F, x: Self::F, y: Self::F) -> Self::F;
    /// Sum of the lanes: halves added to halves, 16 to 8 to 4 to 2 to 1.
    fn sum(a: Self::F) -> f32;
    /// Greatest lane.
    fn greatest(a: Self::F) -> f32;
    /// Lane i: the greatest of vector i; behind the last of at most 8, minus infinity.
    #[inline(always)]
    fn greatest_of_each<const N: usize>(vectors: [Self::F; N]) -> Self::F {
        let mut lanes = [f32::NEG_INFINITY; LANES];
        for (lane, vector) in lanes.iter_mut().zip(vectors) {
            *lane = Self::greatest(vector);
        }
        Self::load(&lanes)
    }
    /// 16 bf16, widened.
    fn load_bf16(from: &[u16; LANES]) -> Self::F;
    /// Rounded to bf16, nearest even.
    fn store_bf16(value: Self::F, to: &mut [u16; LANES]);
    /// 16 f16, widened.
    fn load_f16(from: &[u16; LANES]) -> Self::F;
    /// 16 bytes as numbers from 0 to 255.
    fn load_u8(from: &[u8; LANES]) -> Self::F;
    /// 16 integers, rounded to nearest even where f32 cannot hold them.
    fn from_i32(value: Self::I) -> Self::F;
    /// 16 f32 of these bits.
    fn from_bits(bits: Self::I) -> Self::F;
    /// The same value in every lane of a part.
    fn splat_part(value: f32) -> Self::Part;
    /// Part `part` of 16 lanes.
    fn part(value: Self::F, part: usize) -> Self::Part;
    /// Part `part` of 16 f32.
    fn load_part(from: &[f32; LANES], part: usize) -> Self::Part;
    /// Writes part `part` of 16 f32.
    fn store_part(value: Self::Part, to: &mut [f32; LANES], part: usize);
    /// Part `part` of 16 f16, widened.
    fn load_part_f16(from: &[u16; LANES], part: usize) -> Self::Part;
    /// Part `part` of the evens (half 0) or odds (half 1) of 32 bf16, widened.
    fn load_part_bf16(from: &[u16; 2 * LANES], part: usize, half: usize) -> Self::Part;
    /// a * b + c, rounded once.
    fn fma_part(a: Self::Part, b: Self::Part, c: Self::Part) -> Self::Part;
    /// Part `part` of 32 bf16 weights: of all, or of the evens (half 0) or odds (half 1).
    fn load_half(from: &[u16; 2 * LANES], part: usize, half: usize) -> Self::Half;
    /// The same of 32 inputs in `INPUT_LINES` lines: 32 bf16, or the evens and the odds as f32.
    fn load_input(lines: &[Line], part: usize, half: usize) -> Self::Half;
    /// The same input in every lane, widened where halves are apart.
    fn splat_half(value: f32) -> Self::Half;
    /// Rows to columns.
    fn transpose(from: &Rows<'_>, to: &mut Square);
    /// Rows of 32 bf16 to columns, widened.
    #[inline(always)]
    fn transpose_bf16(from: &Rows<'_>, to: &mut [Square; 2]) {
        let mut pairs = [[0.0; LANES]; LANES];
        Self::transpose(from, &mut pairs);
        for (pair, both) in pairs.iter().zip(to.as_flattened_mut().as_chunks_mut::<2>().0) {
            for half in 0..2 {
                for part in 0..Self::PARTS {
                    Self::store_part(Self::load_part_bf16(u16s(pair), part, half), &mut both[half], part);
                }
            }
        }
    }
    /// Pairs of a and b: of each eight numbers the first four (half 0), or the last four.
    #[inline(always)]
    fn interleave(a: &[u16; 2 * LANES], b: &[u16; 2 * LANES], half: usize) -> [u16; 2 * LANES] {
        std::array::from_fn(|i| [a, b][i % 2][i / 8 * 8 + half * 4 + i % 8 / 2])
    }
    /// 32 bf16, rounded to nearest even; where bf16 multiply in pairs, subnormal ones become 0.
    #[inline(always)]
    fn round_bf16(low: Self::F, high: Self::F) -> [u16; 2 * LANES] {
        round_both::<Self>(low, high)
    }
    /// 32 numbers times `inverse`, at most 127, rounded to nearest even; or the bits of bytes, if they are up to 255.
    #[inline(always)]
    fn round_int8(low: Self::F, high: Self::F, inverse: f32) -> [i8; 2 * LANES] {
        let mut quants = [0; 2 * LANES];
        for (half, quants) in [low, high].into_iter().zip(quants.as_chunks_mut::<LANES>().0) {
            let mut shifted = [0.0f32; LANES];
            Self::store(Self::add(Self::mul(half, Self::splat(inverse)), Self::splat(SHIFT)), &mut shifted);
            for (quant, shifted) in quants.iter_mut().zip(shifted) {
                *quant = shifted.to_bits() as i8;
            }
        }
        quants
    }
    /// The sums of each 16 integers.
    #[inline(always)]
    fn sum_int8(quants: &[[i8; 2 * LANES]; 8]) -> [[i32; 2]; 8] {
        let mut sums = [[0; 2]; 8];
        for (sum, quants) in sums.as_flattened_mut().iter_mut().zip(quants.as_flattened().as_chunks::<LANES>().0) {
            *sum = quants.iter().map(|quant| i32::from(*quant)).sum();
        }
        sums
    }
    /// Of four pairs of f16 the first ones, in the low bits, widened, each in four lanes, and the second ones; or these and zeros.
    #[inline(always)]
    fn halves_in_fours(pairs: [u32; 4], skips: bool) -> [Self::F; 2] {
        let mut halves = [[0; LANES]; 2];
        for lane in 0..LANES {
            let pair = if skips { pairs[lane / 4] >> 16 } else { pairs[lane / 4] };
            (halves[0][lane], halves[1][lane]) = (pair as u16, (pair >> 16) as u16);
        }
        [Self::load_f16(&halves[0]), Self::load_f16(&halves[1])]
    }
    /// Whether any lane of `a` is less than that of `b`.
    #[inline(always)]
    fn any_less(a: Self::F, b: Self::F) -> bool {
        let mut found = [0.0; LANES];
        Self::store(Self::select_less(a, b, Self::splat(1.0), Self::splat(0.0)), &mut found);
        found.contains(&1.0)
    }
    /// Quads of four rows of bytes less 128: of each eight numbers the first four, and the last four.
    #[inline(always)]
    fn interleave_quads(rows: [&[u8; 2 * LANES]; 4]) -> [Line; 2] {
        let mut quads = [Line([0.0; LANES]); 2];
        for (half, quads) in quads.iter_mut().enumerate() {
            for (i, quad) in quads.0.iter_mut().enumerate() {
                let bytes = rows.map(|row| row[i / 4 * 8 + half * 4 + i % 4] ^ 128);
                *quad = f32::from_bits(u32::from_ne_bytes(bytes));
            }
        }
        quads
    }
    /// Lane i: the greatest of the lanes i % 4 of each four.
    #[inline(always)]
    fn greatest_of_fours(a: Self::F) -> Self::F {
        let mut lanes = [0.0; LANES];
        Self::store(a, &mut lanes);
        let greater = |a: f32, b: f32| if a > b { a } else { b };
        Self::load(&std::array::from_fn(|i| {
            (1..4).fold(lanes[i % 4], |most, four| greater(most, lanes[4 * four + i % 4]))
        }))
    }
    /// Numbers up to 255, rounded to nearest even, as bytes: byte `four` of word `4 * i + lane` is lane `4 * four + lane` of vector i.
    #[inline(always)]
    fn bytes_of_fours(vectors: [Self::F; 4]) -> Line {
        let mut lanes = [[0.0; LANES]; 4];
        for (lanes, vector) in lanes.iter_mut().zip(vectors) {
            Self::store(Self::round(vector), lanes);
        }
        let byte = |i: usize, four: usize| lanes[i / 4][4 * four + i % 4] as u8;
        Line(std::array::from_fn(|i| f32::from_bits(u32::from_le_bytes(std::array::from_fn(|four| byte(i, four))))))
    }
    /// Whether lines are best asked for twice, for the second-level cache and then for the first. See [`Asks`].
    const ASKS_TWICE: bool;
    /// Asks for the cache line at an address that is about to be read; any address will do.
    fn prefetch(address: *const u8);
    /// The same, long before it is read: into the second-level cache where lines are asked for twice, else into the first.
    fn prefetch_far(address: *const u8);
    /// Asks for the cache line at an address that is about to be written; any address will do.
    fn prefetch_write(address: *const u8);
    /// Lane i: `acc + a[i] * b[i]`, for both of a pair where halves are not apart.
    fn dot_half(acc: Self::Part, a: Self::Half, b: Self::Half) -> Self::Part;
}

/// [`Simd::prefetch_write`] of every x86-64. In assembly, since the intrinsic only asks to read unless a feature is on.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
fn prefetch_write(address: *const u8) {
    // SAFETY: a prefetch writes nothing and faults nowhere, and does nothing where a processor lacks it.
    unsafe { std::arch::asm!("prefetchw [{}]", in(reg) address, options(nostack, preserves_flags, readonly)) };
}

/// [`Simd::round_bf16`] by [`Simd::store_bf16`], which keeps subnormal numbers.
#[inline(always)]
fn round_both<S: Simd>(low: S::F, high: S::F) -> [u16; 2 * LANES] {
    let mut bits = [[0; LANES]; 2];
    S::store_bf16(low, &mut bits[0]);
    S::store_bf16(high, &mut bits[1]);
    std::array::from_fn(|i| bits.as_flattened()[i])
}

/// CPU code of an op, generic over the level.
pub(crate) trait Kernel {
    type Output;
    /// Must be `#[inline(always)]`, so that it is compiled with the level's features.
    fn run<S: Simd>(self) -> Self::Output;
}

/// Runs `kernel` at `level`.
#[inline]
pub(crate) fn dispatch<K: Kernel>(level: SimdLevel, kernel: K) -> K::Output {
    match level {
        SimdLevel::Portable => kernel.run::<portable::Portable>(),
        // SAFETY (all three): an `Exec` never holds a level above `SimdLevel::detect`, so the features are there.
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx2 => unsafe { avx2::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512 | SimdLevel::Amx => unsafe { avx512::run(kernel) },
        #[cfg(target_arch = "x86_64")]
        SimdLevel::Avx512Bf16 => unsafe { avx512::run_bf16(kernel) },
        #[cfg(not(target_arch = "x86_64"))]
        _ => unreachable!("detect() names only the portable level here"),
    }
}

/// The part of `values` that fills whole vectors, and the rest.
#[inline(always)]
pub(crate) fn vectors(values: &[f32]) -> (&[[f32; LANES]], &[f32]) {
    values.as_chunks()
}

/// `values` (at most 16) followed by `fill`.
#[inline(always)]
pub(crate) fn padded<T: Copy>(values: &[T], fill: T) -> [T; LANES] {
    // A copy of known length is one instruction and not a call.
    if let Ok(lanes) = <[T; LANES]>::try_from(values) {
        return lanes;
    }
    let mut lanes = [fill; LANES];
    lanes[..values.len()].copy_from_slice(values);
    lanes
}

/// The first of `lanes` into `out` (at most 16).
#[inline(always)]
pub(crate) fn unpadded<T: Copy>(lanes: &[T; LANES], out: &mut [T]) {
    // As above.
    match <&mut [T; LANES]>::try_from(&mut *out) {
        Ok(out) => *out = *lanes,
        Err(_) => out.copy_from_slice(&lanes[..out.len()]),
    }
}

#[cfg(test)]
mod tests;
