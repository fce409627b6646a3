//! 16 x 16 words of 32 bits, rows to columns.
//!
//! AVX2 and AVX-512 do the same in different widths: what is read as a vector after must have been stored as one.

use super::LANES;

/// 16 columns of 16.
pub(crate) type Square = [[f32; LANES]; LANES];
/// 16 rows of 16 words, two u16 each, which need no more alignment.
pub(crate) type Rows<'a> = [&'a [u16; 2 * LANES]; LANES];

/// Plain loops.
#[inline(always)]
pub(super) fn portable(from: &Rows<'_>, to: &mut Square) {
    for (i, to) in to.iter_mut().enumerate() {
        for (to, from) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(from[2 * i]) | u32::from(from[2 * i + 1]) << 16);
        }
    }
}

/// Where the 16 bytes of number `piece` of each row are.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) fn pieces<T>(rows: &[&[T; 2 * LANES]; LANES], piece: usize) -> [*const u8; LANES] {
    assert!((piece + 1) * 16 <= size_of::<[T; 2 * LANES]>());
    let mut pieces = [std::ptr::null(); LANES];
    for (to, row) in pieces.iter_mut().zip(rows) {
        *to = row.as_ptr().cast::<u8>().wrapping_add(16 * piece);
    }
    pieces
}

/// Squares of 8 x 8 of 16 rows, each in two rounds of shuffles after loads that put halves of rows beside each other.
///
/// # Safety
/// The processor must have AVX2, and there must be as many words at each place as columns, whose number must be a multiple
/// of 8.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx2(from: &[*const u8; LANES], to: &mut [[f32; LANES]]) {
    use std::arch::x86_64::*;
    for down in [0, 8] {
        for (right, to) in to.as_chunks_mut::<8>().0.iter_mut().enumerate() {
            // SAFETY: AVX2 by this function's contract; columns are 16 long, and 8 are written from 0 or 8 on.
            unsafe {
                // Rows 0 to 3 under each other with 4 to 7 beside them, first the left half of all, then the right.
                for half in [0, 4] {
                    let mut a = [_mm256_setzero_ps(); 4];
                    for i in 0..4 {
                        let at = |row: usize| from[down + row].cast::<f32>().add(8 * right + half);
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
                        _mm256_storeu_ps(to[half + i].as_mut_ptr().add(down), columns[i]);
                    }
                }
            }
        }
    }
}

/// 4 columns of 16 rows of 4 words each, in two rounds of shuffles after loads that put four rows beside each other.
///
/// # Safety
/// The processor must have AVX-512, and there must be 16 bytes at each place.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
pub(super) unsafe fn avx512(from: &[*const u8; LANES]) -> [std::arch::x86_64::__m512; 4] {
    use std::arch::x86_64::*;
    // SAFETY: by this function's contract.
    unsafe {
        // Row i with i + 4, i + 8 and i + 12 beside it.
        let mut a = [_mm512_setzero_ps(); 4];
        for i in 0..4 {
            let [first, second] = [_mm_loadu_ps(from[i].cast()), _mm_loadu_ps(from[i + 4].cast())];
            let [third, fourth] = [_mm_loadu_ps(from[i + 8].cast()), _mm_loadu_ps(from[i + 12].cast())];
            let low = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(first), second);
            let high = _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(third), fourth);
            a[i] = _mm512_insertf32x8::<1>(_mm512_castps256_ps512(low), high);
        }
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
