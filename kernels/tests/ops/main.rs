//! The ops and blocks, one module per stem.
//!
//! One body runs at every SIMD level of the machine and is compared with the op's `reference`; the invariance tests
//! compare bits. `FORETOKEN_SIMD` does not matter here: levels are chosen by each test. A `.cu` runs on the CPU, see
//! [`cuda`], and on a GPU where there is one.

mod allocation;
mod argmax;
mod attention;
mod cuda;
mod decoder_layer;
mod embed;
mod files;
mod guide;
mod gumbel;
mod kv_store;
mod linear;
mod penalise;
mod pool;
mod rmsnorm;
mod rope_kv;
mod sample;
mod softmax;
mod support;
mod swiglu;
mod warp;
mod weight;

#[global_allocator]
static ALLOCATOR: allocation::Counting = allocation::Counting;
