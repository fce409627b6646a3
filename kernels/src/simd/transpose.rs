//! 16 x 16 words of 32 bits, rows to columns.
//!
//! AVX2 and AVX-512 do the same in different widths: what is read as a vector after must have been stored as one.

use super::LANES;
use crate::bytes::Plain;

/// 16 columns of 16.
pub(crate) type Square = [[f32; LANES]; LANES];
/// 16 rows of 16 words, which need no alignment.
pub(crate) type Rows<'a> = [&'a [u8; 4 * LANES]; LANES];

/// Rows of other numbers, as many bytes.
#[inline(always)]
pub(crate) fn as_rows<'a, T: Plain, const N: usize>(rows: &[&'a [T; N]; LANES]) -> Rows<'a> {
    const { assert!(N * size_of::<T>() == 4 * LANES) };
    let mut bytes: Rows<'a> = [&[0; 4 * LANES]; LANES];
    for (bytes, row) in bytes.iter_mut().zip(rows) {
        // SAFETY: as many plain bytes, by the assertion.
        *bytes = unsafe { &*std::ptr::from_ref(*row).cast() };
    }
    bytes
}

/// Plain loops.
#[inline(always)]
pub(super) fn portable(from: &Rows<'_>, to: &mut Square) {
    for (i, to) in to.iter_mut().enumerate() {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from_ne_bytes(from.as_chunks().0[i]));
        }
    }
}

/// Four squares of 8 x 8, each in two rounds of shuffles after loads that put halves of rows beside each other.
///
/// # Safety
/// The processor must have AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx2(from: &Rows<'_>, to: &mut Square) {
    use std::arch::x86_64::*;
    for down in [0, 8] {
        for right in [0, 8] {
            // SAFETY: AVX2 by this function's contract; rows are 16 long, and 8 are read or written from 0 or 8 on.
            unsafe {
                // Rows 0 to 3 under each other with 4 to 7 beside them, first the left half of all, then the right.
                for half in [0, 4] {
                    let mut a = [_mm256_setzero_ps(); 4];
                    for i in 0..4 {
                        let at = |row: usize| from[down + row].as_ptr().add(4 * (right + half)).cast();
                        let (top, bottom) = (_mm_loadu_ps(at(i)), _mm_loadu_ps(at(i + 4)));
                        a[i] = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(top), bottom);
                    }
                    let [b0, b1] = [_mm256_unpacklo_ps(a[0], a[1]), _mm256_unpackhi_ps(a[0], a[1])];
                    let [b2, b3] = [_mm256_unpacklo_ps(a[2], a[3]), _mm256_unpackhi_ps(a[2], a[3])];
                    let columns = [
                        _mm256_shuffle_ps::<0x44>(b0, b2),
                        _mm256_shuffle_ps::<0xee>(b0, b2),
                        _mm256_shuffle_ps::<0x44>(b1, b3),
                        _mm256_shuffle_ps::<0xee>(b1, b3),
                    ];
                    for i in 0..4 {
                        _mm256_storeu_ps(to[right + half + i].as_mut_ptr().add(down), columns[i]);
                    }
                }
            }
        }
    }
}

/// All columns, in four rounds of shuffles.
///
/// # Safety
/// The processor must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx512(from: &Rows<'_>) -> [std::arch::x86_64::__m512; LANES] {
    use std::arch::x86_64::*;
    // SAFETY: by this function's contract; a row is 64 bytes.
    unsafe {
        let mut columns = [_mm512_setzero_ps(); LANES];
        // Four words of row i with those of i + 4, i + 8 and i + 12 beside them, at 4 * i for the first four.
        for i in 0..4 {
            let mut a = [_mm512_setzero_ps(); 4];
            for (at, a) in a.iter_mut().enumerate() {
                *a = _mm512_loadu_ps(from[i + 4 * at].as_ptr().cast());
            }
            let [b0, b1] = [_mm512_shuffle_f32x4::<0x44>(a[0], a[1]), _mm512_shuffle_f32x4::<0xee>(a[0], a[1])];
            let [b2, b3] = [_mm512_shuffle_f32x4::<0x44>(a[2], a[3]), _mm512_shuffle_f32x4::<0xee>(a[2], a[3])];
            columns[i] = _mm512_shuffle_f32x4::<0x88>(b0, b2);
            columns[4 + i] = _mm512_shuffle_f32x4::<0xdd>(b0, b2);
            columns[8 + i] = _mm512_shuffle_f32x4::<0x88>(b1, b3);
            columns[12 + i] = _mm512_shuffle_f32x4::<0xdd>(b1, b3);
        }
        for columns in columns.as_chunks_mut().0 {
            *columns = within_quarters(*columns);
        }
        columns
    }
}

/// 4 x 4 words in each quarter of four vectors, rows to columns.
///
/// # Safety
/// The processor must have AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn within_quarters(a: [std::arch::x86_64::__m512; 4]) -> [std::arch::x86_64::__m512; 4] {
    use std::arch::x86_64::*;
    // SAFETY: by this function's contract.
    unsafe {
        let [b0, b1] = [_mm512_unpacklo_ps(a[0], a[1]), _mm512_unpackhi_ps(a[0], a[1])];
        let [b2, b3] = [_mm512_unpacklo_ps(a[2], a[3]), _mm512_unpackhi_ps(a[2], a[3])];
        [
            _mm512_shuffle_ps::<0x44>(b0, b2),
            _mm512_shuffle_ps::<0xee>(b0, b2),
            _mm512_shuffle_ps::<0x44>(b1, b3),
            _mm512_shuffle_ps::<0xee>(b1, b3),
        ]
    }
}
