//! The two random decisions a rule makes, asked for by probability instead of by random number.
//!
//! A rule that took uniforms could only be tested by histogram. Asked this way, a test answers each question both ways
//! and adds up the exact law of the output; since every question names its noise key, it also sees noise that is used
//! twice.

use foretoken_kernels::{noise, ops};
use foretoken_plugin_api::{NoiseKey, Token};

/// Decides.
pub trait Chance {
    /// True with `probability` (1 or more is always, 0 or less and NaN never).
    fn coin(&mut self, key: NoiseKey, probability: f64) -> bool;

    /// A token in proportion to `weights` `[vocab]`, of which at least one is positive.
    fn draw(&mut self, key: NoiseKey, weights: &[f32]) -> Token;
}

/// Counter noise: the first uniform of each key.
#[derive(Debug, Clone, Copy, Default)]
pub struct Philox;

impl Chance for Philox {
    fn coin(&mut self, key: NoiseKey, probability: f64) -> bool {
        noise::uniform(key.into(), 0) < probability
    }

    fn draw(&mut self, key: NoiseKey, weights: &[f32]) -> Token {
        ops::sample(weights, noise::uniform(key.into(), 0))
    }
}
