//! The linear against f64, and its bits against every way of sharing a pass.
//!
//! Shapes are odd on purpose: remainders of steps, tiles and blocks are where a second order of summation creeps in.
//! Invariance is compared as bits, never within a tolerance.

use crate::support::{BF16, F32, assert_close, bits, levels, levels_and_threads, shuffled, values};
use foretoken_kernels::blocks::Linear;
use foretoken_kernels::ops::linear::reference;
use foretoken_kernels::ops::{LinearJob, PackedRows, linear};
use foretoken_kernels::{Arrangement, Exec, KernelError, NoiseKey, SimdLevel, Weight, WeightDtype, noise};

const DTYPES: [WeightDtype; 7] = WeightDtype::ALL;

/// With a bias if its out features are odd in number: without one, sums may be stored where they belong.
fn made(dtype: WeightDtype, [outs, ins]: [usize; 2], seed: u64) -> Linear {
    let weight = Weight::from_f32(dtype, [outs, ins], &values(seed, outs * ins));
    let bias = (!outs.is_multiple_of(2)).then(|| values(seed + 1, outs));
    Linear::new("test", weight, bias).unwrap()
}

/// As it was made, and as the level of `exec` would have it if that is something else, or as if a file's if it folds.
fn arrangements(layer: Linear, exec: &Exec) -> Vec<Linear> {
    let arranged = layer.weight().clone().arranged(exec);
    let other = if arranged.arrangement() != layer.weight().arrangement() {
        Some(arranged)
    } else {
        layer.weight().folds().then(|| arranged.unfolded())
    };
    let other = other.map(|weight| Linear::new("test", weight, layer.bias().map(<[f32]>::to_vec)).unwrap());
    [layer].into_iter().chain(other).collect()
}

/// q4_K with scales and minima of all 6 bits, as files have them.
fn stored([outs, ins]: [usize; 2], seed: u64) -> Linear {
    let draw = |index: usize| noise::bits(NoiseKey { seed, completion: 0, stream: 0 }, index as u32) as u8;
    let mut bytes: Vec<u8> = (0..outs * ins / 256 * 144).map(draw).collect();
    for block in bytes.chunks_mut(144) {
        // The scales' and the minima's, from 2^-10 to 2^-9.
        (block[1], block[3]) = (0x14 | block[1] & 3, 0x14 | block[3] & 3);
    }
    let rows: Vec<&[u8]> = bytes.chunks(ins / 256 * 144).collect();
    let weight = Weight::from_blocks("test", WeightDtype::Q4K, [outs, ins], &rows).unwrap();
    assert!(!weight.folds());
    Linear::new("test", weight, None).unwrap()
}

fn run(exec: &Exec, linear: &Linear, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / linear.weight().cols();
    let mut out = vec![f32::NAN; rows * linear.weight().rows()];
    linear.forward(exec, x, &mut PackedRows::new(), &mut out);
    out
}

#[test]
fn agrees_with_the_reference() {
    // The last has more than a band of rows and a span of columns.
    for shape in [[1, 1], [5, 16], [37, 100], [64, 32], [130, 95], [300, 64], [150, 700]] {
        for dtype in DTYPES {
            let (layer, tolerance) = (made(dtype, shape, 7), if dtype == WeightDtype::Bf16 { BF16 } else { F32 });
            for rows in [1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 33] {
                let x = values(11, rows * shape[1]);
                for (exec, layer) in levels().flat_map(|exec| {
                    let layers = arrangements(layer.clone(), &exec);
                    layers.into_iter().map(move |layer| (exec.clone(), layer))
                }) {
                    let (got, want) = (run(&exec, &layer, &x), reference::linear(&layer, &x));
                    let arrangement = layer.weight().arrangement();
                    let place = format!("{exec:?} {dtype} {arrangement:?} {shape:?} {rows} rows");
                    assert_close(&got, &want, tolerance, &place);
                }
            }
        }
    }
}

