//! Guidance of a row of logits, by bytes of the row.
//!
//! Vocabularies of the shipped tiny model, of Llama 2 and of Qwen 2.
//! One pass that reads two rows and writes one.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::guide;

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("guide");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let mut out = row.clone();
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| b.iter(|| guide(&mut out, &row, 1.5)));
    }
    group.finish();
}
