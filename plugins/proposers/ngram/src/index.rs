//! Where each n-gram of a sequence occurred last.
//!
//! One map for all lengths: the hash of an n-gram grows by one token to the left at a time, so all lengths ending at a
//! position cost one short walk. A longest match is then found by lookups from the shortest length up, stopping at the
//! first miss. The alternative, scanning the context for each draft (as vLLM does with KMP), costs O(context) a step.
//! A hash collision can only hide a match: tokens are compared before a match is believed.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::RangeInclusive;

use foretoken_plugin_api::Token;

/// The n-grams of one sequence, of every length in a range.
#[derive(Debug)]
pub struct NgramIndex {
    sizes: RangeInclusive<usize>,
    /// Hash of an n-gram -> the position after its latest occurrence.
    latest: HashMap<u64, u32, BuildHasherDefault<AlreadyHashed>>,
    /// Every n-gram that ends at or before this position is in the map.
    indexed_len: usize,
}

impl NgramIndex {
    /// An empty index of n-grams of these lengths.
    pub fn new(sizes: RangeInclusive<usize>) -> Self {
        Self { sizes, latest: HashMap::default(), indexed_len: 0 }
    }

    /// Takes in what is new in `tokens` since the last call, except what ends with the last token: nothing follows
    /// that yet. Returns how many entries were written: at most one per length and new token. Fewer tokens than before
    /// are another text, and the index starts again.
    pub fn update(&mut self, tokens: &[Token]) -> usize {
        let end = tokens.len().saturating_sub(1);
        if end < self.indexed_len {
            self.latest.clear();
            self.indexed_len = 0;
        }
        let mut written = 0;
        for position in self.indexed_len + 1..=end {
            for hash in hashes(&tokens[..position], &self.sizes) {
                self.latest.insert(hash, position as u32);
                written += 1;
            }
        }
        self.indexed_len = end;
        written
    }

    /// The position after the latest earlier occurrence of the longest suffix of `tokens` that has one.
    /// `tokens` is what [`Self::update`] saw last.
    pub fn find(&self, tokens: &[Token]) -> Option<usize> {
        // What has no earlier occurrence has none when it is made longer.
        let ends = hashes(tokens, &self.sizes).map_while(|hash| self.latest.get(&hash).map(|&end| end as usize));
        let same = |(size, end): &(usize, usize)| tokens[..*end].ends_with(&tokens[tokens.len() - size..]);
        self.sizes.clone().zip(ends).take_while(same).last().map(|(_, end)| end)
    }
}

/// The hashes of the last n tokens, for each n of `sizes` that `tokens` is long enough for.
fn hashes(tokens: &[Token], sizes: &RangeInclusive<usize>) -> impl Iterator<Item = u64> {
    let mut hash = 0;
    let growing = tokens.iter().rev().take(*sizes.end()).map(move |&token| {
        hash = mix(hash ^ u64::from(token));
        hash
    });
    growing.skip(sizes.start() - 1)
}

/// SplitMix64's step: every input bit reaches every output bit.
fn mix(value: u64) -> u64 {
    let value = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    let value = (value ^ value >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let value = (value ^ value >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    value ^ value >> 31
}

/// The keys are hashes already.
#[derive(Debug, Default)]
struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|&byte| self.0 = mix(self.0 ^ u64::from(byte)));
    }

    fn write_u64(&mut self, value: u64) {
        self.0 = value;
    }
}
