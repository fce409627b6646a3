//! Rotation and the stores, by bytes of q, k and v; and the angles of a pass.
//!
//! The angles are computed once a pass and the rotation once a layer, so they are timed apart.
//! Shapes are TinyLlama's: 32 query heads and 4 key heads of 64.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore};
use foretoken_kernels::ops::rope_kv::RopeKvRows;
use foretoken_kernels::ops::{RopeRows, RopeScaling, RopeTable, rope_kv};

pub fn bench(criterion: &mut Criterion) {
    let (exec, table) = (machine::exec(), RopeTable::new(64, 10_000.0, RopeScaling::None));
    let mut store = KvStore::new(KvShape { layers: 1, heads: 4, head_dim: 64, dtype: KvDtype::Bf16 }, 1024);
    let mut group = criterion.benchmark_group("rope_kv");
    for rows in [1u32, 6, 512] {
        let (positions, mut rope): (Vec<u32>, _) = ((0..rows).collect(), RopeRows::new());
        group.bench_function(BenchmarkId::new("angles", rows), |b| b.iter(|| rope.fill(&table, &positions)));
        let mut q = machine::values(rows as usize * 2048);
        let (mut k, v) = (machine::values(rows as usize * 256), machine::values(rows as usize * 256));
        group.throughput(Throughput::Bytes((q.len() + k.len() + v.len()) as u64 * 4));
        group.bench_function(BenchmarkId::new("rotate and store", rows), |b| {
            b.iter(|| {
                let rows = RopeKvRows { q: &mut q, k: &mut k, v: &v, slots: &positions };
                rope_kv(&exec, &rope, rows, &mut store.view_mut(), 0);
            });
        });
    }
    group.finish();
}
