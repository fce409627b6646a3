//! The sampling parameters of a request and the coordinates of its randomness.

use abi_stable::StableAbi;

/// How the target's logits become its distribution (design: penalties and bias, then temperature, top-k, top-p, min-p,
/// softmax). Penalties and bias are applied by the engine before any row reaches a plugin. Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq)]
pub struct SamplingParams {
    /// 0 is greedy: the lowest id among the largest logits.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the smallest set of most probable tokens whose mass reaches this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this share of the most probable one's probability; 0 keeps all.
    pub min_p: f32,
}

impl SamplingParams {
    /// Temperature 0.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };

    /// Whether the distribution is one-hot.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }
}

impl Default for SamplingParams {
    fn default() -> Self {
        Self { temperature: 1.0, ..Self::GREEDY }
    }
}

/// Where a random number comes from: a pure function of this key and an index (Philox4x32-10). Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoiseKey {
    /// The request's seed.
    pub seed: u64,
    /// What the number is for; see [`NoiseKey::for_output`] and [`NoiseKey::for_node`].
    pub stream: u64,
    /// Which of the request's `n` completions.
    pub completion: u32,
}

/// What a true-draft_prob sampler uses a random number for. Two purposes never share noise.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Purpose {
    /// Drawing the drafted token.
    Draft = 1,
    /// Deciding whether a drafted token is kept.
    Accept = 2,
    /// Drawing from the residual, or the bonus token.
    Residual = 3,
}

impl NoiseKey {
    /// The key of a request's completion; a stream is chosen with [`Self::for_output`] or [`Self::for_node`].
    pub fn new(seed: u64, completion: u32) -> Self {
        Self { seed, stream: 0, completion }
    }

    /// The noise of the token at `output_index`, whatever proposer guessed it and in whatever step: drafter-invariant
    /// samplers, and the draws made under them.
    pub fn for_output(self, output_index: u32) -> Self {
        Self { stream: u64::from(output_index), ..self }
    }

    /// Fresh noise for one node of one step: samplers that look at draft_prob. `node` counts from 1, 0 is the anchor.
    pub fn for_node(self, anchor_output_index: u32, node: u32, purpose: Purpose) -> Self {
        let high = (purpose as u64) << 56 | u64::from(node & 0x00ff_ffff) << 32;
        Self { stream: high | u64::from(anchor_output_index), ..self }
    }
}
