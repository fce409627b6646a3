//! The lane operations against scalar arithmetic, at every level of this machine.
//!
//! Bit-for-bit agreement between levels is tested here for single operations, and in `tests/ops` for whole ops.
//! The bound on the exponential is the one that `math` documents.

use super::*;
use half::bf16;

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
