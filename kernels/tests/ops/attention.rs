//! Attention against f64 on random sequences and trees, and its bits against every way of sharing a pass.
//!
//! Random cases mix chains and trees, contexts around the tile of 32 and head sizes that fill no vector.
//! The invariance tests are the ones that verification of drafts rests on.

use crate::support::{BF16, F32, Tolerance, assert_close, bits, levels, levels_and_threads, shuffled, values};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore, KvViewMut};
use foretoken_kernels::ops::attention::reference;
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, TreePaths, attention};
use foretoken_kernels::{Exec, KernelError, SimdLevel};
use proptest::prelude::*;

const NUM_SLOTS: usize = 256;
/// Where bf16 multiply in pairs, weights are rounded to it: each by at most 2^-9 of it, and values (below 1) differ from
/// their mean by at most 2.
const PAIRS: Tolerance = Tolerance { abs: 1.0 / 256.0 + F32.abs, eps: 0.0 };
/// Where integers multiply in quads, weights are rounded to parts of the greatest among 32: each by at most 1/510 of it, times
/// a value below 1. That is what could come together; what does is tested below.
const QUADS: Tolerance = Tolerance { abs: 32.0 / 510.0 + F32.abs, eps: 0.0 };

fn filled(shape: &AttentionShape, dtype: KvDtype, seed: u64) -> KvStore {
    let kv_dim = shape.kv_dim();
    let kv = KvShape { layers: 1, heads: shape.kv_heads(), head_dim: shape.head_dim(), dtype };
    let mut store = KvStore::new(kv, NUM_SLOTS);
    for slot in 0..NUM_SLOTS as u32 {
        let (key, value) = (values(seed + u64::from(slot) * 2, kv_dim), values(seed + u64::from(slot) * 2 + 1, kv_dim));
        store.view_mut().write(&Exec::portable_single(), 0, &[slot], &key, &value);
    }
    store
}

/// What `store` holds, as bf16.
fn as_bf16(store: &mut KvStore) -> KvStore {
    let mut rounded = KvStore::new(KvShape { dtype: KvDtype::Bf16, ..store.shape() }, NUM_SLOTS);
    for slot in 0..NUM_SLOTS as u32 {
        let [key, value] = [false, true].map(|is_value| {
            let mut row = vec![0.0; store.shape().kv_dim()];
            store.view_mut().layer(0).read(is_value, slot, &mut row);
            row
        });
        rounded.view_mut().write(&Exec::portable_single(), 0, &[slot], &key, &value);
    }
    rounded
}

/// Queries that stay as they are where bf16 multiply in pairs: scaled to exponents of 2 and rounded, `q` are these.
fn as_pairs(shape: &AttentionShape, q: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (shape.head_dim() as f32).sqrt() * std::f32::consts::LOG2_E;
    q.iter().map(|q| half::bf16::from_f32(q * scale).to_f32() / scale).collect()
}

/// Queries that stay as they are where integers multiply in quads: scaled to exponents of 2 and rounded to int8 for each 32
/// dimensions, `q` are these.
fn as_quads(shape: &AttentionShape, q: &[f32]) -> Vec<f32> {
    let scale = 1.0 / (shape.head_dim() as f32).sqrt() * std::f32::consts::LOG2_E;
    let mut rounded = q.to_vec();
    for block in rounded.chunks_mut(shape.head_dim()).flat_map(|head| head.chunks_mut(32)) {
        let greatest = block.iter().fold(0f32, |greatest, q| greatest.max((q * scale).abs()));
        for q in block {
            *q = (*q * scale * (127.0 / greatest)).round_ties_even() * (greatest / 127.0) / scale;
        }
    }
    rounded
}

fn slots(seed: u64, len: usize) -> Vec<u32> {
    shuffled(seed, NUM_SLOTS)[..len].iter().map(|slot| *slot as u32).collect()
}

