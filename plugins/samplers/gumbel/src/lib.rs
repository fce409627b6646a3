//! Sampled verification, the sampler part `gumbel`: the text never depends on the proposer. It has no options.
//!
//! It is the default: lossless whatever a proposer does, because it never looks at draft_prob, and a seed gives the
//! same text with any drafts or none. `rejection` keeps more of *drawn* drafts where the noise is not shared.
#![forbid(unsafe_code)]
#![deny(missing_docs)]

pub mod gumbel;

pub use gumbel::Gumbel;

foretoken_plugin_api::export_plugin! {
    sampler "gumbel" => Gumbel, "samples the target at every row and keeps drafts that equal the sample";
}
