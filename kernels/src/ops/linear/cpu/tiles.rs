//! A block of bf16 or quantised weights times all packed input rows, by matrix instructions.
//!
//! bf16 lies in tiles of 16 weight rows and a step of 32 k (`Arrangement::Tiles`). One instruction multiplies such a tile by
//! 16 inputs in 16 cycles, in which memory gives a sixteenth of a tile: 16 inputs cost little more than one. An output
//! element is one f32 sum over ascending steps, whatever shares its tile.
//!
//! Of quantised weights the quads of a block are a tile as they lie in their panel, and packed inputs are rows of tiles. The
//! sums of a block are exact integers and are scaled and added up as in `panels`: the bits are the same, so which of the
//! two serves is a matter of speed only. Of q4_K a whole super-block is a sum of integers.

mod bf16;
mod q4_k;
mod quantised;

use super::WeightBlock;
use crate::ops::linear::PackedRows;
use crate::simd::Avx512;
use crate::weight::WeightDtype;
use quantised::{Q4_0, Q6K, Q8_0};

/// The lanes of the level.
type Lanes = Avx512<false>;

/// 1.5 * 2^23, the last bit of which is 1 as an f32: an integer below 2^22 added to its bits is added to it. While tiles are
/// in use, only one of a core's two ports multiplies or converts floats (seen on a Xeon), and the other is idle.
const SHIFT: f32 = 12_582_912.0;

/// Rows of a tile.
const SIDE: usize = 16;
/// Fewer input rows than these multiply quantised weights faster one by one: where a block is one dot, where it is two, and
/// where a super-block is one.
const LEAST_QUANTISED: usize = 7;
const LEAST_Q6_K: usize = 25;
const LEAST_Q4_K: usize = 5;

/// Whether tiles serve these inputs.
pub(super) fn serve(x: &PackedRows) -> bool {
    match x.dtype() {
        WeightDtype::Bf16 => true,
        WeightDtype::Q4K => x.rows() >= LEAST_Q4_K,
        WeightDtype::Q6K => x.rows() >= LEAST_Q6_K,
        dtype => dtype.is_quantised() && x.rows() >= LEAST_QUANTISED,
    }
}

/// Multiplies the block.
///
/// # Safety
/// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
pub(super) unsafe fn walk(block: &WeightBlock<'_>) {
    // SAFETY: the level is what the caller says.
    unsafe {
        match block.x.dtype() {
            WeightDtype::Q8_0 => block.walk_quantised::<Q8_0>(),
            WeightDtype::Q4_0 => block.walk_quantised::<Q4_0>(),
            WeightDtype::Q4K => block.walk_q4_k(),
            WeightDtype::Q6K => block.walk_quantised::<Q6K>(),
            _ => block.walk_bf16(),
        }
    }
}
