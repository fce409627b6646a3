//! A target and a proposer small enough to enumerate: rows of logits that depend on every token before them.

use foretoken_kernels::ops::warp::reference;
use foretoken_kernels::ops::{WarpParams, WarpScratch, warp};
use foretoken_plugin_api::{SamplingParams, Token};

/// How the proposer's distribution relates to the target's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relation {
    Random,
    Uniform,
    /// The target has the even tokens, the proposer the odd ones.
    Disjoint,
    Identical,
    OneHot,
}

pub const RELATIONS: [Relation; 5] =
    [Relation::Random, Relation::Uniform, Relation::Disjoint, Relation::Identical, Relation::OneHot];

#[derive(Debug, Clone, Copy)]
pub struct World {
    pub vocab: usize,
    pub seed: u64,
    pub relation: Relation,
    pub sampling: SamplingParams,
}

impl World {
    pub fn new(vocab: usize, seed: u64, relation: Relation) -> Self {
        Self { vocab, seed, relation, sampling: SamplingParams::default() }
    }

    pub fn target_logits(&self, prefix: &[Token]) -> Vec<f32> {
        let allowed = |token: usize| self.relation != Relation::Disjoint || token.is_multiple_of(2);
        let row = random_row(self.vocab, self.seed, prefix);
        row.into_iter().enumerate().map(|(token, x)| if allowed(token) { x } else { f32::NEG_INFINITY }).collect()
    }

    pub fn draft_logits(&self, prefix: &[Token]) -> Vec<f32> {
        let row = random_row(self.vocab, !self.seed, prefix);
        let only = |is_allowed: &dyn Fn(usize) -> bool| {
            let keep = |(token, x): (usize, &f32)| if is_allowed(token) { x.max(-1.5) } else { f32::NEG_INFINITY };
            row.iter().enumerate().map(keep).collect()
        };
        match self.relation {
            Relation::Random => row,
            Relation::Uniform => vec![0.0; self.vocab],
            Relation::Identical => self.target_logits(prefix),
            Relation::Disjoint => only(&|token| !token.is_multiple_of(2)),
            Relation::OneHot => {
                let chosen = hash(!self.seed, prefix, 99) as usize % self.vocab;
                only(&|token| token == chosen)
            }
        }
    }

    /// draft_prob as the engine records it.
    pub fn draft_prob(&self, prefix: &[Token]) -> Vec<f32> {
        let mut row = vec![0.0; self.vocab];
        let logits = self.draft_logits(prefix);
        warp(&logits, &WarpParams::from(self.sampling), &mut row, &mut WarpScratch::new()).expect("a distribution");
        row
    }

    /// The law of `horizon` tokens sampled one by one, in f64.
    pub fn law(&self, horizon: usize) -> Vec<(Vec<Token>, f64)> {
        let mut law = vec![(Vec::new(), 1.0)];
        for _ in 0..horizon {
            law = law.into_iter().flat_map(|(prefix, mass)| self.extend(prefix, mass)).collect();
        }
        law
    }

    fn extend(&self, prefix: Vec<Token>, mass: f64) -> Vec<(Vec<Token>, f64)> {
        let row = reference::warp(&self.target_logits(&prefix), &self.sampling.into());
        (0..).zip(row).map(|(token, prob)| ([&prefix[..], &[token]].concat(), mass * prob)).collect()
    }
}

/// Logits in (-1.5, 1.5); one in six tokens is forbidden, never token 0.
fn random_row(vocab: usize, seed: u64, prefix: &[Token]) -> Vec<f32> {
    let logit = |token: u64| {
        let bits = hash(seed, prefix, token);
        let forbidden = token > 0 && bits.is_multiple_of(6);
        if forbidden { f32::NEG_INFINITY } else { (bits >> 40) as f32 / (1 << 24) as f32 * 3.0 - 1.5 }
    };
    (0..vocab as u64).map(logit).collect()
}

/// SplitMix64 over the words.
pub fn hash(seed: u64, prefix: &[Token], salt: u64) -> u64 {
    let words = prefix.iter().map(|token| u64::from(*token) + 1).chain([salt, prefix.len() as u64]);
    words.fold(seed, |state, word| {
        let mut z = (state ^ word.wrapping_mul(0xA24B_AED4_963E_E407)).wrapping_add(0x9E37_79B9_7F4A_7C15);
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    })
}
