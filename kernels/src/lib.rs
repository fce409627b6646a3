//! Every hot operation of Foretoken on CPU and [`cuda`], and the blocks that models and heads are made of.
//!
//! The crate knows no model and no plugin: the engine's decoder and a plugin's head are both composed from
//! [`blocks`], which are composed from [`ops`], and all run on one [`Exec`].
//!
//! The promise that shapes all of it is **batch invariance**: the numbers of a row do not depend on what shares its
//! pass. Each output element therefore has one fixed reduction order (k ascending, in one sum or in 16 lanes and one fixed
//! horizontal sum, as its weight is laid out), and nothing is ever split over k. The price is a few per cent of speed for
//! lone long rows; what it buys is that verification of drafts is token-for-token equal to plain decoding, and is tested
//! with `==`.
//!
//! Portable, AVX2 and AVX-512 even agree with each other bit for bit, because all of them use the same lanes and a
//! fused multiply-add. Only the AVX-512 BF16 and AMX instructions round differently: in linears with bf16 weights, and in
//! attention to bf16 keys and values.

#![deny(missing_docs)]
#![allow(clippy::needless_range_loop, reason = "tiles of registers are indexed together, by rows and columns")]

pub mod blocks;
mod bytes;
pub mod ceiling;
pub mod cuda;
mod error;
mod exec;
mod floats;
pub mod noise;
pub mod ops;
#[cfg(feature = "plugin")]
pub mod plugin;
mod pool;
mod profile;
mod quant;
mod shared;
mod simd;
mod weight;

pub use bytes::{AlignedBytes, SharedBytes};
pub use error::KernelError;
pub use exec::{Device, Exec};
pub use floats::AlignedFloats;
pub use noise::NoiseKey;
pub use pool::{Parallel, ThreadPool, physical_cores};
pub use profile::{Op, Profile};
pub use simd::SimdLevel;
pub use weight::{Arrangement, Weight, WeightDtype};
