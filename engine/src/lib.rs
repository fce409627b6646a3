//! Foretoken: speculative decoding in which every decision is a plugin.
//!
//! The engine owns the model and the step; what to guess, what to keep, who runs and where keys and values live are
//! parts behind plugin-api's stable ABI, chosen in TOML. Start at [`step`], which is the whole of decoding in eight
//! verbs; [`build`] makes an [`Engine`] from a [`config`]; the program's commands are beside `main`.
#![deny(unsafe_code)]

pub mod bench;
pub mod build;
pub mod config;
pub mod drafts;
pub mod engine;
pub mod metrics;
pub mod model;
pub mod plugins;
mod recycle;
pub mod request;
pub mod score;
pub mod self_test;
pub mod sequence;
pub mod step;
mod step_costs;
pub mod text;

pub use build::BuildError;
pub use config::Config;
pub use engine::Engine;
pub use request::{Completion, Event, FinishReason, Request, RequestError};