fn run(exec: &Exec, shape: &AttentionShape, q: &[f32], kv: &mut KvStore, seqs: &[AttentionSeq<'_>]) -> Vec<f32> {
    let mut q = q.to_vec();
    attention(exec, shape, &mut q, kv.view_mut().layer(0), seqs);
    q
}

/// Paths from parents, in the CSR form of [`TreePaths`].
fn paths(parents: &[Option<usize>]) -> (Vec<u32>, Vec<u32>) {
    let (mut offsets, mut rows) = (vec![0], Vec::new());
    for row in 0..parents.len() {
        let mut path: Vec<u32> = std::iter::successors(Some(row), |row| parents[*row]).map(|row| row as u32).collect();
        path.reverse();
        rows.extend(path);
        offsets.push(rows.len() as u32);
    }
    (offsets, rows)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]
    #[test]
    fn agrees_with_the_reference(
        (kv_heads, group, half) in (1usize..4, 1usize..7, 1usize..40),
        contexts in prop::collection::vec(0usize..90, 1..4),
        parents in prop::collection::vec(any::<prop::sample::Index>(), 1..9),
        window in prop::option::of(1usize..80),
        seed in 0u64..1000,
    ) {
        let shape = AttentionShape::new(kv_heads * group, kv_heads, 2 * half).unwrap().with_window(window);
        let rows = parents.len();
        let parents: Vec<Option<usize>> = (0..rows).map(|r| (r > 0).then(|| parents[r].index(r))).collect();
        let (offsets, path_rows) = paths(&parents);
        let lists: Vec<(Vec<u32>, Vec<u32>)> = contexts.iter().enumerate()
            .map(|(i, len)| (slots(seed + i as u64, *len), slots(seed + 50 + i as u64, rows))).collect();
        let seqs: Vec<AttentionSeq<'_>> = lists.iter().enumerate().map(|(i, (context, new_slots))| AttentionSeq {
            context, rows: i * rows..(i + 1) * rows, new_slots,
            tree: (i != 1).then_some(TreePaths { offsets: &offsets, rows: &path_rows }),
        }).collect();
        let q: Vec<f32> = values(seed, seqs.len() * rows * shape.q_dim()).iter().map(|v| v * 4.0).collect();
        let (pairs, quads) = (as_pairs(&shape, &q), as_quads(&shape, &q));
        for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::Q8_0] {
            let mut kv = filled(&shape, dtype, seed);
            let mut want = |q: &[f32]| reference::attention(&shape, q, kv.view_mut().layer(0), &seqs);
            let (want, want_of_pairs, want_of_quads) = (want(&q), want(&pairs), want(&quads));
            let portable = run(&Exec::portable_single(), &shape, &q, &mut kv, &seqs);
            for exec in levels() {
                let got = run(&exec, &shape, &q, &mut kv, &seqs);
                let what = format!("{exec:?} {dtype:?}");
                if dtype == KvDtype::Q8_0 && exec.simd() == SimdLevel::Amx {
                    if group <= 4 {
                        assert_close(&got, &want_of_quads, QUADS, &what);
                    } else {
                        // Which agrees with the reference, as seen above.
                        let as_bf16 = run(&exec, &shape, &q, &mut as_bf16(&mut kv), &seqs);
                        prop_assert_eq!(bits(&got), bits(&as_bf16));
                    }
                    continue;
                }
                match dtype {
                    KvDtype::Bf16 if exec.simd() >= SimdLevel::Avx512Bf16 => {
                        assert_close(&got, &want_of_pairs, PAIRS, &what);
                        continue;
                    }
                    KvDtype::F32 => assert_close(&got, &want, F32, &what),
                    KvDtype::Bf16 => assert_close(&got, &want, BF16, &what),
                    _ => assert_close(&got, &want_of_quads, QUADS, &what),
                }
                prop_assert_eq!(bits(&got), bits(&portable), "{}", what);
            }
        }
    }
}

/// What multiplying q8_0 as integers rounds, queries and weights, changes attention about as much as storing keys and values
/// as q8_0 did: from 0.6 to 1.0 times here.
#[test]
fn attention_rounds_q8_0_about_as_much_as_storing_it_did() {
    // Evenly spread weights, peaked ones, and most of it on a first token whose value is small; dimensions of all sizes.
    for (sharpness, first) in [(0.5, 1.0), (8.0, 1.0), (2.0, 0.02)] {
        let shape = AttentionShape::new(4, 2, 96).unwrap();
        let kv = |dtype| KvShape { layers: 1, heads: 2, head_dim: 96, dtype };
        let [mut exact, mut stored] = [KvDtype::F32, KvDtype::Q8_0].map(|dtype| KvStore::new(kv(dtype), NUM_SLOTS));
        let q: Vec<f32> = values(1, 8 * shape.q_dim()).iter().map(|q| q * sharpness).collect();
        for slot in 0..NUM_SLOTS as u32 {
            let sized = |(dim, x): (usize, f32)| x * [1.0, 0.3, 4.0][dim / 32 % 3] * [1.0, 0.5, 2.0][slot as usize % 3];
            let [mut key, mut value] = [3, 4].map(|seed| values(seed + u64::from(slot) * 2, shape.kv_dim()));
            if slot == 0 && first < 1.0 {
                // A key that all of these queries' heads have in common.
                for (dim, key) in key.iter_mut().enumerate() {
                    *key = (0..16).map(|head| q[head * 96 + dim % 96]).sum();
                }
                value.iter_mut().for_each(|value| *value *= first);
            }
            value = value.into_iter().enumerate().map(sized).collect();
            for store in [&mut exact, &mut stored] {
                store.view_mut().write(&Exec::portable_single(), 0, &[slot], &key, &value);
            }
        }
        let list: Vec<u32> = (0..200).collect();
        let (context, new_slots) = list.split_at(192);
        let seqs = [AttentionSeq { context, rows: 0..8, new_slots, tree: None }];
        let [exact, want] =
            [&mut exact, &mut stored].map(|kv| reference::attention(&shape, &q, kv.view_mut().layer(0), &seqs));
        let mean = |errors: &mut dyn Iterator<Item = f64>| (errors.map(|error| error * error).sum::<f64>()).sqrt();
        let by_storing = mean(&mut exact.iter().zip(&want).map(|(exact, want)| want - exact));
        for exec in levels() {
            let got = run(&exec, &shape, &q, &mut stored, &seqs);
            let by_attention = mean(&mut got.iter().zip(&want).map(|(got, want)| f64::from(*got) - want));
            assert!(
                by_attention <= 1.25 * by_storing,
                "{exec:?}, {sharpness}, {first}: {by_attention} after {by_storing}"
            );
        }
    }
}

