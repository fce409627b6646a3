//! The race with almost no logarithms.
//!
//! Since -ln(u) >= 1 - u, a token with (1 - u) / prob no better than the best time so far cannot win; only the few
//! others take a logarithm. Noise is made for 64 tokens at a time, vectorised by the compiler at every level, and not
//! at all where no token of the 64 has any probability.

use crate::noise::{NoiseKey, block_bits, unit};
use crate::simd::{Kernel, Simd, SimdLevel, dispatch};

/// Tokens whose noise is made together.
const BLOCK: usize = 64;

pub(super) fn gumbel_argmax(probs: &[f32], key: NoiseKey) -> Option<u32> {
    dispatch(SimdLevel::detect(), Race { probs, key })
}

struct Race<'a> {
    probs: &'a [f32],
    key: NoiseKey,
}

impl Kernel for Race<'_> {
    type Output = Option<u32>;

    #[inline(always)]
    fn run<S: Simd>(self) -> Option<u32> {
        let (mut winner, mut best) = (None, f64::INFINITY);
        for (block, probs) in self.probs.chunks(BLOCK).enumerate() {
            if !probs.iter().fold(false, |any, prob| any | (*prob > 0.0)) {
                continue;
            }
            let mut noise = [[0; 4]; BLOCK / 4];
            for (lane, noise) in noise.iter_mut().enumerate() {
                *noise = block_bits(self.key, (block * BLOCK / 4 + lane) as u32);
            }
            for (i, (prob, bits)) in probs.iter().zip(noise.as_flattened()).enumerate() {
                let (prob, u) = (f64::from(*prob), unit(*bits));
                if prob > 0.0 && (1.0 - u) < best * prob {
                    let time = -u.ln() / prob;
                    if time < best {
                        (winner, best) = (Some((block * BLOCK + i) as u32), time);
                    }
                }
            }
        }
        winner
    }
}
