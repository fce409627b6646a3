//! What a user asks for, and what comes back.

use foretoken_plugin_api::{RequestId, Token};

use crate::config::Sampling;
use crate::metrics::SequenceStats;
use crate::text::TokenizerError;

/// One prompt and how to continue it.
#[derive(Debug, Clone)]
pub struct Request {
    /// The prompt's tokens; not empty.
    pub prompt: Vec<Token>,
    /// How to sample, how often (`n`) and when to stop.
    pub sampling: Sampling,
    /// Whether text is wanted; without it tokens are not decoded (and stop strings need it).
    pub text: bool,
}

/// Why a request is refused.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// There is nothing to continue.
    #[error("the prompt has no tokens: give at least one (an empty text prompt becomes BOS)")]
    Empty,
    /// There is no room for a single new token.
    #[error("the prompt has {tokens} tokens, but the model's context is {context}: at most {} fit\n  fix: shorten the prompt", context - 1)]
    TooLong {
        /// Tokens of the prompt.
        tokens: usize,
        /// Longest context.
        context: usize,
    },
    /// The KV could never hold it.
    #[error(
        "the prompt has {tokens} tokens, but the KV has only {slots} slots\n  fix: raise kv.num_slots, or shorten the prompt"
    )]
    NeverFits {
        /// Tokens of the prompt.
        tokens: usize,
        /// All slots.
        slots: usize,
    },
    /// A token that the model does not have.
    #[error("token {token} is not in the model's vocabulary of {vocab}")]
    NoSuchToken {
        /// The token.
        token: Token,
        /// The vocabulary's size.
        vocab: usize,
    },
    /// A proposer that is not loaded.
    #[error("no proposer `{name}` is loaded; there are: {known}\n  fix: name one of these, or add it to the config")]
    NoSuchProposer {
        /// The name asked for.
        name: String,
        /// Those that are loaded.
        known: String,
    },
    /// A pair of sequences could never be held.
    #[error(
        "guidance runs the prompt of {prompt} tokens and the negative prompt of {negative} side by side, but the KV has only {slots} slots\n  fix: raise kv.num_slots, or shorten the prompts"
    )]
    PairNeverFits {
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the negative prompt.
        negative: usize,
        /// All slots.
        slots: usize,
    },
    /// Guidance where no pairs are planned.
    #[error(
        "guidance_scale {scale} runs pairs of sequences, which the scheduler `{scheduler}` does not plan as it is configured\n  fix: set scheduler.plugin = \"cfg-pair\" with max_num_seqs of at least 2, or guidance_scale = 1.0"
    )]
    NoPairs {
        /// The scale asked for.
        scale: f32,
        /// The scheduler.
        scheduler: String,
    },
    /// The negative prompt cannot be read.
    #[error("the negative prompt: {0}")]
    Negative(#[from] TokenizerError),
    /// Stop strings without text.
    #[error("stop strings need text: set `text`, or use stop tokens")]
    StopNeedsText,
}

impl RequestError {
    /// Guidance by `sampling` under a scheduler that does not plan pairs.
    pub fn no_pairs(sampling: &Sampling, scheduler: &str) -> Self {
        Self::NoPairs { scale: sampling.guidance_scale, scheduler: scheduler.to_owned() }
    }
}

/// Why a completion ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FinishReason {
    /// An end-of-sequence token or a stop string.
    Stop,
    /// `max_tokens` or the context's end.
    Length,
    /// A fault that speculation could not absorb; what was generated so far stands.
    Error(String),
}

impl FinishReason {
    /// The word of `run --json`.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Error(_) => "error",
        }
    }
}

/// A finished completion.
#[derive(Debug, Clone)]
pub struct Completion {
    /// Its request.
    pub request: RequestId,
    /// Which of the request's `n`.
    pub index: u32,
    /// The prompt's length; the prompt is the head of `all_tokens`.
    pub prompt_len: usize,
    /// Prompt and completion.
    pub all_tokens: Vec<Token>,
    /// The completion's text, if it was asked for.
    pub text: String,
    /// Why it ended.
    pub reason: FinishReason,
    /// What it cost.
    pub stats: SequenceStats,
}

impl Completion {
    /// The prompt.
    pub fn prompt(&self) -> &[Token] {
        &self.all_tokens[..self.prompt_len]
    }

    /// The completion, end-of-sequence token included.
    pub fn tokens(&self) -> &[Token] {
        &self.all_tokens[self.prompt_len..]
    }
}

/// What a step tells.
#[derive(Debug)]
pub enum Event<'a> {
    /// One more token, with the text that became certain by it.
    Token {
        /// Its request.
        request: RequestId,
        /// Which completion.
        index: u32,
        /// The token.
        token: Token,
        /// Text that became certain, perhaps none.
        text: &'a str,
        /// Whether it was a kept draft rather than the model's own next token.
        drafted: bool,
    },
    /// A completion ended.
    Finished(Completion),
}
