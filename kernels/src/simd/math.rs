//! Functions made of lane operations, the same bits at every level.
//!
//! `exp` follows the range reduction of Cephes' `expf` (Moshier): x = n ln 2 + r, a polynomial in r, scaling by 2^n.
//! Its relative error is below 2e-7 (tested over the whole range). Results that would be subnormal are flushed to 0:
//! exp(x) = 0 for x < -87.33, and the greatest x that gives a finite result, 88.37, bounds the input from above, so
//! the function never returns infinity. `exp2_of_negative` needs no ln 2 and no upper bound; its polynomial, 1 at 0, was
//! fitted for the least relative error in [-1/2, 1/2] (9e-8, 2e-7 with rounding). There is no vector logarithm: the one
//! place that needs logarithms, `ops::gumbel`, prunes with a bound and takes the few that are left in f64.

use super::Simd;

/// Least input whose exponential is a normal f32.
const EXP_MIN: f32 = -87.33;
/// Greatest input for which 2^n stays finite.
const EXP_MAX: f32 = 88.37;
/// Least input of the power of two whose result is normal, rounded as it may be.
const EXP2_MIN: f32 = -125.0;

/// e^x; 0 below [`EXP_MIN`], saturating above [`EXP_MAX`]; unspecified for NaN.
#[inline(always)]
pub(crate) fn exp<S: Simd>(x: S::F) -> S::F {
    let clamped = S::min(S::max(x, S::splat(EXP_MIN)), S::splat(EXP_MAX));
    let n = S::round(S::mul(clamped, S::splat(std::f32::consts::LOG2_E)));
    // ln 2 in two parts, the first exact in few bits, so that its product is exact.
    let r = S::fma(n, S::splat(-0.693_359_4), clamped);
    let r = S::fma(n, S::splat(2.121_944_4e-4), r);
    let mut p = S::splat(1.987_569_2e-4);
    for coefficient in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    let e = S::add(S::fma(S::mul(r, r), p, r), S::splat(1.0));
    S::select_less(x, S::splat(EXP_MIN), S::splat(0.0), S::scale_by_exponent(e, n))
}

/// 2^x for x <= 0; 0 up to [`EXP2_MIN`], and for NaN.
#[expect(clippy::approx_constant, reason = "fitted with the others, and not quite ln 2")]
#[inline(always)]
pub(crate) fn exp2_of_negative<S: Simd>(x: S::F) -> S::F {
    let n = S::round(x);
    let r = S::sub(x, n);
    let mut p = S::splat(1.326_472_7e-3);
    for coefficient in [9.671_513e-3, 5.550_733_6e-2, 0.240_222_42, 0.693_147, 1.0] {
        p = S::fma(p, r, S::splat(coefficient));
    }
    // Where x is less, n may be no exponent, and p NaN.
    S::select_less(S::splat(EXP2_MIN), x, S::scale_by_exponent(p, n), S::splat(0.0))
}

/// x / (1 + e^-x), also called swish.
#[inline(always)]
pub(crate) fn silu<S: Simd>(x: S::F) -> S::F {
    let decay = exp::<S>(S::sub(S::splat(0.0), x));
    S::div(x, S::add(S::splat(1.0), decay))
}