/// Rows alone, in batches of 2 to 70, in any order, on 1, 2 and 4 threads.
#[test]
fn rows_do_not_depend_on_their_batch() {
    let counts: Vec<usize> = (2..=12).chain([16, 23, 31, 47, 48, 49, 50, 51, 53, 64, 70]).collect();
    // The last two have more columns and more rows in a task than matrix instructions take at once.
    let long = &[8, 16, 23, 40, 70];
    let cases = [([83, 131], &counts[..]), ([98, 131], &counts), ([50, 2200], long), ([1300, 40], long)];
    for (exec, ([outs, ins], counts)) in levels_and_threads().flat_map(|exec| cases.map(|case| (exec.clone(), case))) {
        let x = values(5, 70 * ins);
        for layer in DTYPES.into_iter().flat_map(|dtype| arrangements(made(dtype, [outs, ins], 3), &exec)) {
            let (dtype, arrangement) = (layer.weight().dtype(), layer.weight().arrangement());
            let alone: Vec<Vec<u32>> = x.chunks(ins).map(|x| bits(&run(&exec, &layer, x))).collect();
            for &count in counts {
                let order = &shuffled(count as u64, 70)[..count];
                let batch: Vec<f32> = order.iter().flat_map(|r| &x[r * ins..(r + 1) * ins]).copied().collect();
                let out = run(&exec, &layer, &batch);
                for (row, out) in order.iter().zip(out.chunks(outs)) {
                    let place = format!("{exec:?} {dtype} {arrangement:?}, {outs}x{ins}: row {row} of {count}");
                    assert_eq!(bits(out), alone[*row], "{place}");
                }
            }
        }
    }
}

/// bf16 arranged anew: its values; and in columns the bits of rows alone, for every remainder of chunks, the same at all levels
/// that multiply no pairs. Matrix instructions give every arrangement the same bits.
#[test]
fn arrangements_keep_values_and_the_bits_of_rows_alone() {
    for shape in [[1, 1], [5, 16], [37, 100], [83, 131], [130, 95], [64, 32], [40, 700]] {
        let rows = made(WeightDtype::Bf16, shape, 3);
        let [columns, tiles] = [Arrangement::Columns, Arrangement::Tiles].map(|arrangement| {
            let weight = rows.weight().clone().rearranged(arrangement);
            assert_eq!((weight.arrangement(), rows.weight().arrangement()), (arrangement, Arrangement::Rows));
            for row in 0..shape[0] {
                let (mut want, mut got) = (vec![0.0; shape[1]], vec![1.0; shape[1]]);
                rows.weight().row_f32(row, &mut want);
                weight.row_f32(row, &mut got);
                assert_eq!(bits(&got), bits(&want), "row {row} of {shape:?} in {arrangement:?}");
            }
            Linear::new("test", weight, rows.bias().map(<[f32]>::to_vec)).unwrap()
        });
        let x = values(5, 64 * shape[1]);
        let each = |exec: &Exec, layer: &Linear| -> Vec<u32> {
            x.chunks(shape[1]).flat_map(|x| bits(&run(exec, layer, x))).collect()
        };
        let portable = each(&Exec::portable_single(), &columns);
        for exec in levels_and_threads() {
            let alone = match exec.simd() {
                SimdLevel::Amx => each(&exec, &rows),
                SimdLevel::Avx512Bf16 => each(&exec, &columns),
                _ => portable.clone(),
            };
            for count in (1..=25).chain([47, 64]) {
                let x = &x[..count * shape[1]];
                let want = &alone[..count * shape[0]];
                assert_eq!(bits(&run(&exec, &columns, x)), want, "{exec:?} {shape:?} {count} in columns");
                if exec.simd() == SimdLevel::Amx {
                    assert_eq!(bits(&run(&exec, &tiles, x)), want, "{exec:?} {shape:?} {count} in tiles");
                }
            }
        }
    }
    let q8_0 = made(WeightDtype::Q8_0, [5, 16], 3).weight().clone().rearranged(Arrangement::Columns);
    assert_eq!(q8_0.arrangement(), Arrangement::Rows);
}

