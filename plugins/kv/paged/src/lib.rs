//! The KV managers `paged` and `radix`: any free slot serves any sequence, blocks keep a sequence's slots together.
//!
//! [`Paged`] keeps each sequence's list of slots; [`SlotPool`] knows which slots are free and who shares the rest. [`Radix`]
//! is the same with a [`Tree`] of prefixes that were computed, kept while there is room. No
//! room is set aside for a sequence's maximal length: it takes slots as it grows, and the scheduler preempts when there
//! are none. Blocks are only a preference: bookkeeping is slot by slot, so `free` in the stats is exact, where managers
//! that hand out whole blocks strand the rest of each tail block.
#![forbid(unsafe_code)]

mod check;
mod paged;
mod pool;
mod radix;
mod tree;

use foretoken_plugin_api::export_plugin;
use foretoken_plugin_api::schemars::JsonSchema;
use serde::Deserialize;

pub use paged::Paged;
pub use pool::SlotPool;
pub use radix::Radix;
pub use tree::Tree;

/// Options of `paged` and `radix`.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct PagedOptions {
    /// Neighbouring slots that are kept for one sequence while others are free; at least 1.
    pub block_size: u32,
}

impl Default for PagedOptions {
    fn default() -> Self {
        Self { block_size: 16 }
    }
}

export_plugin! {
    kv "paged" => Paged, "KV slots in reference-counted blocks";
    kv "radix" => Radix, "paged that keeps prefixes for later requests, by token";
}
