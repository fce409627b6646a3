//! Counter-based randomness: Philox4x32-10 (Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011).
//!
//! A number is a pure function of a [`NoiseKey`] and an index, so the text of a request does not depend on batch,
//! drafts or order. The alternative, a generator with state, would have to be rolled back with every refused draft.
//!
//! The key words are the two halves of the seed. The counter words are: index / 4, completion, and the two halves of
//! the stream; index % 4 picks the lane. The map from (seed, completion, stream, index) to (key, counter, lane) is
//! one-to-one, so no two of them share a number; what a stream stands for is its caller's business.

/// Whose noise: a request's seed, one of its completions, and a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct NoiseKey {
    /// The request's seed.
    pub seed: u64,
    /// Which of the request's completions.
    pub completion: u32,
    /// What the numbers are for.
    pub stream: u64,
}

const ROUNDS: u32 = 10;
const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// The four numbers of one counter block.
#[inline(always)]
pub(crate) fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for round in 0..ROUNDS {
        if round > 0 {
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let products = [0, 1].map(|i| u64::from(counter[2 * i]) * u64::from(MULTIPLIERS[i]));
        let [high0, high1] = products.map(|p| (p >> 32) as u32);
        let [low0, low1] = products.map(|p| p as u32);
        counter = [high1 ^ counter[1] ^ key[0], low1, high0 ^ counter[3] ^ key[1], low0];
    }
    counter
}

/// The numbers of indices `4 * block .. 4 * block + 4`.
#[inline(always)]
pub(crate) fn block_bits(key: NoiseKey, block: u32) -> [u32; 4] {
    let halves = |word: u64| [word as u32, (word >> 32) as u32];
    let [low, high] = halves(key.stream);
    philox([block, key.completion, low, high], halves(key.seed))
}

/// 32 random bits.
pub fn bits(key: NoiseKey, index: u32) -> u32 {
    block_bits(key, index / 4)[(index % 4) as usize]
}

/// `bits` as a number in (0, 1): the middle of one of 2^32 equal intervals, so never 0 and never 1.
#[inline(always)]
pub(crate) fn unit(bits: u32) -> f64 {
    (f64::from(bits) + 0.5) * (1.0 / 4_294_967_296.0)
}

/// A uniform number in (0, 1), with a resolution of 2^-32.
pub fn uniform(key: NoiseKey, index: u32) -> f64 {
    unit(bits(key, index))
}

/// `bits` of the indices `first .. first + out.len()`.
pub fn fill_bits(key: NoiseKey, first: u32, out: &mut [u32]) {
    for (index, out) in (first..=u32::MAX).zip(out.iter_mut()) {
        *out = bits(key, index);
    }
}

/// `uniform` of the indices `first .. first + out.len()`.
pub fn fill_uniform(key: NoiseKey, first: u32, out: &mut [f64]) {
    for (index, out) in (first..=u32::MAX).zip(out.iter_mut()) {
        *out = uniform(key, index);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers for philox4x32-10 that ship with Random123 (kat_vectors).
    #[test]
    fn known_answers() {
        let pi = [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344];
        let cases = [
            ([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]),
            ([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]),
            (pi, [0xa409_3822, 0x299f_31d0], [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]),
        ];
        for (counter, key, want) in cases {
            assert_eq!(philox(counter, key), want);
        }
    }

    #[test]
    fn every_coordinate_matters() {
        let key = NoiseKey { seed: 1, completion: 2, stream: 3 };
        let others = [
            NoiseKey { seed: 1 << 40, ..key },
            NoiseKey { completion: 3, ..key },
            NoiseKey { stream: 3 << 32, ..key },
            NoiseKey { stream: 4, ..key },
        ];
        for other in others {
            assert_ne!(bits(key, 5), bits(other, 5), "{other:?}");
        }
        let mut all = [0; 9];
        fill_bits(key, 3, &mut all);
        assert!((0..9).all(|i| all[i as usize] == bits(key, 3 + i)));
    }

    #[test]
    fn uniform_is_inside_the_open_interval() {
        assert!(unit(0) > 0.0 && unit(u32::MAX) < 1.0);
        let mean: f64 = (0..40_000).map(|i| uniform(NoiseKey { seed: 9, completion: 0, stream: 0 }, i)).sum();
        // 4.5 standard errors of the mean of 40,000 uniforms.
        assert!((mean / 40_000.0 - 0.5).abs() < 4.5 * (1.0f64 / 12.0 / 40_000.0).sqrt());
    }
}
