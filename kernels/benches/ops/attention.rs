//! Attention: bytes of keys and values read, for a lone decode row, a draft chain and a prefill chunk.
//!
//! At decode the cache is the limit, at prefill the arithmetic; both are given against the bytes of the context.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore};
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, attention};

pub fn bench(criterion: &mut Criterion) {
    let (exec, shape) = (machine::exec(), AttentionShape::new(32, 4, 64).expect("a served layout"));
    let mut store = KvStore::new(KvShape { layers: 1, kv_dim: 256, dtype: KvDtype::Bf16 }, 2048);
    let slots: Vec<u32> = (0..2048).collect();
    for slot in &slots {
        let row = machine::values(256);
        store.view_mut().write(exec.simd(), 0, *slot, &row, &row);
    }
    let mut group = criterion.benchmark_group("attention");
    for (context, rows) in [(1000, 1), (1000, 6), (0, 512), (1000, 512)] {
        let q = machine::values(rows * shape.q_dim());
        let mut out = vec![0.0; q.len()];
        let new_slots = &slots[context..context + rows];
        let seqs = [AttentionSeq { context: &slots[..context], rows: 0..rows, new_slots, tree: None }];
        group.throughput(Throughput::Bytes(((context + rows) * 2 * 256 * 2) as u64));
        group.bench_function(BenchmarkId::new("32/4 heads of 64", format!("{context}+{rows}")), |b| {
            b.iter(|| attention(&exec, &shape, &q, store.view_mut().layer(0), &seqs, &mut out));
        });
    }
    group.finish();
}
