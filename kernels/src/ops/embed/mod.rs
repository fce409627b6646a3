//! Rows of an embedding table, widened to f32.
//!
//! A copy, so there is nothing to choose: it is an op because tables stay in the file's dtype, and because a device
//! will want its own.

mod cpu;
pub mod reference;

use crate::exec::Exec;
use crate::profile::Op;
use crate::shared::SharedMut;
use crate::simd::dispatch;
use crate::weight::Weight;

/// `out[i, :] = table[tokens[i], :]`; `table` is `[vocab, width]`, `out` is `[tokens, width]`.
///
/// Panics if a token is not below the table's vocab.
pub fn embed(exec: &Exec, table: &Weight, tokens: &[u32], out: &mut [f32]) {
    let _timer = exec.time(Op::Embed);
    let width = table.cols();
    assert_eq!(out.len(), tokens.len() * width, "out must be [tokens, width]");
    for token in tokens {
        assert!((*token as usize) < table.rows(), "token {token} is outside of the table's vocab {}", table.rows());
    }
    let out = SharedMut::new(out);
    // A quantised row's blocks lie far apart.
    let work = if table.dtype().is_quantised() { 16 * width } else { width };
    exec.for_rows(tokens.len(), work, &|rows| {
        // SAFETY: parts are disjoint ranges of rows.
        let out = unsafe { out.range(rows.start * width..rows.end * width) };
        dispatch(exec.simd(), cpu::Embed { table, tokens: &tokens[rows], out });
    });
}
