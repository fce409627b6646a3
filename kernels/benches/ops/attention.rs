//! Attention: bytes of keys and values per second for few queries, multiply-adds per second for many.
//!
//! A token's key and value under one KV head meet `rows * heads / kv_heads` queries, so with grouped queries even a
//! short draft is bound by arithmetic, and both are worth knowing. Contiguous, shuffled and scattered slots, every KV dtype; and
//! what it takes to read such slots and do nothing else.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore};
use foretoken_kernels::ceiling::ReadTest;
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, attention};
use std::time::Duration;

/// Heads and KV heads of 64: TinyLlama's, and as many of each.
const LAYOUTS: [(usize, usize); 2] = [(32, 4), (12, 12)];
/// Context and new rows.
const CASES: [(usize, usize); 6] = [(128, 1), (1000, 1), (4096, 1), (8192, 1), (8192, 8), (0, 512)];
/// Slots of a layer.
const SLOTS: usize = 8200;
/// The same slots in another order, and slots that lie anywhere, on twice as many pages.
const ORDERS: [&str; 3] = ["", " shuffled", " scattered"];
/// The context that they are tried with.
const ORDERED: usize = 4096;
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

/// The first `count` slots, or as many, in an order.
fn ordered(order: &str, count: usize) -> Vec<u32> {
    let all: Vec<u32> = (0..SLOTS as u32).collect();
    match order {
        "" => all[..count].to_vec(),
        " shuffled" => shuffled(&all[..count]),
        _ => shuffled(&all)[..count].to_vec(),
    }
}

pub fn bench(criterion: &mut Criterion) {
    let exec = machine::exec();
    let mut group = criterion.benchmark_group("attention");
    for (heads, kv_heads) in LAYOUTS {
        let shape = AttentionShape::new(heads, kv_heads, 64).expect("a served layout");
        for (dtype_name, dtype) in [("f32", KvDtype::F32), ("bf16", KvDtype::Bf16), ("q8_0", KvDtype::Q8_0)] {
            // Layers take turns, so that keys and values come from memory, even of half of the slots.
            let one = KvShape { layers: 1, heads: kv_heads, head_dim: 64, dtype };
            let kv = KvShape { layers: 2 * machine::ROTATION / (SLOTS * one.bytes_per_slot()), ..one };
            let mut store = KvStore::new(kv, SLOTS);
            let all: Vec<u32> = (0..SLOTS as u32).collect();
            let rows = machine::values(SLOTS * kv.kv_dim());
            for layer in 0..kv.layers {
                store.view_mut().write(&exec, layer, &all, &rows, &rows);
            }
            for (context, rows) in CASES {
                for order in ORDERS {
                    if !order.is_empty() && context != ORDERED {
                        continue;
                    }
                    let slots = ordered(order, context + rows);
                    let (before, new_slots) = slots.split_at(context);
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
    bench_reading(criterion);
}

/// What attention is held against there: reading 12 heads' keys and values in the same order, and nothing else.
fn bench_reading(criterion: &mut Criterion) {
    let (exec, memory) = (machine::exec(), ReadTest::new(machine::ROTATION));
    let mut group = criterion.benchmark_group("reading");
    for (dtype_name, dtype) in [("f32", KvDtype::F32), ("bf16", KvDtype::Bf16), ("q8_0", KvDtype::Q8_0)] {
        let kv = KvShape { layers: 1, heads: 12, head_dim: 64, dtype };
        let len = kv.bytes_per_slot() / kv.heads;
        for order in ORDERS {
            let slots = ordered(order, ORDERED);
            group.throughput(Throughput::Bytes((ORDERED * kv.bytes_per_slot()) as u64));
            let name = BenchmarkId::new(format!("12 heads, {dtype_name} KV{order}"), ORDERED);
            let seconds = || (ORDERED * kv.heads) as f64 / memory.rows_per_second(&exec, (len, SLOTS), &slots);
            // Each measurement goes over all of the memory, so one serves a sample.
            group.bench_function(name, |b| b.iter_custom(|times| Duration::from_secs_f64(seconds() * times as f64)));
        }
    }
    group.finish();
}
