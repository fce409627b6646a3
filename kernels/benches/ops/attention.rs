//! Attention: bytes of keys and values per second for few queries, multiply-adds per second for many.
//!
//! A token's key and value under one KV head meet `rows * heads / kv_heads` queries, so with grouped queries even a
//! short draft is bound by arithmetic, and both are worth knowing. Contiguous, shuffled and scattered slots, every KV dtype.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore};
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, attention};

/// Heads and KV heads of 64: TinyLlama's, and as many of each.
const LAYOUTS: [(usize, usize); 2] = [(32, 4), (12, 12)];
/// Context and new rows.
const CASES: [(usize, usize); 6] = [(128, 1), (1000, 1), (4096, 1), (8192, 1), (8192, 8), (0, 512)];
/// Queries per key from which multiplying is what counts.
const MANY: usize = 8;

/// Slots in random order, the same every time (Fisher and Yates, with the numbers of a linear congruence).
fn shuffled(slots: &[u32]) -> Vec<u32> {
    let (mut order, mut random) = (slots.to_vec(), 1u64);
    for last in (1..order.len()).rev() {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        order.swap(last, (random >> 33) as usize % (last + 1));
    }
    order
}

pub fn bench(criterion: &mut Criterion) {
    let exec = machine::exec();
    let mut group = criterion.benchmark_group("attention");
    for (heads, kv_heads) in LAYOUTS {
        let shape = AttentionShape::new(heads, kv_heads, 64).expect("a served layout");
        for (dtype_name, dtype) in [("f32", KvDtype::F32), ("bf16", KvDtype::Bf16), ("q8_0", KvDtype::Q8_0)] {
            // Layers take turns, so that keys and values come from memory, even of half of the slots.
            let slots = 8200;
            let one = KvShape { layers: 1, heads: kv_heads, head_dim: 64, dtype };
            let kv = KvShape { layers: 2 * machine::ROTATION / (slots * one.bytes_per_slot()), ..one };
            let mut store = KvStore::new(kv, slots);
            let all: Vec<u32> = (0..slots as u32).collect();
            let rows = machine::values(slots * kv.kv_dim());
            for layer in 0..kv.layers {
                store.view_mut().write(&exec, layer, &all, &rows, &rows);
            }
            for (context, rows) in CASES {
                // The same slots in another order, and slots that lie anywhere, on twice as many pages.
                for order in ["", " shuffled", " scattered"] {
                    if !order.is_empty() && context != 4096 {
                        continue;
                    }
                    let slots = match order {
                        "" => all.clone(),
                        " shuffled" => shuffled(&all[..context + rows]),
                        _ => shuffled(&all),
                    };
                    let (before, new_slots) = slots[..context + rows].split_at(context);
                    let seqs = [AttentionSeq { context: before, rows: 0..rows, new_slots, tree: None }];
                    let mut q = machine::values(rows * shape.q_dim());
                    let attended: usize = (context + 1..=context + rows).sum();
                    group.throughput(match rows * heads / kv_heads > MANY {
                        false => Throughput::Bytes(((context + rows) * kv.bytes_per_slot() / kv.layers) as u64),
                        true => Throughput::Elements((attended * heads * 64 * 2) as u64),
                    });
                    let name = format!("f32 {heads}/{kv_heads} heads, {dtype_name} KV{order}");
                    let mut layer = 0;
                    group.bench_function(BenchmarkId::new(name, format!("{context}+{rows}")), |b| {
                        b.iter(|| {
                            layer = (layer + 1) % kv.layers;
                            attention(&exec, &shape, &mut q, store.view_mut().layer(layer), &seqs);
                        });
                    });
                }
            }
        }
    }
    group.finish();
}
