//! Speculative sampling with true draft probabilities: the sampler parts `rejection` (chains and trees) and `block`.
//!
//! Both follow the target's distribution exactly and accept more than `gumbel` where drafts are drawn. The price: the
//! text depends on the proposer, because acceptance looks at draft_prob. Neither has options.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod block;
pub mod chance;
pub mod rejection;
pub mod rows;
pub mod rule;
pub mod walk;

pub use block::Block;
pub use rejection::Rejection;

foretoken_plugin_api::export_plugin! {
    sampler "rejection" => Rejection, "keeps a drawn token with probability target_prob / draft_prob, over trees too";
    sampler "block" => Block, "keeps the longest prefix of a chain by one joint rule; never keeps fewer than rejection";
}