#[test]
fn weights_that_share_a_region_keep_their_bits() {
    for exec in levels_and_threads() {
        for dtype in DTYPES {
            let layers = [200, 33, 7].map(|outs| made(dtype, [outs, 72], outs as u64));
            let x = values(9, 6 * 72);
            let mut packed = PackedRows::new();
            packed.pack(&exec, layers[0].weight(), &x);
            let mut outs = layers.each_ref().map(|layer| vec![0.0; 6 * layer.weight().rows()]);
            let mut jobs = Vec::new();
            for (linear, out) in layers.iter().zip(&mut outs) {
                jobs.push(LinearJob { linear, out, adds: false });
            }
            linear(&exec, &packed, &mut jobs);
            for (layer, out) in layers.iter().zip(&outs) {
                assert_eq!(bits(out), bits(&run(&exec, layer, &x)), "{exec:?} {dtype}");
            }
        }
    }
}

#[test]
fn outputs_may_be_added_to_what_is_there() {
    for exec in levels_and_threads() {
        for (dtype, bias) in DTYPES.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
            // Whole panels, and a part of one.
            let layer = made(dtype, [70, 72], 1);
            let layer = match bias {
                true => layer,
                false => Linear::new("unbiased", layer.weight().clone(), None).unwrap(),
            };
            let layer =
                Linear::new("added", layer.weight().clone().arranged(&exec), layer.bias().map(Into::into)).unwrap();
            // Of 35 rows three groups of tiles share one.
            for rows in [1, 5, 20, 35, 100] {
                let (x, there) = (values(2, rows * 72), values(3, rows * 70));
                let want: Vec<f32> = there.iter().zip(run(&exec, &layer, &x)).map(|(there, out)| out + there).collect();
                let mut out = there.clone();
                layer.add(&exec, &x, &mut PackedRows::new(), &mut out);
                assert_eq!(bits(&out), bits(&want), "{exec:?} {dtype} {rows} bias: {bias}");
            }
        }
    }
}

#[test]
fn levels_without_the_bf16_product_agree_bit_for_bit() {
    for dtype in DTYPES {
        let x = values(2, 9 * 77);
        for layer in arrangements(made(dtype, [70, 77], 1), &Exec::portable_single()) {
            let want = bits(&run(&Exec::portable_single(), &layer, &x));
            for exec in levels() {
                if dtype != WeightDtype::Bf16 || exec.simd() < SimdLevel::Avx512Bf16 {
                    let (folds, got) = (layer.weight().folds(), bits(&run(&exec, &layer, &x)));
                    assert_eq!(got, want, "{exec:?} {dtype}, folds: {folds}");
                }
            }
        }
    }
}

/// What is quantised here is q4_K of fewer scales.
#[test]
fn q4_k_of_a_file_agrees_at_all_levels_and_keeps_a_rows_bits() {
    for (shape, counts) in [([83, 256], &[2, 5, 8, 9, 16, 33][..]), ([150, 1280], &[8, 16, 70])] {
        let (layer, x) = (stored(shape, 3), values(5, 70 * shape[1]));
        let each = |exec: &Exec| -> Vec<f32> { x.chunks(shape[1]).flat_map(|x| run(exec, &layer, x)).collect() };
        let alone = each(&Exec::portable_single());
        assert_close(&alone, &reference::linear(&layer, &x), F32, &format!("{shape:?}"));
        for exec in levels_and_threads() {
            assert_eq!(bits(&each(&exec)), bits(&alone), "{exec:?} {shape:?}");
            for &count in counts {
                let got = bits(&run(&exec, &layer, &x[..count * shape[1]]));
                assert_eq!(got, bits(&alone[..count * shape[0]]), "{exec:?} {shape:?} {count}");
            }
        }
    }
}

