//! The copy, widening 16 bf16 at a time.
//!
//! A bf16 row's tail goes element by element. Other formats take the plain way: a row per token is little work.

use crate::simd::{Kernel, LANES, Simd};
use crate::weight::{Arrangement, Weight, WeightDtype};

pub(super) struct Embed<'a> {
    pub table: &'a Weight,
    pub tokens: &'a [u32],
    pub out: &'a mut [f32],
}

impl Kernel for Embed<'_> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self) {
        let width = self.table.cols();
        for (token, out) in self.tokens.iter().zip(self.out.chunks_exact_mut(width)) {
            let token = *token as usize;
            match self.table.dtype() {
                WeightDtype::Bf16 if self.table.arrangement() == Arrangement::Rows => {
                    widen::<S>(&self.table.u16s()[token * width..(token + 1) * width], out)
                }
                _ => self.table.row_f32(token, out),
            }
        }
    }
}

/// bf16 bits as f32.
#[inline(always)]
fn widen<S: Simd>(bits: &[u16], out: &mut [f32]) {
    let (bits, bits_rest) = bits.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    for (bits, out) in bits.iter().zip(out) {
        S::store(S::load_bf16(bits), out);
    }
    for (bits, out) in bits_rest.iter().zip(out_rest) {
        *out = f32::from_bits(u32::from(*bits) << 16);
    }
}