/// Scores so large that a float has no bits left for anything beside them: all of the weight is the greatest's.
#[test]
fn huge_scores_leave_the_greatest_alone() {
    let shape = AttentionShape::new(1, 1, 64).unwrap();
    let mut key = vec![0.0; 64];
    for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::Q8_0] {
        let mut kv = KvStore::new(KvShape { layers: 1, heads: 1, head_dim: 64, dtype }, NUM_SLOTS);
        for slot in 0..40 {
            key.fill(if slot == 7 { 1.0 } else { 0.5 });
            let value = [if slot == 7 { 3.0 } else { 100.0 }; 64];
            kv.view_mut().write(&Exec::portable_single(), 0, &[slot], &key, &value);
        }
        let context: Vec<u32> = (0..39).collect();
        let seqs = [AttentionSeq { context: &context, rows: 0..1, new_slots: &[39], tree: None }];
        for sharpness in [1e4, 1e6, 1e8, 1e12] {
            for exec in levels() {
                let got = run(&exec, &shape, &[sharpness; 64], &mut kv, &seqs);
                assert!(got.iter().all(|got| (got - 3.0).abs() < 0.03), "{exec:?} {dtype:?} {sharpness}: {}", got[0]);
            }
        }
    }
}

/// The rows of a prefill of 70, in chunks of any size, have the bits of the whole.
#[test]
fn rows_do_not_depend_on_their_chunk() {
    for (dtype, window) in [(KvDtype::Bf16, None), (KvDtype::Q8_0, None), (KvDtype::Bf16, Some(37))] {
        // A head that does not fill its lines, some that do, and the longest.
        for head_dim in [48, 64, 128, 256] {
            chunks_have_the_bits_of_the_whole(dtype, AttentionShape::new(4, 2, head_dim).unwrap().with_window(window));
        }
    }
    // One query a row, and as many as are multiplied otherwise.
    for heads in [2, 12] {
        chunks_have_the_bits_of_the_whole(KvDtype::Q8_0, AttentionShape::new(heads, 2, 64).unwrap());
    }
}

fn chunks_have_the_bits_of_the_whole(dtype: KvDtype, shape: AttentionShape) {
    let (mut kv, list) = (filled(&shape, dtype, 1), slots(2, 100));
    let q = values(3, 70 * shape.q_dim());
    for exec in levels_and_threads() {
        let part = |kv: &mut KvStore, rows: std::ops::Range<usize>| {
            let (first, last) = (30 + rows.start, 30 + rows.end);
            let (context, new_slots) = (&list[..first], &list[first..last]);
            let q = &q[rows.start * shape.q_dim()..rows.end * shape.q_dim()];
            run(&exec, &shape, q, kv, &[AttentionSeq { context, rows: 0..rows.len(), new_slots, tree: None }])
        };
        let whole = part(&mut kv, 0..70);
        for chunk in [1, 2, 3, 7, 16, 33, 69] {
            for start in (0..70).step_by(chunk) {
                let rows = start..(start + chunk).min(70);
                let want = &whole[rows.start * shape.q_dim()..rows.end * shape.q_dim()];
                assert_eq!(bits(&part(&mut kv, rows.clone())), bits(want), "{exec:?} rows {rows:?}");
            }
        }
    }
}

