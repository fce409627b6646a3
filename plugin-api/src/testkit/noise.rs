//! The noise of the fake host: Philox4x32-10, keyed like the engine's.
//!
//! Equality with the engine's numbers is not promised, only the contract: a pure function of key and index, in (0, 1).

use crate::types::NoiseKey;

const MULTIPLIERS: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
const ROUNDS: usize = 10;

/// The uniform of `key` at `index`, in (0, 1), with 53 random bits (Salmon et al., SC 2011).
pub fn uniform(key: NoiseKey, index: u32) -> f64 {
    let counter = [index / 2, key.stream as u32, (key.stream >> 32) as u32, key.completion];
    let block = philox(counter, [key.seed as u32, (key.seed >> 32) as u32]);
    let half = (index % 2) as usize * 2;
    let bits = (u64::from(block[half]) << 32) | u64::from(block[half + 1]);
    ((bits >> 11) as f64 + 0.5) / (1u64 << 53) as f64
}

fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let low = MULTIPLIERS[0] * u64::from(counter[0]);
        let high = MULTIPLIERS[1] * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn philox_matches_the_published_vectors() {
        assert_eq!(philox([0; 4], [0; 2]), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(philox([u32::MAX; 4], [u32::MAX; 2]), [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
    }

    #[test]
    fn noise_depends_on_every_coordinate() {
        let base = NoiseKey::new(7, 0);
        let all = [
            uniform(base, 0),
            uniform(base, 1),
            uniform(base, 2),
            uniform(NoiseKey { seed: 8, ..base }, 0),
            uniform(NoiseKey { completion: 1, ..base }, 0),
            uniform(base.for_output(1), 0),
            uniform(NoiseKey { stream: 1 << 32, ..base }, 0),
        ];
        assert!((0..all.len()).all(|i| (0..i).all(|j| all[i] != all[j])));
    }
}
