//! Plugins in the engine: finding and loading libraries, what the engine offers them, and how far it trusts them.
//!
//! The engine names no concrete plugin; it asks the [`registry`] for the part that the config names and drives it
//! through plugin-api's `Loaded*` types. Libraries are never unloaded: code and vtables stay valid for the process.

mod elf;
pub mod host;
pub mod lanes;
pub mod load;
pub mod model;
pub mod proposers;
pub mod registry;
