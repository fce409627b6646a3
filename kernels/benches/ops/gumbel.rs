//! A draw by exponential race over a whole vocabulary, by bytes of the row.
//!
//! Every token has some probability, which is the expensive case: noise is made for all of them.
//! Vocabularies of the shipped tiny model, of Llama 2 and of Qwen 2.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::NoiseKey;
use foretoken_kernels::ops::gumbel_argmax;

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("gumbel");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let probs: Vec<f32> = row.iter().map(|v| v.exp()).collect();
        let key = NoiseKey { seed: 1, completion: 0, stream: 0 };
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| b.iter(|| gumbel_argmax(&probs, key)));
    }
    group.finish();
}
