//! What the tests share: levels and threads to run on, numbers, and comparisons.
//!
//! Pools are made once per thread count, so that hundreds of cases do not start thousands of threads.

use foretoken_kernels::{Exec, NoiseKey, Parallel, SimdLevel, ThreadPool, noise};
use std::sync::{Arc, LazyLock};

static POOLS: LazyLock<[Arc<dyn Parallel>; 3]> =
    LazyLock::new(|| [1, 2, 4].map(|threads| Arc::new(ThreadPool::new(threads)) as Arc<dyn Parallel>));

/// Tolerance of a comparison: |got - want| <= abs + eps * |want|.
#[derive(Clone, Copy)]
pub struct Tolerance {
    pub abs: f64,
    pub eps: f64,
}

/// Sums of some hundred f32 products of size one: 24 bits, a few of them lost.
pub const F32: Tolerance = Tolerance { abs: 2e-5, eps: 2e-5 };
/// The same with inputs rounded to bf16 on both sides; only `vdpbf16ps` adds roundings of its own.
pub const BF16: Tolerance = Tolerance { abs: 1e-4, eps: 1e-4 };

/// Every level, on two threads.
pub fn levels() -> impl Iterator<Item = Exec> {
    SimdLevel::available().map(|level| exec(level, 1))
}

/// Every level with 1, 2 and 4 threads.
pub fn levels_and_threads() -> impl Iterator<Item = Exec> {
    SimdLevel::available().flat_map(|level| (0..3).map(move |pool| exec(level, pool)))
}

fn exec(level: SimdLevel, pool: usize) -> Exec {
    let exec = Exec::portable_single().with_pool(POOLS[pool].clone());
    exec.with_simd(level).expect("available() named it")
}

/// Reproducible numbers in (-1, 1).
pub fn values(seed: u64, len: usize) -> Vec<f32> {
    let key = NoiseKey { seed, completion: 0, stream: 0 };
    (0..len as u32).map(|i| (2.0 * noise::uniform(key, i) - 1.0) as f32).collect()
}

/// A reproducible order of `0..len`.
pub fn shuffled(seed: u64, len: usize) -> Vec<usize> {
    let key = NoiseKey { seed, completion: 1, stream: 0 };
    let mut order: Vec<usize> = (0..len).collect();
    order.sort_by_key(|i| noise::bits(key, *i as u32));
    order
}

pub fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|v| v.to_bits()).collect()
}

#[track_caller]
pub fn assert_close(got: &[f32], want: &[f64], tolerance: Tolerance, what: &str) {
    assert_eq!(got.len(), want.len(), "{what}: lengths");
    for (i, (got, want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(*got) - want).abs();
        assert!(error <= tolerance.abs + tolerance.eps * want.abs(), "{what}: [{i}] is {got}, expected {want}");
    }
}