#[test]
fn a_bias_of_the_wrong_length_is_named() {
    let weight = Weight::from_f32(WeightDtype::F32, [2, 2], &[0.0; 4]);
    let error = Linear::new("q_proj", weight, Some(vec![0.0; 3])).unwrap_err();
    assert_eq!(error, KernelError::Shape { tensor: "q_proj.bias".into(), expected: vec![2], got: vec![3] });
}

/// A prefill: packing is split between threads, and chunks of inputs pass over blocks of weights. The second has more rows,
/// panels and columns than matrix instructions carry sums of.
#[test]
fn rows_of_a_long_pass_equal_rows_alone() {
    for ([outs, ins], rows) in [([19, 131], 300), ([150, 700], 330)] {
        let x = values(6, rows * ins);
        for exec in levels_and_threads() {
            for layer in DTYPES.into_iter().flat_map(|dtype| arrangements(made(dtype, [outs, ins], 5), &exec)) {
                let (dtype, arrangement) = (layer.weight().dtype(), layer.weight().arrangement());
                let whole = run(&exec, &layer, &x);
                for (row, (x, whole)) in x.chunks(ins).zip(whole.chunks(outs)).enumerate().step_by(7) {
                    let place = format!("{exec:?} {dtype} {arrangement:?} [{outs}, {ins}] row {row}");
                    assert_eq!(bits(&run(&exec, &layer, x)), bits(whole), "{place}");
                }
            }
        }
    }
}

/// A thread that has all of a tall weight walks over several bands in one task, and carries nothing from one to the next.
#[test]
fn tasks_of_several_bands_keep_a_rows_bits() {
    let ([outs, ins], rows) = ([3239, 300], 18);
    let x = values(6, rows * ins);
    for layer in DTYPES.map(|dtype| made(dtype, [outs, ins], 5)) {
        for exec in levels_and_threads().filter(|exec| exec.threads() == 1) {
            for layer in arrangements(layer.clone(), &exec) {
                let (dtype, arrangement) = (layer.weight().dtype(), layer.weight().arrangement());
                let whole = run(&exec, &layer, &x);
                for (row, (x, whole)) in x.chunks(ins).zip(whole.chunks(outs)).enumerate().step_by(3) {
                    assert_eq!(bits(&run(&exec, &layer, x)), bits(whole), "{exec:?} {dtype} {arrangement:?} row {row}");
                }
            }
        }
    }
}

/// 10,000 random shapes: a row among others, in another place of the batch, on other threads.
#[test]
fn random_shapes_keep_a_rows_bits() {
    let execs: Vec<Exec> = levels_and_threads().collect();
    for case in 0..10_000u64 {
        let draw = |index: u32, most: usize| {
            noise::bits(NoiseKey { seed: case, completion: 0, stream: 0 }, index) as usize % most + 1
        };
        // Now and then several bands and spans.
        let [most_outs, most_ins] = if case % 32 == 1 { [300, 1200] } else { [40, 160] };
        let (outs, ins, rows) = (draw(0, most_outs), draw(1, most_ins), draw(2, if case % 16 == 0 { 70 } else { 12 }));
        let dtype = DTYPES[draw(3, DTYPES.len()) - 1];
        let exec = &execs[draw(4, execs.len()) - 1];
        let alone = exec.with_pool(execs[0].pool().clone());
        let x = values(case + 1, rows * ins);
        let mut layers = arrangements(made(dtype, [outs, ins], case), exec);
        let layer = layers.swap_remove(draw(6, layers.len()) - 1);
        let row = draw(5, rows) - 1;
        let got = run(exec, &layer, &x);
        let want = run(&alone, &layer, &x[row * ins..(row + 1) * ins]);
        let place = format!("case {case}: {exec:?} {dtype} [{outs}, {ins}], row {row} of {rows}");
        assert_eq!(bits(&got[row * outs..(row + 1) * outs]), bits(&want), "{place}");
    }
}
