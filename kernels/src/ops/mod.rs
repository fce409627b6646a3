//! The hot operations. Each is a folder with one stem: `mod.rs` checks named dimensions and splits the work,
//! `cpu.rs` computes, generic over the SIMD level, and `reference.rs` is the slow, obvious f64 version that the test
//! of the same stem compares with. Where there is a `<op>.cu`, `cuda.rs` launches it on a device's memory.
//!
//! Matrices are row-major slices; their shape is in each function's documentation. Shapes are asserted, with the name
//! of the dimension: they were checked as data when the blocks were built.

pub mod argmax;
pub mod attention;
pub mod embed;
pub mod guide;
pub mod gumbel;
pub mod linear;
pub mod penalise;
pub mod rmsnorm;
pub mod rope_kv;
pub mod sample;
pub mod softmax;
pub mod swiglu;
pub mod warp;

pub use argmax::argmax;
pub use attention::{AttentionSeq, AttentionShape, TreePaths, attention};
pub use embed::embed;
pub use guide::guide;
pub use gumbel::gumbel_argmax;
pub use linear::{LinearJob, PackedRows, linear};
pub use penalise::{Penalties, PenaltyScratch, penalise};
pub use rmsnorm::rmsnorm;
pub use rope_kv::{RopeRows, RopeScaling, RopeTable, Yarn, rope_kv};
pub use sample::sample;
pub use softmax::softmax;
pub use swiglu::swiglu;
pub use warp::{WarpError, WarpParams, WarpScratch, warp};
