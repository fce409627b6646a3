//! The model: what `config.json` says, the weights of a checkpoint, and the decoder made of both.
//!
//! Neighbours: `foretoken-kernels` computes, `text` tokenises, the step's forward verb calls `Decoder::forward`. One
//! decoder serves every family, because families differ in switches, not in structure. Nothing here knows sequences,
//! drafts or plugins: rows go in with positions and slots, logits and hidden rows come out.

pub mod architectures;
mod assemble;
pub mod checkpoint;
pub mod decoder;
mod mapping;
pub mod nearest;
pub mod rope;
pub mod rows;
pub mod weights;

pub use architectures::{Architecture, ConfigError, TokenIds};
pub use checkpoint::{Checkpoint, CheckpointError, NamedTensor};
pub use decoder::{Decoder, DecoderError, ForwardBatch, ForwardBuffers, ForwardOut};
pub use rope::Rope;
pub use weights::{WeightLoader, WeightsError};
