//! The model: what `config.json` or a GGUF file's metadata says, the weights of a checkpoint, and the decoder of both.
//!
//! Neighbours: `foretoken-kernels` computes, `text` tokenises, the step's forward verb calls `Decoder::forward`. One
//! decoder serves every family, because families differ in switches, not in structure. Nothing here knows sequences,
//! drafts or plugins: rows go in with positions and slots, logits and hidden rows come out.

pub mod architectures;
mod assemble;
pub mod checkpoint;
pub mod decoder;
pub mod gguf;
mod mapping;
pub mod nearest;
mod pickle;
pub mod rope;
pub mod rows;
mod weight_files;
pub mod weights;
mod window;

pub use architectures::{Architecture, ConfigError, TokenIds};
pub use checkpoint::{Checkpoint, CheckpointError, NamedTensor};
pub use decoder::{Decoder, DecoderError, ForwardBatch, ForwardBuffers, ForwardOut, HiddenSink};
pub use gguf::{Gguf, GgufError};
pub use rope::Rope;
pub use weights::{WeightLoader, WeightsError};

/// Whether there is something at `path` that could be a model: a folder, or a file called `.gguf`.
pub fn is_model(path: &std::path::Path) -> bool {
    path.is_dir() || (gguf::is_gguf(path) && path.is_file())
}