/// Where a token's value lies apart from its key, and its heads together, as in a lane, attention has the bits of the
/// engine's own memory.
#[test]
fn a_lane_has_the_bits_of_the_engines_memory() {
    for (dtype, head_dim) in [(KvDtype::F32, 64), (KvDtype::Bf16, 48), (KvDtype::Bf16, 64), (KvDtype::Q8_0, 64)] {
        let shape = AttentionShape::new(4, 2, head_dim).unwrap();
        let mut store = filled(&shape, dtype, 7);
        let kv = store.shape();
        let mut memory = vec![0u8; NUM_SLOTS * kv.bytes_per_slot() + 64];
        let start = memory.as_ptr().align_offset(64);
        let lane = &mut memory[start..][..NUM_SLOTS * kv.bytes_per_slot()];
        let mut lane = KvViewMut::over_lane(lane, kv, kv.bytes_per_slot()).unwrap();
        for slot in 0..NUM_SLOTS as u32 {
            let (key, value) =
                (values(7 + u64::from(slot) * 2, kv.kv_dim()), values(8 + u64::from(slot) * 2, kv.kv_dim()));
            lane.write(&Exec::portable_single(), 0, &[slot], &key, &value);
        }
        let list = slots(9, 150);
        let (context, new_slots) = list.split_at(145);
        let seqs = [AttentionSeq { context, rows: 0..5, new_slots, tree: None }];
        let q = values(10, 5 * shape.q_dim());
        for exec in levels() {
            let mut got = q.clone();
            attention(&exec, &shape, &mut got, lane.layer(0), &seqs);
            assert_eq!(bits(&got), bits(&run(&exec, &shape, &q, &mut store, &seqs)), "{exec:?} {dtype:?} {head_dim}");
        }
    }
}

/// A chain written as a tree, and a path among siblings, have the bits of the chain.
#[test]
fn tree_rows_have_the_bits_of_their_path_as_a_chain() {
    for window in [None, Some(4), Some(33)] {
        tree_rows_equal_their_chains(KvDtype::F32, AttentionShape::new(6, 3, 16).unwrap().with_window(window));
        tree_rows_equal_their_chains(KvDtype::Bf16, AttentionShape::new(6, 3, 64).unwrap().with_window(window));
        tree_rows_equal_their_chains(KvDtype::Q8_0, AttentionShape::new(6, 3, 64).unwrap().with_window(window));
    }
}

fn tree_rows_equal_their_chains(dtype: KvDtype, shape: AttentionShape) {
    let mut kv = filled(&shape, dtype, 4);
    // Two chains of a tree: 0-1-3-5-7 and 0-2-4-6, and a leaf under 3.
    let parents = [None, Some(0), Some(0), Some(1), Some(2), Some(3), Some(4), Some(5), Some(3)];
    let (offsets, rows) = paths(&parents);
    let (new_slots, q) = (slots(9, 9), values(5, 9 * shape.q_dim()));
    for exec in levels_and_threads() {
        for context_len in [0, 1, 20, 31, 32, 33, 61, 64, 100] {
            let context = &slots(7, context_len);
            let tree = Some(TreePaths { offsets: &offsets, rows: &rows });
            let seq = AttentionSeq { context, rows: 0..9, new_slots: &new_slots, tree };
            let together = run(&exec, &shape, &q, &mut kv, &[seq]);
            for row in 0..9 {
                let path = &rows[offsets[row] as usize..offsets[row + 1] as usize];
                let chain_slots: Vec<u32> = path.iter().map(|r| new_slots[*r as usize]).collect();
                let chain_q: Vec<f32> =
                    path.iter().flat_map(|r| &q[*r as usize * shape.q_dim()..][..shape.q_dim()]).copied().collect();
                let rows = 0..path.len();
                let seq = AttentionSeq { context, rows, new_slots: &chain_slots, tree: None };
                let chain = run(&exec, &shape, &chain_q, &mut kv, &[seq]);
                let (got, want) =
                    (&together[row * shape.q_dim()..][..shape.q_dim()], chain.chunks(shape.q_dim()).last());
                assert_eq!(bits(got), bits(want.unwrap()), "{exec:?} row {row} after {context_len}");
            }
        }
    }
}

#[test]
fn head_layouts_it_cannot_serve_are_refused() {
    for (heads, kv_heads, head_dim) in [(3, 2, 16), (4, 0, 16), (128, 1, 16), (2, 2, 258), (2, 2, 7)] {
        let refused = AttentionShape::new(heads, kv_heads, head_dim);
        assert!(matches!(refused, Err(KernelError::HeadLayout { .. })), "{heads} {kv_heads} {head_dim}");
    }
}
