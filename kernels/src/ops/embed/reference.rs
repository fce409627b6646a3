//! The table's rows, one by one, through `half`'s own widening.
//!
//! Goes through `Weight::row_f32`, which shares no code with the op.
//! The result is exact in f64, so the test compares with `==`.

use crate::weight::Weight;

/// `[tokens, width]`.
pub fn embed(table: &Weight, tokens: &[u32]) -> Vec<f64> {
    let mut row = vec![0.0; table.cols()];
    let mut out = Vec::new();
    for token in tokens {
        table.row_f32(*token as usize, &mut row);
        out.extend(row.iter().map(|v| f64::from(*v)));
    }
    out
}
