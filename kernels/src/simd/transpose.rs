//! 16 x 16 f32, rows to columns.
//!
//! AVX-512 takes the AVX2 form: the shuffles are the limit, and wider ones would be no fewer per element.

use super::LANES;

/// 16 rows of 16.
pub(crate) type Square = [[f32; LANES]; LANES];

/// Plain loops.
#[inline(always)]
pub(super) fn portable(from: &Square, to: &mut Square) {
    for (i, to) in to.iter_mut().enumerate() {
        for (to, from) in to.iter_mut().zip(from) {
            *to = from[i];
        }
    }
}

/// Four squares of 8 x 8, each in three rounds of shuffles.
///
/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx2(from: &Square, to: &mut Square) {
    use std::arch::x86_64::*;
    for down in [0, 8] {
        for right in [0, 8] {
            // SAFETY: AVX2 by this function's contract; rows are 16 long, and 8 are read or written from 0 or 8 on.
            unsafe {
                let mut a = [_mm256_setzero_ps(); 8];
                let mut b = a;
                for i in 0..8 {
                    a[i] = _mm256_loadu_ps(from[down + i].as_ptr().add(right));
                }
                for i in 0..4 {
                    b[2 * i] = _mm256_unpacklo_ps(a[2 * i], a[2 * i + 1]);
                    b[2 * i + 1] = _mm256_unpackhi_ps(a[2 * i], a[2 * i + 1]);
                }
                for i in [0, 4] {
                    a[i] = _mm256_shuffle_ps::<0x44>(b[i], b[i + 2]);
                    a[i + 1] = _mm256_shuffle_ps::<0xee>(b[i], b[i + 2]);
                    a[i + 2] = _mm256_shuffle_ps::<0x44>(b[i + 1], b[i + 3]);
                    a[i + 3] = _mm256_shuffle_ps::<0xee>(b[i + 1], b[i + 3]);
                }
                for i in 0..4 {
                    let (low, high) = (a[i], a[i + 4]);
                    _mm256_storeu_ps(to[right + i].as_mut_ptr().add(down), _mm256_permute2f128_ps::<0x20>(low, high));
                    _mm256_storeu_ps(
                        to[right + i + 4].as_mut_ptr().add(down),
                        _mm256_permute2f128_ps::<0x31>(low, high),
                    );
                }
            }
        }
    }
}
