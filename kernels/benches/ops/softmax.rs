//! Softmax of a row of logits (with the copy that restores it), by bytes of the row.
//!
//! Vocabularies of the shipped tiny model, of Llama 2 and of Qwen 2.
//! The difference to `warp` without truncation is the cost of its checks.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::softmax;

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("softmax");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let mut out = row.clone();
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| {
            b.iter(|| {
                out.copy_from_slice(&row);
                softmax(&mut out);
            });
        });
    }
    group.finish();
}
