//! Rotation against f64, frequencies against Hugging Face's formulas, and what lands in the slots.
//!
//! Positions reach into the thousands, where angles taken in f32 would already be off by more than the tolerance.
//! Rows are compared alone and together, below and above the size that is split between threads.

use crate::support::{F32, assert_close, bits, levels, levels_and_threads, values};
use foretoken_kernels::Exec;
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore};
use foretoken_kernels::ops::rope_kv::{RopeKvRows, reference};
use foretoken_kernels::ops::{RopeRows, RopeScaling, RopeTable, Yarn, rope_kv};

/// `x` (`[rows, heads * head_dim]`), rotated as queries, and just so as keys, which are stored.
fn rotated(exec: &Exec, rope: &RopeRows, x: &[f32]) -> Vec<f32> {
    let (head_dim, width) = (rope.head_dim(), x.len() / rope.rows());
    let shape = KvShape { layers: 1, heads: width / head_dim, head_dim, dtype: KvDtype::F32 };
    let (mut q, mut k, slots) = (x.to_vec(), x.to_vec(), (0..rope.rows() as u32).rev().collect::<Vec<_>>());
    let mut store = KvStore::new(shape, slots.len());
    let rows = RopeKvRows { q: &mut q, k: &mut k, v: x, slots: &slots };
    rope_kv(exec, rope, rows, &mut store.view_mut(), 0);
    assert_eq!(bits(&q), bits(&k), "{exec:?}");
    let mut stored = vec![0.0; width];
    for (is_value, rows) in [(false, &*k), (true, x)] {
        for (slot, row) in slots.iter().zip(rows.chunks_exact(width)) {
            store.view_mut().layer(0).read(is_value, *slot, &mut stored);
            assert_eq!(bits(&stored), bits(row), "{exec:?} slot {slot}");
        }
    }
    q
}

#[test]
fn agrees_with_the_reference() {
    let positions = [0, 1, 7, 300, 4095];
    for head_dim in [2, 10, 32, 64, 96] {
        let x = values(1, positions.len() * 3 * head_dim);
        let want = reference::rotate(&x, &positions, head_dim, 10_000.0);
        let mut rope = RopeRows::new();
        rope.fill(&RopeTable::new(head_dim, 10_000.0, RopeScaling::None), &positions);
        for exec in levels() {
            let out = rotated(&exec, &rope, &x);
            assert_close(&out, &want, F32, &format!("{exec:?} {head_dim}"));
        }
    }
}

#[test]
fn scalings_follow_their_formulas() {
    let at_one = |scaling| {
        let (mut cos, mut sin) = ([0.0; 32], [0.0; 32]);
        RopeTable::new(64, 500_000.0, scaling).rotation(1, &mut cos, &mut sin);
        sin
    };
    let (plain, linear) = (at_one(RopeScaling::None), at_one(RopeScaling::Linear { factor: 4.0 }));
    let llama3 = at_one(RopeScaling::Llama3 {
        factor: 8.0,
        low_freq_factor: 1.0,
        high_freq_factor: 4.0,
        original_max_position_embeddings: 8192,
    });
    for i in 0..32 {
        let frequency = 500_000f64.powf(-2.0 * i as f64 / 64.0);
        let wavelength = 2.0 * std::f64::consts::PI / frequency;
        let smooth = (8192.0 / wavelength - 1.0) / 3.0;
        let scaled = match wavelength {
            w if w > 8192.0 => frequency / 8.0,
            w if w < 2048.0 => frequency,
            _ => (1.0 - smooth) * frequency / 8.0 + smooth * frequency,
        };
        let want = [frequency, frequency / 4.0, scaled].map(f64::sin);
        assert_close(&[plain[i], linear[i], llama3[i]], &want, F32, &format!("frequency {i}"));
    }
}

