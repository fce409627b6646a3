//! The greedy token of a row of logits, by bytes of the row.
//!
//! Vocabularies of the shipped tiny model, of Llama 2 and of Qwen 2.
//! Two passes over a cached row, so it should be near the cache's bandwidth.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::argmax;

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("argmax");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);

        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| b.iter(|| argmax(&row)));
    }
    group.finish();
}
