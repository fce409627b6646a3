//! Embedding rows, by bytes written.
//!
//! One, six and 512 tokens from a table of 32,000 rows of bf16.
//! Tokens are scattered, so each row is a miss.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::WeightDtype;
use foretoken_kernels::ops::embed;

pub fn bench(criterion: &mut Criterion) {
    let (exec, table) = (machine::exec(), machine::weights(WeightDtype::Bf16, [32_000, 2048]).remove(0));
    let mut group = criterion.benchmark_group("embed");
    for rows in [1u32, 6, 512] {
        let tokens: Vec<u32> = (0..rows).map(|i| i * 7919 % 32_000).collect();
        let mut out = vec![0.0; rows as usize * 2048];
        group.throughput(Throughput::Bytes(out.len() as u64 * 4));
        group.bench_function(BenchmarkId::new("2048 bf16", rows), |b| {
            b.iter(|| embed(&exec, &table, &tokens, &mut out))
        });
    }
    group.finish();
}
