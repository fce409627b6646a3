//! One token stream: its tokens, how far its KV is computed, its randomness, its text, its counters.

use std::sync::Arc;
use std::time::Instant;

use foretoken_plugin_api::{NoiseKey, RequestId, SeqId, Token};

use crate::config::Sampling;
use crate::metrics::SequenceStats;
use crate::request::{Completion, FinishReason};
use crate::text::{StopFilter, Stopped, StreamDecoder};

/// How a sequence shares its prompt's slots with the other completions of its request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// It does not.
    None,
    /// It computes the prompt for its siblings.
    Leader,
    /// It waits for the leader and starts from the shared slots.
    Sibling,
}

/// Its half of a pair under guidance. The two stand side by side in the queue, the conditional one first, and end together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Branch {
    /// There is no pair.
    Alone,
    /// The request's prompt. Drafts, verdicts, text and counters are this one's.
    Conditional,
    /// The negative prompt. It commits what the conditional sequence commits.
    Unconditional,
}

/// The place in the queue of the other half of a pair.
pub fn companion(queue: &[Sequence], index: usize) -> Option<usize> {
    match queue[index].branch {
        Branch::Alone => None,
        Branch::Conditional => Some(index + 1),
        Branch::Unconditional => Some(index - 1),
    }
}

/// Ends a sequence with a fault, and the other half of a pair with it.
pub fn fail(queue: &mut [Sequence], index: usize, error: impl Into<String>) {
    let error = error.into();
    if let Some(other) = companion(queue, index) {
        queue[other].fail(error.clone());
    }
    queue[index].fail(error);
}

/// The text side of a sequence.
#[derive(Debug)]
pub struct TextSide {
    decoder: StreamDecoder,
    stops: StopFilter,
    /// All text so far that is certain.
    pub text: String,
    /// Where in `text` the last token's piece starts.
    piece_start: usize,
}

impl TextSide {
    /// The text after a prompt.
    pub fn new(decoder: StreamDecoder, stops: StopFilter) -> Self {
        Self { decoder, stops, text: String::new(), piece_start: 0 }
    }

    /// The text that the last token made certain.
    pub fn piece(&self) -> &str {
        &self.text[self.piece_start..]
    }

    /// Takes a token; returns whether a stop string is complete.
    fn push(&mut self, token: Token) -> Result<bool, String> {
        self.piece_start = self.text.len();
        let piece = self.decoder.push(token).map_err(|error| error.to_string())?;
        Ok(match self.stops.push(&piece) {
            Stopped::No(text) => {
                self.text.push_str(&text);
                false
            }
            Stopped::At { text, .. } => {
                self.text.push_str(&text);
                true
            }
        })
    }

    /// Releases what was held back.
    fn finish(&mut self) {
        let rest = self.decoder.finish().unwrap_or_default();
        let (Stopped::No(text) | Stopped::At { text, .. }) = self.stops.push(&rest);
        self.text.push_str(&text);
        self.text.push_str(&self.stops.finish());
    }
}

/// One token stream.
pub struct Sequence {
    /// Which sequence.
    pub id: SeqId,
    /// Its request.
    pub request: RequestId,
    /// Which of the request's completions.
    pub index: u32,
    /// Which half of a pair.
    pub branch: Branch,
    /// Prompt and completion; the last one is the anchor.
    pub tokens: Vec<Token>,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// Tokens whose KV is committed; equals its committed slots.
    pub computed: usize,
    /// Whether the KV manager knows it.
    pub admitted: bool,
    /// How it shares its prompt.
    pub sharing: Sharing,
    /// How to sample and when to stop.
    pub sampling: Arc<Sampling>,
    /// Per proposer and lane: leading slots with valid state.
    pub lane_valid: Vec<Vec<u32>>,
    /// Its text, if wanted.
    pub text: Option<TextSide>,
    /// What it cost so far.
    pub stats: SequenceStats,
    /// Set once it has ended; it leaves the queue at the end of the step.
    pub finished: Option<FinishReason>,
    /// Most tokens it may have, prompt included.
    pub max_len: usize,
    /// When it was first run.
    pub started: Option<Instant>,
}

impl Sequence {
    /// How many tokens the completion has: the coordinate of all randomness.
    pub fn output_index(&self) -> u32 {
        (self.tokens.len() - self.prompt_len) as u32
    }

    /// Rows whose KV is not computed; 1 is the anchor alone.
    pub fn uncomputed(&self) -> usize {
        self.tokens.len() - self.computed
    }

    /// Rows a scheduler may plan: a leader stops before the prompt's last token, so that its siblings can share
    /// everything before it and sample that token's row with their own noise.
    pub fn plannable(&self) -> usize {
        match (self.sharing, self.uncomputed()) {
            (Sharing::Leader, rows) if rows > 1 => rows - 1,
            (_, rows) => rows,
        }
    }

    /// What it shares a prompt with: the same branch of the same request.
    pub fn prompt_key(&self) -> (RequestId, Branch) {
        (self.request, self.branch)
    }

    /// Seed and completion.
    pub fn noise(&self) -> NoiseKey {
        NoiseKey::new(self.sampling.seed, self.index)
    }

    /// The largest draft that still fits before `max_tokens` and the context end the sequence.
    pub fn room_for_draft(&self) -> usize {
        (self.max_len - self.tokens.len()).saturating_sub(1)
    }

    /// Forgets its KV: it will be recomputed from its first token.
    pub fn forget_kv(&mut self) {
        self.computed = 0;
        self.admitted = false;
        self.lane_valid.iter_mut().flatten().for_each(|valid| *valid = 0);
    }

    /// Appends one token of the completion and applies the stop rules; `is_eos` says whether the token ends text.
    pub fn append(&mut self, token: Token, is_eos: bool) {
        self.tokens.push(token);
        let stops = is_eos && !self.sampling.ignore_eos;
        let matched = match &mut self.text {
            Some(text) => text.push(token),
            None => Ok(false),
        };
        let cut_at_stop = matches!(matched, Ok(true));
        self.finished = match matched {
            Err(error) => Some(FinishReason::Error(error)),
            Ok(true) => Some(FinishReason::Stop),
            Ok(false) if stops => Some(FinishReason::Stop),
            Ok(false) if self.tokens.len() >= self.max_len => Some(FinishReason::Length),
            Ok(false) => None,
        };
        if self.finished.is_some() && !cut_at_stop {
            self.release_text();
        }
    }

    /// Ends the sequence with a fault; its tokens and text so far stand.
    pub fn fail(&mut self, error: impl Into<String>) {
        if self.finished.is_none() {
            self.release_text();
            self.finished = Some(FinishReason::Error(error.into()));
        }
    }

    fn release_text(&mut self) {
        if let Some(text) = &mut self.text {
            text.finish();
        }
    }

    /// What is delivered; the sequence's buffers move out.
    pub fn complete(&mut self) -> Completion {
        let mut stats = std::mem::take(&mut self.stats);
        stats.wall_ns = self.started.map_or(0, |started| started.elapsed().as_nanos() as u64);
        Completion {
            request: self.request,
            index: self.index,
            prompt_len: self.prompt_len,
            all_tokens: std::mem::take(&mut self.tokens),
            text: self.text.take().map(|text| text.text).unwrap_or_default(),
            reason: self.finished.clone().unwrap_or(FinishReason::Length),
            stats,
        }
    }
}
