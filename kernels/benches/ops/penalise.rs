//! Penalties over a thousand seen tokens, by bytes of the row (which only the scratch spans).
//!
//! The time should not grow with the vocabulary.
//! Five hundred prompt tokens and five hundred of output overlap by a hundred.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::ops::{Penalties, PenaltyScratch, penalise};

pub fn bench(criterion: &mut Criterion) {
    let mut group = criterion.benchmark_group("penalise");
    for vocab in [4096, 32_000, 151_936] {
        let row = machine::values(vocab);
        let (mut out, mut scratch) = (row.clone(), PenaltyScratch::default());
        let penalties = Penalties { repetition: 1.001, ..Penalties::default() };
        group.throughput(Throughput::Bytes(vocab as u64 * 4));
        group.bench_function(BenchmarkId::from_parameter(vocab), |b| {
            b.iter(|| penalise(&mut out, &[], &penalties, 0..500, 400..900, &mut scratch));
        });
    }
    group.finish();
}
