//! What a plugin author writes against: one safe trait per kind, and the services of the engine.
//!
//! Plain Rust only; the mirror that crosses the border is made by [`export_plugin!`](crate::export_plugin) from these
//! traits. The engine calls the same traits through that mirror, so a test may call a plugin directly.

pub mod drafts;
pub mod host;
pub mod kv;
pub mod proposer;
pub mod sampler;
pub mod scheduler;

pub use drafts::{DraftSink, Drafts};
pub use host::{Host, HostApi, Lanes, Model, ModelApi, Tensors, TensorsApi};
pub use kv::KvManager;
pub use proposer::Proposer;
pub use sampler::Sampler;
pub use scheduler::{Plan, PlanSink, Scheduler};

use schemars::JsonSchema;
use serde::de::DeserializeOwned;

/// What an options type must be: read from the TOML table (`#[serde(deny_unknown_fields)]`, please) and described by a
/// JSON schema that `plugins show` prints.
pub trait PartOptions: DeserializeOwned + JsonSchema {}

impl<T: DeserializeOwned + JsonSchema> PartOptions for T {}

/// Options of a part that has none.
#[derive(Debug, Clone, Default, serde::Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NoOptions {}
