//! The decoder against independent implementations, on small random checkpoints written as Hugging Face folders.
//!
//! `families` compares logits with candle-transformers (f32) for every architecture and with `reference`, a plain f64
//! decoder that also covers what candle lacks (linear scaling, biases) and shows its hidden states. `loading` is about
//! files: dtypes, shards, damage. `gguf*` compare GGUF files with folders. `batches` is about rows sharing a pass.
//! `tiny` reads the shipped model. One binary, because candle-transformers takes long to link.
#![forbid(unsafe_code)]

mod batches;
mod candle;
mod families;
mod folder;
mod gguf;
mod gguf_bad;
mod gguf_file;
mod gguf_spm;
mod gguf_text;
mod loading;
mod reference;
mod runner;
mod tiny;
