//! The two owners of one strided layout: what is written is read, slots do not overlap, and misuse is refused.
//!
//! Every slot of every layer gets its own contents before anything is read back, so an overlap shows.
//! The lane has a stride larger than its slots, as an engine that packs several lanes gives it.

use crate::support::{levels_and_threads, shuffled, values};
use foretoken_kernels::blocks::{KvDtype, KvShape, KvStore, KvViewMut, RowPlaces};
use foretoken_kernels::{Exec, KernelError, SimdLevel};

const SHAPE: KvShape = KvShape { layers: 3, heads: 2, head_dim: 10, dtype: KvDtype::F32 };

fn key_of(layer: usize, slot: u32) -> Vec<f32> {
    values(u64::from(slot) * 10 + layer as u64, 20)
}

fn fill_and_check(mut kv: KvViewMut<'_>) {
    let exec = Exec::cpu(2).unwrap();
    let slots = kv.num_slots() as u32;
    for layer in 0..SHAPE.layers {
        for slot in 0..slots {
            let (key, value) = (key_of(layer, slot), key_of(layer + 5, slot));
            kv.write(&exec, layer, &[slot], &key, &value);
        }
    }
    kv.copy_slot(1, 0);
    let mut row = [0.0; 20];
    for layer in 0..SHAPE.layers {
        for slot in 0..slots {
            let source = slot.max(1);
            kv.layer(layer).read(false, slot, &mut row);
            assert_eq!(row.to_vec(), key_of(layer, source));
            kv.layer(layer).read(true, slot, &mut row);
            assert_eq!(row.to_vec(), key_of(layer + 5, source));
        }
    }
}

#[test]
fn store_and_lane_keep_what_is_written() {
    fill_and_check(KvStore::new(SHAPE, 4).view_mut());
    let stride = SHAPE.bytes_per_slot() + 8;
    let mut words = vec![0f32; 4 * stride / 4];
    // SAFETY: `words` has 4 * stride bytes, which are plain and borrowed by nobody else.
    let bytes = unsafe { std::slice::from_raw_parts_mut(words.as_mut_ptr().cast::<u8>(), 4 * stride) };
    fill_and_check(KvViewMut::over_lane(bytes, SHAPE, stride).unwrap());
}

/// Within half a step of the greatest of each 32 dimensions, of which the last group is short.
#[test]
fn int8_rows_keep_their_values_within_half_a_step() {
    let shape = KvShape { layers: 1, heads: 1, head_dim: 45, dtype: KvDtype::Q8_0 };
    assert_eq!(shape.bytes_per_slot(), 2 * (46 + 2 * 2));
    let mut store = KvStore::new(shape, 3);
    let exec = Exec::cpu(1).unwrap();
    for scale in [1.0, 3e-3, 700.0] {
        let key: Vec<f32> = values(1, 45).iter().map(|value| value * scale).collect();
        for level in SimdLevel::available() {
            let exec = exec.with_simd(level).unwrap();
            store.view_mut().write(&exec, 0, &[1], &key, &[0.0; 45]);
            let mut row = [0.0; 45];
            store.view_mut().layer(0).read(false, 1, &mut row);
            for (want, got) in key.chunks(32).zip(row.chunks(32)) {
                let greatest = want.iter().fold(0f32, |greatest, value| greatest.max(value.abs()));
                // Half a step, and the rounding of the scale to f16.
                let bound = greatest / 127.0 * 0.5 + greatest * 1e-3;
                assert!(want.iter().zip(got).all(|(want, got)| (want - got).abs() <= bound), "{level} {scale}");
            }
            store.view_mut().layer(0).read(true, 1, &mut row);
            assert_eq!(row, [0.0; 45], "{level}");
        }
    }
}

#[test]
fn lanes_that_do_not_fit_are_refused() {
    let mut bytes = vec![0u8; 4096];
    let error = KvViewMut::over_lane(&mut bytes, SHAPE, SHAPE.bytes_per_slot() - 4).unwrap_err();
    assert!(matches!(error, KernelError::KvMemory { expected: 480, got: 476, .. }), "{error}");
    assert!(KvViewMut::over_lane(&mut bytes, SHAPE, SHAPE.bytes_per_slot() + 2).is_err(), "misaligned stride");
    let start = 1 + usize::from(!bytes.as_ptr().addr().is_multiple_of(2));
    let shifted = KvViewMut::over_lane(&mut bytes[start..], SHAPE, SHAPE.bytes_per_slot());
    assert!(shifted.is_err(), "misaligned start");
}

