//! What engine and plugin tell each other at load. These cross as JSON text, so a later level may add fields with
//! defaults and an older plugin still reads them. [`KvStats`] alone is hot and frozen.

use abi_stable::StableAbi;
use serde::{Deserialize, Serialize};

use super::Token;

/// What the host says of the target model.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TargetFacts {
    /// Vocabulary size, the width of a row of logits.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Longest context in tokens.
    pub max_positions: usize,
    /// Where the model is, as configured.
    pub path: String,
    /// The storage type of its weights (`f32`, `bf16`, ..).
    pub dtype: String,
    /// Where it runs (`cpu`, `cuda:0`).
    pub device: String,
    /// Beginning-of-sequence token, if the model has one.
    pub bos: Option<Token>,
    /// Tokens that end a completion.
    pub eos: Vec<Token>,
    /// A digest of the tokenizer's vocabulary: equal for models that share it.
    pub tokenizer_digest: String,
    /// Most sequences that one step can run, so far as the host knows (0: unknown).
    pub max_sequences: usize,
}

/// What the host says of another model it can load.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct ModelFacts {
    /// Vocabulary size.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Number of decoder layers.
    pub num_layers: usize,
    /// Longest context in tokens.
    pub max_positions: usize,
    /// Bytes of K and V per token over all layers: what to ask of a lane.
    pub kv_bytes_per_slot: usize,
    /// A digest of the tokenizer's vocabulary.
    pub tokenizer_digest: String,
}

/// What a token stands for.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct TokenText {
    /// Its bytes; of a special token its name; empty for an id that no text has.
    pub bytes: Vec<u8>,
    /// Whether it is a special token, which no text is split into.
    pub is_special: bool,
}

/// What a proposer asks of the engine; the answer to "plan or refusal".
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Needs {
    /// The largest draft it ever makes, in nodes.
    pub max_draft: usize,
    /// Whether drafts may branch.
    pub tree: bool,
    /// Whether it draws (`Drafts::draw`) rather than pushes.
    pub draws: bool,
    /// State that follows tokens.
    pub lanes: Vec<LaneNeed>,
    /// Bytes it holds per live sequence besides lanes, for reports.
    pub bytes_per_sequence: usize,
}

impl Default for Needs {
    fn default() -> Self {
        Self { max_draft: 5, tree: false, draws: false, lanes: Vec::new(), bytes_per_sequence: 0 }
    }
}

/// One lane: bytes per token that live and die with the token's slot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LaneNeed {
    /// A name for reports.
    pub name: String,
    /// Bytes per slot; ignored for [`LaneSource::Hidden`].
    pub bytes_per_slot: usize,
    /// Extra rows after the last slot, for work not yet committed: row `num_slots + i`.
    #[serde(default)]
    pub scratch_rows: usize,
    /// Who fills it.
    #[serde(default)]
    pub source: LaneSource,
}

/// Who fills a lane.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum LaneSource {
    /// The plugin writes and marks it.
    #[default]
    Plugin,
    /// The engine writes the target's hidden rows, which count from commit on: the outputs of these layers (0-based;
    /// `num_layers` is the final norm's output), concatenated in this order. Read as f32; kept as `kv.dtype` says.
    Hidden(Vec<usize>),
}

/// What a sampler promises.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Guarantees {
    /// The output follows the target's distribution.
    pub lossless: bool,
    /// The output does not depend on the drafts at all: draws use the noise of the output index.
    pub drafter_invariant: bool,
    /// At temperature 0 the output is plain decoding's.
    pub greedy_exact: bool,
    /// It reads `VerifyBatch::draft_prob`; otherwise the engine does not record it.
    pub needs_draft_prob: bool,
}

/// What a KV manager must manage.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct KvFacts {
    /// Slots there are, numbered from 0.
    pub num_slots: usize,
}

/// The balance of slots: `free + held + cached = total`. Frozen.
#[repr(C)]
#[derive(StableAbi, Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KvStats {
    /// All slots.
    pub total: u32,
    /// Slots that a reservation can have now.
    pub free: u32,
    /// Slots of live sequences; a shared slot counts once.
    pub held: u32,
    /// Slots kept for later prefix hits; a reservation can have these too, by eviction.
    pub cached: u32,
}

/// One tensor of a file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TensorInfo {
    /// Its name in the file.
    pub name: String,
    /// Its shape in the file; views are `[product of all but the last, last]`.
    pub shape: Vec<usize>,
    /// Its type in the file, such as `bf16`.
    pub dtype: String,
}
