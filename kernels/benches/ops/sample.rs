//! A draw by inverse distribution function, by bytes of the row.
//!
//! Two sequential f64 sums, so latency and not bandwidth is the limit.
//! The draw ends in the second half of the vocabulary.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::sample;

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("sample");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let probs: Vec<f32> = row.iter().map(|v| v.exp()).collect();
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| b.iter(|| sample(&probs, 0.7)));
    }
    group.finish();
}
