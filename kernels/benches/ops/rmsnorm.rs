//! The norm, by bytes of the rows. Width is TinyLlama's 2048.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::rmsnorm;

pub fn bench(criterion: &mut Criterion) {
    let (exec, weight) = (machine::exec(), machine::values(2048));
    let mut group = criterion.benchmark_group("rmsnorm");
    for rows in [1, 6, 512] {
        let x = machine::values(rows * 2048);
        let mut out = x.clone();
        group.throughput(Throughput::Bytes(x.len() as u64 * 8));
        group.bench_function(BenchmarkId::new("alone", rows), |b| {
            b.iter(|| rmsnorm(&exec, &x, &weight, 1e-6, &mut out))
        });
    }
    group.finish();
}
