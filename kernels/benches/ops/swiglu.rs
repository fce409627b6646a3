//! The gate, by bytes of the two rows that are read and the one that is written.
//!
//! One, six and 512 rows of TinyLlama's inner width: decode, verification and prefill.
//! The last is large enough to be shared between threads.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::swiglu;

pub fn bench(criterion: &mut Criterion) {
    let exec = machine::exec();
    let mut group = criterion.benchmark_group("swiglu");
    for rows in [1, 6, 512] {
        // Where gates stay as they are, run after run: others would soon be too small to be normal, and slow.
        let (mut gate, up) = (vec![-1.0; rows * 5632], vec![1.0 + std::f32::consts::E; rows * 5632]);
        group.throughput(Throughput::Bytes(gate.len() as u64 * 12));
        group.bench_function(BenchmarkId::new("5632", rows), |b| b.iter(|| swiglu(&exec, &mut gate, &up)));
    }
    group.finish();
}
