//! The engine as a whole, on the shipped model and the built plugins: equality with plain decoding, containment of
//! faults, requests and their ends, GGUF files, bad input, no allocation, no growth.
//!
//! Needs `cargo build --release --workspace` first, as README's test command does.

mod allocation;
mod bad_input;
mod containment;
mod equality;
mod gguf;
mod graft;
mod guidance;
mod requests;
mod support;
