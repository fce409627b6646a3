//! The lanes in plain Rust: the definition that the other levels are tested against, bit for bit.
//!
//! `mul_add` is one instruction where the target has it (aarch64) and a library call on baseline x86-64. That makes
//! this level slow on x86-64, where nobody needs it for speed, and in exchange it rounds like all the others.

use super::{LANES, Line, Rows, Simd, Square};
use half::{bf16, f16};

#[derive(Clone, Copy)]
pub(crate) struct Portable;

type Lanes = [f32; LANES];

#[inline(always)]
fn zip(a: Lanes, b: Lanes, op: impl Fn(f32, f32) -> f32) -> Lanes {
    std::array::from_fn(|i| op(a[i], b[i]))
}

/// Folds halves onto halves.
#[inline(always)]
fn fold(mut a: Lanes, op: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            a[i] = op(a[i], a[i + width]);
        }
        width /= 2;
    }
    a[0]
}

impl Simd for Portable {
    type F = Lanes;
    type Part = Lanes;
    type Half = Lanes;
    const HALVES: usize = 2;
    const INPUT_LINES: usize = 2;
    const PARTS: usize = 1;
    const ASKS_TWICE: bool = false;
    const QUERIES: usize = 2;
    const TILE_ROWS: usize = 4;
    const COLUMN_ROWS: usize = 2;

    #[inline(always)]
    fn splat(value: f32) -> Lanes {
        [value; LANES]
    }
    #[inline(always)]
    fn load(from: &Lanes) -> Lanes {
        *from
    }
    #[inline(always)]
    fn store(value: Lanes, to: &mut Lanes) {
        *to = value;
    }
    #[inline(always)]
    fn add(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    fn sub(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    fn mul(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    fn div(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    fn fma(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    fn max(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn min(a: Lanes, b: Lanes) -> Lanes {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    fn round(a: Lanes) -> Lanes {
        a.map(f32::round_ties_even)
    }
    #[inline(always)]
    fn scale_by_exponent(a: Lanes, n: Lanes) -> Lanes {
        zip(a, n, |a, n| a * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    fn select_less(a: Lanes, b: Lanes, x: Lanes, y: Lanes) -> Lanes {
        std::array::from_fn(|i| if a[i] < b[i] { x[i] } else { y[i] })
    }
    #[inline(always)]
    fn sum(a: Lanes) -> f32 {
        fold(a, |a, b| a + b)
    }
    #[inline(always)]
    fn greatest(a: Lanes) -> f32 {
        fold(a, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    fn load_bf16(from: &[u16; LANES]) -> Lanes {
        from.map(|bits| f32::from_bits(u32::from(bits) << 16))
    }
    #[inline(always)]
    fn store_bf16(value: Lanes, to: &mut [u16; LANES]) {
        *to = value.map(|v| bf16::from_f32(v).to_bits());
    }
    #[inline(always)]
    fn load_f16(from: &[u16; LANES]) -> Lanes {
        from.map(|bits| f16::from_bits(bits).to_f32())
    }
    #[inline(always)]
    fn load_u8(from: &[u8; LANES]) -> Lanes {
        from.map(f32::from)
    }
    #[inline(always)]
    fn from_i32(value: [i32; LANES]) -> Lanes {
        value.map(|value| value as f32)
    }
    #[inline(always)]
    fn from_bits(bits: [i32; LANES]) -> Lanes {
        bits.map(|bits| f32::from_bits(bits as u32))
    }
    #[inline(always)]
    fn splat_part(value: f32) -> Lanes {
        Self::splat(value)
    }
    #[inline(always)]
    fn part(value: Lanes, _part: usize) -> Lanes {
        value
    }
    #[inline(always)]
    fn load_part(from: &Lanes, _part: usize) -> Lanes {
        *from
    }
    #[inline(always)]
    fn store_part(value: Lanes, to: &mut Lanes, _part: usize) {
        *to = value;
    }
    #[inline(always)]
    fn load_part_f16(from: &[u16; LANES], _part: usize) -> Lanes {
        Self::load_f16(from)
    }
    #[inline(always)]
    fn fma_part(a: Lanes, b: Lanes, c: Lanes) -> Lanes {
        Self::fma(a, b, c)
    }
    #[inline(always)]
    fn load_part_bf16(from: &[u16; 2 * LANES], _part: usize, half: usize) -> Lanes {
        std::array::from_fn(|i| f32::from_bits(u32::from(from[2 * i + half]) << 16))
    }
    #[inline(always)]
    fn load_half(from: &[u16; 2 * LANES], part: usize, half: usize) -> Lanes {
        Self::load_part_bf16(from, part, half)
    }
    #[inline(always)]
    fn load_input(lines: &[Line], _part: usize, half: usize) -> Lanes {
        lines[half].0
    }
    #[inline(always)]
    fn splat_half(value: f32) -> Lanes {
        Self::splat(value)
    }
    #[inline(always)]
    fn transpose(from: &Rows<'_>, to: &mut Square) {
        super::transpose::portable(from, to);
    }
    #[inline(always)]
    fn prefetch(_address: *const u8) {}
    #[inline(always)]
    fn prefetch_far(_address: *const u8) {}
    #[inline(always)]
    fn prefetch_write(_address: *const u8) {}
    #[inline(always)]
    fn dot_half(acc: Lanes, a: Lanes, b: Lanes) -> Lanes {
        Self::fma(a, b, acc)
    }
}
