//! The schedulers `fcfs` and `cfg-pair`: first come, first served, with chunked prefill and preemption by recomputing.
//!
//! [`Fcfs`] and [`CfgPair`] are the parts; they turn the queue into [`Unit`]s, a sequence or a pair each, and planned units
//! into lines of the plan. [`Planner`] decides, and knows only units. `share` splits a draft budget evenly; [`control`] sets
//! how much each unit may draft.
#![forbid(unsafe_code)]

pub mod control;
mod parts;
mod planner;
mod share;
mod unit;

use foretoken_plugin_api::export_plugin;
use foretoken_plugin_api::schemars::JsonSchema;
use serde::Deserialize;

pub use parts::{CfgPair, Fcfs};
pub use planner::{Limits, Planner};
pub use share::even_level;
pub use unit::Unit;

/// Options of `fcfs` and `cfg-pair`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct FcfsOptions {
    /// Most sequences in one step; a pair is two.
    pub max_num_seqs: u32,
    /// Most rows in one step; at least `max_num_seqs`.
    pub max_num_batched_tokens: u32,
    /// Whether a prompt may run in parts. If not, it runs whole or waits; only a prompt longer than
    /// `max_num_batched_tokens`, which could never run, is taken in parts once nothing else runs.
    pub enable_chunked_prefill: bool,
    /// How drafts are sized.
    pub policy: Policy,
    /// Most draft nodes of one sequence; without it, what the proposer and the request allow.
    pub num_speculative_tokens: Option<u32>,
    /// Fewest draft nodes of one sequence under the `adaptive` policy.
    pub min_speculative_tokens: u32,
}

/// How drafts are sized.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// As large as allowed, less only where rows or slots are short. The only policy under which a plan depends on the
    /// queue alone.
    Fixed,
    /// Each sequence by its own acceptance: a node more above 0.85, one less below 0.55.
    Adaptive,
    /// As many nodes, over all sequences, as make tokens come fastest by what passes and drafts cost and how many guesses
    /// are kept; none where plain decoding is faster.
    CostAware,
}

impl Default for FcfsOptions {
    fn default() -> Self {
        Self {
            max_num_seqs: 64,
            max_num_batched_tokens: 2048,
            enable_chunked_prefill: true,
            policy: Policy::CostAware,
            num_speculative_tokens: None,
            min_speculative_tokens: 1,
        }
    }
}

export_plugin! {
    scheduler "fcfs" => Fcfs, "first come, first served, with chunked prefill";
    scheduler "cfg-pair" => CfgPair, "fcfs that runs the two sequences of a guided request together";
}
