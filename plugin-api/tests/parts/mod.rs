//! Small parts that hold to every promise, one per kind: what the suites and the ABI tests drive.
//!
//! Each reads a `fault` option, so that one type is the right part and all of its mutants.
#![allow(dead_code)]

pub mod bomb;
pub mod kv;
pub mod panicking_host;
pub mod proposer;
pub mod sampler;
pub mod scheduler;

use foretoken_plugin_api::schemars::{self, JsonSchema};
use foretoken_plugin_api::serde::Deserialize;

/// Options of all test parts.
#[derive(Debug, Clone, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FaultOptions {
    /// What to get wrong; empty for nothing.
    pub fault: String,
}

impl FaultOptions {
    pub fn is(&self, fault: &str) -> bool {
        self.fault == fault
    }
}
