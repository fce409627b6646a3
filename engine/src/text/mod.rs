//! Everything between text and tokens: tokenizer, streaming detokeniser, stop strings and chat templates.
//!
//! Neighbours: `model` supplies the architecture whose vocabulary the tokenizer is checked against; the engine's emit
//! verb pushes tokens through `StreamDecoder` and `StopFilter`. Nothing here sees a tensor. What a user reads is the
//! concatenation of streamed pieces, not a second decode at the end: there is one text, so stop strings, streaming and
//! the final report cannot disagree.

pub mod chat;
mod chat_source;
mod dates;
pub mod detokenize;
#[cfg(test)]
pub(crate) mod fixtures;
mod gguf;
pub mod stop;
pub mod tokenizer;

pub use chat::{ChatError, ChatMessage, ChatTemplate};
pub use detokenize::StreamDecoder;
pub use stop::{StopFilter, Stopped};
pub use tokenizer::{Tokenizer, TokenizerError};
