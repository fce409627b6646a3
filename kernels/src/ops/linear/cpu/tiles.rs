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
mod quantised;
mod super_blocks;

use super::WeightBlock;
use crate::ops::linear::PackedRows;
use crate::quant::BAND;
use crate::simd::int8::QUADS;
use crate::simd::{Avx512, LANES, Line};
use crate::weight::WeightDtype;
use quantised::{Q4_0, Q6K, Q8_0};
use std::mem::MaybeUninit;
use std::ops::Range;
use super_blocks::{FoldedQ4K, FoldedQ6K, FoldedQ8_0, Q4K};

/// The lanes of the level.
type Lanes = Avx512<false>;

/// Rows of a tile.
const SIDE: usize = 16;
/// Fewer input rows than these multiply quantised weights faster by vectors: one walk of theirs takes up to 8, and q6_K is
/// two dots a block by tiles. Super-blocks that are unpacked and fold are half the work.
const LEAST_QUANTISED: usize = 9;
const LEAST_FOLDED: usize = 6;
const LEAST_Q6_K: usize = 17;

/// Most groups of input rows in one walk over quantised weights.
const GROUPS: usize = 4;

/// A line for each row of a group.
type Sums = [Line; SIDE];
/// Of each group, and each panel of a band.
type BandSums = [[MaybeUninit<Sums>; BAND]; GROUPS];

/// Input rows of one walk over quantised weights, in groups of up to 16.
struct Groups {
    first: usize,
    count: usize,
    groups: usize,
    /// Rows of a group.
    rows: usize,
}

impl Groups {
    /// Those of so many input rows, walk by walk.
    #[inline(always)]
    fn of(rows: usize) -> impl Iterator<Item = Self> {
        (0..rows).step_by(GROUPS * SIDE).map(move |first| {
            let count = (rows - first).min(GROUPS * SIDE);
            let groups = count.div_ceil(SIDE);
            Self { first, count, groups, rows: count.div_ceil(groups) }
        })
    }

    /// All of their input rows.
    #[inline(always)]
    fn inputs(&self) -> Range<usize> {
        self.first..self.first + self.count
    }

    /// The first row of a group. The last group may begin among the rows of the one before: all have as many.
    #[inline(always)]
    fn start(&self, group: usize) -> usize {
        self.first + (group * self.rows).min(self.count - self.rows)
    }

    /// The rows of a group that the group before does not have.
    #[inline(always)]
    fn new_rows(&self, group: usize) -> Range<usize> {
        self.first + group * self.rows - self.start(group)..self.rows
    }

    /// Sets the sums of so many panels to zero.
    #[inline(always)]
    fn clear(&self, sums: &mut BandSums, panels: usize) {
        for sums in &mut sums[..self.groups] {
            sums[..panels].fill(MaybeUninit::new([Line([0.0; LANES]); SIDE]));
        }
    }
}

/// Whether tiles serve these inputs.
pub(super) fn serve(x: &PackedRows) -> bool {
    match x.dtype() {
        WeightDtype::Bf16 => true,
        WeightDtype::Q4K | WeightDtype::Q6K if x.folds() => x.rows() >= LEAST_FOLDED,
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
    if block.begins && block.x.dtype().is_quantised() {
        block.ask_for_first::<Lanes>();
    }
    // SAFETY: the level is what the caller says.
    unsafe {
        match block.x.dtype() {
            WeightDtype::Q8_0 if block.x.folds() => block.walk_super_blocks::<FoldedQ8_0, QUADS>(),
            WeightDtype::Q8_0 => block.walk_quantised::<Q8_0>(),
            WeightDtype::Q4_0 => block.walk_quantised::<Q4_0>(),
            WeightDtype::Q4K if block.x.folds() => block.walk_super_blocks::<FoldedQ4K, { QUADS / 2 }>(),
            WeightDtype::Q4K => block.walk_super_blocks::<Q4K, { QUADS / 2 }>(),
            WeightDtype::Q6K if block.x.folds() => block.walk_super_blocks::<FoldedQ6K, 6>(),
            WeightDtype::Q6K => block.walk_quantised::<Q6K>(),
            _ => block.walk_bf16(),
        }
    }
}
