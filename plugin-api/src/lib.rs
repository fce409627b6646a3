//! The stable plugin interface of Foretoken.
//!
//! Implement one trait ([`Proposer`], [`Sampler`], [`Scheduler`] or [`KvManager`]), write one line
//! ([`export_plugin!`]), build a `cdylib`, name it in a config. The library then loads in every engine of this
//! [`API_LEVEL`], whatever compiler or version of this crate built either.
//!
//! Three layers: [`types`] is what crosses, [`author`] is what you write against, [`abi`] is their mirror, made by the
//! macro. Authors see no FFI type: the alternative, R-types in the trait signatures, was what made other plugin systems
//! tiresome to write for. The engine drives plugins through [`abi`]'s `Loaded*` types.
#![deny(missing_docs)]
#![deny(unsafe_code)]

#[allow(missing_docs)]
pub mod abi;
pub mod author;
pub mod drafting;
pub mod error;
mod export;
pub mod guess;
mod static_tree;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod tree;
pub mod types;

pub use abi::header::API_LEVEL;
pub use abi::module::Kind;
pub use author::{
    Drafts, Host, HostApi, KvManager, Lanes, Model, ModelApi, NoOptions, Plan, Proposer, Sampler, Scheduler, Tensors,
    TensorsApi,
};
pub use error::{DraftError, Error, ErrorKind, Result};
pub use guess::DraftSampling;
pub use schemars;
pub use serde;
pub use types::*;

/// The compiler that built this copy of the crate, NUL-terminated, for the plugin header.
pub const RUSTC: &str = concat!(env!("FORETOKEN_RUSTC"), "\0");