/// The formula written from the paper (2309.00071, section 3.2), by turns over the original context and per dimension,
/// with transformers' rounding of the bounds.
#[test]
fn yarn_follows_its_formula_and_scales_cosines_and_sines() {
    let (head_dim, theta, original, factor, scale) = (64_usize, 10_000.0_f64, 4096_usize, 4.0, 1.2);
    for (truncate, beta_fast, beta_slow) in [(true, 32.0, 1.0), (false, 32.0, 1.0), (true, 16.0, 2.0), (true, 9.9, 9.8)]
    {
        let yarn = Yarn {
            factor,
            original_max_position_embeddings: original,
            beta_fast,
            beta_slow,
            attention_factor: scale,
            truncate,
        };
        let (mut cos, mut sin) = ([0.0; 32], [0.0; 32]);
        RopeTable::new(head_dim, theta, RopeScaling::Yarn(yarn)).rotation(3, &mut cos, &mut sin);
        // The (fractional) dimension whose wavelength fits `turns` times into the original context.
        let bound = |turns: f64| (original as f64 / turns / std::f64::consts::TAU).log(theta) * head_dim as f64 / 2.0;
        let (mut low, mut high) = (bound(beta_fast), bound(beta_slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        for i in 0..32 {
            let frequency = theta.powf(-(i as f64) / 32.0);
            let frequency = match i as f64 {
                dimension if dimension <= low => frequency,
                dimension if dimension >= high => frequency / factor,
                dimension => {
                    let divided = (dimension - low) / (high - low);
                    divided * frequency / factor + (1.0 - divided) * frequency
                }
            };
            let want = [(3.0 * frequency).cos() * scale, (3.0 * frequency).sin() * scale];
            assert_close(&[cos[i], sin[i]], &want, F32, &format!("{truncate} {beta_fast} frequency {i}"));
        }
    }
}

#[test]
fn written_out_factors_divide() {
    let (mut cos, mut sin) = ([0.0; 3], [0.0; 3]);
    RopeTable::new(6, 100.0, RopeScaling::None).divided(&[1.0, 2.0, 8.0]).rotation(5, &mut cos, &mut sin);
    let want = [1.0, 2.0, 8.0].iter().enumerate();
    let want: Vec<f64> = want.map(|(i, factor)| (5.0 * 100f64.powf(-(i as f64) / 3.0) / factor).sin()).collect();
    assert_close(&sin, &want, F32, "sines");
}

#[test]
fn rows_land_in_their_slots_whatever_shares_the_pass() {
    let shape = KvShape { layers: 2, heads: 2, head_dim: 12, dtype: KvDtype::Bf16 };
    let (slots, positions) = ([5, 0, 3], [9, 2, 77]);
    let table = RopeTable::new(12, 10_000.0, RopeScaling::None);
    for exec in levels_and_threads() {
        let (q, k, v) = (values(1, 3 * 48), values(2, 3 * 24), values(3, 3 * 24));
        let run = |rows: std::ops::Range<usize>, kv: &mut KvStore| {
            let (mut rope, part) = (RopeRows::new(), |x: &[f32], w: usize| x[rows.start * w..rows.end * w].to_vec());
            rope.fill(&table, &positions[rows.clone()]);
            let (mut q, mut k, v) = (part(&q, 48), part(&k, 24), part(&v, 24));
            let rows = RopeKvRows { q: &mut q, k: &mut k, v: &v, slots: &slots[rows] };
            rope_kv(&exec, &rope, rows, &mut kv.view_mut(), 1);
            q
        };
        let (mut together, mut apart) = (KvStore::new(shape, 6), KvStore::new(shape, 6));
        let whole = run(0..3, &mut together);
        let parts: Vec<f32> = (0..3).flat_map(|row| run(row..row + 1, &mut apart)).collect();
        assert_eq!(bits(&whole), bits(&parts), "{exec:?}");
        let (mut a, mut b, mut values_read) = ([0.0; 24], [0.0; 24], [0.0; 24]);
        for (row, slot) in slots.into_iter().enumerate() {
            together.view_mut().layer(1).read(false, slot, &mut a);
            apart.view_mut().layer(1).read(false, slot, &mut b);
            together.view_mut().layer(1).read(true, slot, &mut values_read);
            assert_eq!(bits(&a), bits(&b), "{exec:?} slot {slot}");
            let want: Vec<f32> = v[row * 24..][..24].iter().map(|v| half::bf16::from_f32(*v).to_f32()).collect();
            assert_eq!(values_read.to_vec(), want, "{exec:?} slot {slot}");
        }
        together.view_mut().layer(0).read(true, 5, &mut a);
        assert_eq!(a, [0.0; 24], "the other layer is untouched");
    }
}

/// Large enough to be split between threads, where a part must still find its own rows' angles.
#[test]
fn a_long_pass_rotates_each_row_by_its_own_position() {
    let (table, positions) = (RopeTable::new(32, 10_000.0, RopeScaling::None), (0..700).rev().collect::<Vec<u32>>());
    let x = values(4, 700 * 64);
    for exec in levels_and_threads() {
        let mut rope = RopeRows::new();
        rope.fill(&table, &positions);
        let whole = rotated(&exec, &rope, &x);
        for row in (0..700).step_by(23) {
            rope.fill(&table, &positions[row..row + 1]);
            let alone = rotated(&exec, &rope, &x[row * 64..(row + 1) * 64]);
            assert_eq!(bits(&alone), bits(&whole[row * 64..(row + 1) * 64]), "{exec:?} row {row}");
        }
    }
}
