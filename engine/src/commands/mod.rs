//! The program's commands, one file each, and what they share.

mod advise;
pub mod bench;
pub mod compare;
mod contest;
pub mod demo;
pub mod plugins;
mod prompts;
pub mod run;
pub mod score;
mod table;

/// A usage error that clap cannot see: exit status 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct UsageError(pub String);

/// `foretoken` alone: what one would do next.
pub fn welcome() {
    println!("foretoken {}: speculative decoding in which every decision is a plugin\n", env!("CARGO_PKG_VERSION"));
    println!("  foretoken demo                                          see it work on the shipped model");
    println!("  foretoken run configs/ngram.toml --prompt \"def \" --show-drafts   generate; kept drafts are coloured");
    println!("  foretoken plugins list                                  what parts there are to choose from\n");
    println!("foretoken --help says the rest.");
}