#[test]
#[should_panic(expected = "slot 4 is outside of the KV's 4 slots")]
fn a_slot_outside_panics() {
    let mut store = KvStore::new(SHAPE, 4);
    store.view_mut().layer(0).read(false, 4, &mut [0.0; 20]);
}

/// Rows of one layer among others in a slot, few and so many that threads share them.
#[test]
fn rows_stored_at_slots_are_those_stored_one_by_one() {
    const SLOTS: usize = 1500;
    for (exec, dtype) in levels_and_threads()
        .flat_map(|exec| [KvDtype::F32, KvDtype::Bf16, KvDtype::Q8_0].map(|dtype| (exec.clone(), dtype)))
    {
        for (count, dims, width) in [(1, 33, 40), (7, 70, 70), (1400, 96, 100)] {
            let row_bytes = dtype.row_bytes(dims);
            let (stride, offset) = (2 * row_bytes.next_multiple_of(4), row_bytes.next_multiple_of(4));
            let slots: Vec<u32> = shuffled(3, SLOTS).iter().take(count).map(|slot| *slot as u32).collect();
            let rows = values(5, count * width);
            let (mut own, mut want) = (vec![0u32; SLOTS * stride / 4], vec![0u32; SLOTS * stride / 4]);
            dtype.store_rows(&exec, (&rows, dims), bytes(&mut own), RowPlaces { slots: &slots, stride, offset });
            for (row, slot) in rows.chunks(width).zip(&slots) {
                let places = RowPlaces { slots: &[*slot], stride, offset };
                dtype.store_rows(&Exec::portable_single(), (row, dims), bytes(&mut want), places);
            }
            assert!(own == want, "{exec:?} {dtype:?}, {count} rows of {dims} dimensions");
            let mut read = vec![0.0; dims];
            let start = slots[0] as usize * stride + offset;
            dtype.load(&bytes(&mut own)[start..start + row_bytes], &mut read);
            assert!(read.iter().zip(&rows).all(|(read, row)| (read - row).abs() < 0.01), "{dtype:?}: {read:?}");
        }
    }
}

/// Few tokens and so many that threads share their heads; of two tokens in one slot the last stays.
#[test]
fn tokens_written_together_are_those_written_one_by_one() {
    let single = Exec::portable_single();
    for exec in levels_and_threads() {
        for dtype in [KvDtype::F32, KvDtype::Bf16, KvDtype::Q8_0] {
            let shape = KvShape { layers: 2, heads: 5, head_dim: 40, dtype };
            for count in [1, 3, 300] {
                let mut slots: Vec<u32> = shuffled(7, 400)[..count].iter().map(|slot| *slot as u32).collect();
                slots[count - 1] = slots[0];
                let (keys, values) = (values(1, count * shape.kv_dim()), values(2, count * shape.kv_dim()));
                let (mut own, mut want) = (KvStore::new(shape, 400), KvStore::new(shape, 400));
                own.view_mut().write(&exec, 1, &slots, &keys, &values);
                let tokens = keys.chunks(shape.kv_dim()).zip(values.chunks(shape.kv_dim()));
                for (slot, (key, value)) in slots.iter().zip(tokens) {
                    want.view_mut().write(&single, 1, &[*slot], key, value);
                }
                let (mut own_row, mut want_row) = (vec![0.0; shape.kv_dim()], vec![0.0; shape.kv_dim()]);
                for (layer, slot, is_value) in (0..2).flat_map(|layer| {
                    (0..400).flat_map(move |slot| [false, true].map(|is_value| (layer, slot, is_value)))
                }) {
                    own.view_mut().layer(layer).read(is_value, slot, &mut own_row);
                    want.view_mut().layer(layer).read(is_value, slot, &mut want_row);
                    assert_eq!(own_row, want_row, "{exec:?} {dtype:?}, {count} tokens, layer {layer} slot {slot}");
                }
            }
        }
    }
}

/// Words as bytes, so that rows are aligned.
fn bytes(words: &mut [u32]) -> &mut [u8] {
    // SAFETY: any bytes are u32, and u32 are bytes.
    unsafe { words.align_to_mut().1 }
}
