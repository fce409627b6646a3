//! Logit bias and penalties: the first stage of the sampling order, before [`warp`](crate::ops::warp()).
//!
//! The semantics are vLLM's, and Hugging Face's where it has the parameter: bias first; then `repetition` divides
//! positive and multiplies negative logits of every token seen, in prompt or output; then `frequency` times the count
//! and `presence` once are subtracted for tokens of the output. For a draft node the output includes its ancestors,
//! which is why the tokens come as iterators. Work is in the tokens seen, not in the vocabulary.

mod cpu;
pub mod reference;

/// Strengths of the penalties; the default changes nothing.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Penalties {
    /// Factor on tokens seen anywhere; 1 is off.
    pub repetition: f32,
    /// Subtracted once from tokens of the output; 0 is off.
    pub presence: f32,
    /// Subtracted per occurrence in the output; 0 is off.
    pub frequency: f32,
}

impl Default for Penalties {
    fn default() -> Self {
        Self { repetition: 1.0, presence: 0.0, frequency: 0.0 }
    }
}

/// Counts by token, reused between calls.
#[derive(Debug, Default)]
pub struct PenaltyScratch {
    counts: Vec<Count>,
    seen: Vec<u32>,
}

#[derive(Debug, Clone, Copy, Default)]
struct Count {
    is_seen: bool,
    output: u32,
}

/// Applies `bias` (pairs of token and addend) and `penalties` to `logits` (`[vocab]`), in place.
///
/// `prompt` and `output` are the tokens before this position. Tokens outside of the vocabulary are ignored.
pub fn penalise(
    logits: &mut [f32],
    bias: &[(u32, f32)],
    penalties: &Penalties,
    prompt: impl IntoIterator<Item = u32>,
    output: impl IntoIterator<Item = u32>,
    scratch: &mut PenaltyScratch,
) {
    for (token, bias) in bias {
        if let Some(logit) = logits.get_mut(*token as usize) {
            *logit += bias;
        }
    }
    if *penalties == Penalties::default() {
        return;
    }
    scratch.counts.resize(logits.len(), Count::default());
    prompt.into_iter().for_each(|token| scratch.note(token, 0));
    output.into_iter().for_each(|token| scratch.note(token, 1));
    for token in scratch.seen.drain(..) {
        let count = std::mem::take(&mut scratch.counts[token as usize]);
        let logit = &mut logits[token as usize];
        *logit = cpu::penalised(*logit, penalties, count.output);
    }
}

impl PenaltyScratch {
    fn note(&mut self, token: u32, output: u32) {
        let Some(count) = self.counts.get_mut(token as usize) else { return };
        if !count.is_seen {
            self.seen.push(token);
        }
        (count.is_seen, count.output) = (true, count.output + output);
    }
}
