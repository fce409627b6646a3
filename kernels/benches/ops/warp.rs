//! The sampling order without and with truncation, by bytes of the row.
//!
//! Logits are broad enough that truncation keeps tens to thousands of tokens.
//! The truncated forms are to be held against the plain one: selection should cost less than the exponentials.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::{WarpParams, WarpScratch, warp};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("warp");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let row: Vec<f32> = row.iter().map(|v| v * 4.0).collect();
        let (mut probs, mut scratch) = (row.clone(), WarpScratch::new());
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        for (name, top_k, top_p) in [("plain", 0, 1.0), ("top-k", 50, 1.0), ("top-p", 0, 0.9), ("both", 50, 0.9)] {
            let params = WarpParams { temperature: 0.8, top_k, top_p, min_p: 0.0 };
            group.bench_function(BenchmarkId::new(name, vocab), |b| {
                b.iter(|| warp(&row, &params, &mut probs, &mut scratch));
            });
        }
    }
    group.finish();
}
