//! The gate, by bytes of its three rows.
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
        let (gate, mut out) = (machine::values(rows * 5632), vec![0.0; rows * 5632]);
        group.throughput(Throughput::Bytes(gate.len() as u64 * 12));
        group.bench_function(BenchmarkId::new("5632", rows), |b| b.iter(|| swiglu(&exec, &gate, &gate, &mut out)));
    }
    group.finish();
}
