//! Embedding is a copy: exact at every level.
//!
//! There is no tolerance: widening bf16 is exact.
//! The large table crosses the threshold above which rows are shared between threads.

use crate::support::{levels_and_threads, values};
use foretoken_kernels::ops::embed;
use foretoken_kernels::ops::embed::reference;
use foretoken_kernels::{Weight, WeightDtype};

#[test]
fn copies_rows_exactly() {
    for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
        for width in [5, 32, 77] {
            let table = Weight::from_f32(dtype, [9, width], &values(1, 9 * width));
            let tokens: Vec<u32> = (0..600).map(|i| i * 5 % 9).collect();
            for exec in levels_and_threads() {
                let mut out = vec![0.0; 600 * width];
                embed(&exec, &table, &tokens, &mut out);
                let got: Vec<f64> = out.iter().map(|v| f64::from(*v)).collect();
                assert_eq!(got, reference::embed(&table, &tokens), "{exec:?} {dtype} {width}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "token 9 is outside of the table's vocab 9")]
fn a_token_outside_of_the_vocabulary_panics() {
    let table = Weight::from_f32(WeightDtype::F32, [9, 2], &[0.0; 18]);
    embed(&foretoken_kernels::Exec::portable_single(), &table, &[9], &mut [0.0; 2]);
}
