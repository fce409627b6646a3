//! bf16 weights by matrix instructions: up to 32 inputs a walk, in two tiles that share two
//! panels of weights, or in one that goes over four.
//!
//! An output element is one f32 sum over ascending steps, whatever shares its tile.

use super::{Lanes, SIDE, WeightBlock};
use crate::quant::PANEL;
use crate::simd::amx::Tiles;
use crate::simd::int8::QUAD;
use crate::simd::{LANES, Line, Simd};
use crate::weight::{Arrangement, Tile};
use std::mem::MaybeUninit;

/// Most input rows of one walk.
const ROWS: usize = 2 * SIDE;
/// Input rows that walk over the same weights one after the other, before the next weights: the second-level cache does
/// not keep what was read only once.
const GROUP: usize = 2 * ROWS;
/// Bytes ahead of their use at which tiles are asked for, in each panel.
const AHEAD: usize = 2048;

/// Steps after which a tile is stored only to be stored: what stores tiles falls asleep when it is not used for half a
/// microsecond, and takes 300 ns to wake (measured on Sapphire Rapids), a sixth of a walk over 2048 columns.
const AWAKE: usize = 4;

/// Sums of a tile: a line for each input row.
type Sums = [Line; SIDE];

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_bf16(&self) {
        let mut tiles = None;
        // Tiles of weights that nobody arranged: made once, since filling them takes as long as a short walk.
        let mut gathered = [[0; PANEL * 2 * LANES]; 4];
        for group in (0..self.x.rows()).step_by(GROUP) {
            let end = self.x.rows().min(group + GROUP);
            let mut row = self.rows.start;
            while row < self.rows.end {
                let left = (self.rows.end - row).div_ceil(PANEL);
                let panels = match (left, end - group > SIDE) {
                    (4.., false) => 4,
                    (1, _) => 1,
                    _ => 2,
                };
                for first in (group..end).step_by(ROWS) {
                    let count = (end - first).min(ROWS);
                    // SAFETY: the level is what the caller says.
                    let tiles = unsafe { configured(&mut tiles, count) };
                    // SAFETY: tiles are configured for these inputs.
                    unsafe {
                        match (panels, count > SIDE) {
                            (4, _) => self.steps::<4, 1>(tiles, row, first, count, &mut gathered),
                            (2, false) => self.steps::<2, 1>(tiles, row, first, count, &mut gathered),
                            (2, true) => self.steps::<2, 2>(tiles, row, first, count, &mut gathered),
                            (_, false) => self.steps::<1, 1>(tiles, row, first, count, &mut gathered),
                            (_, true) => self.steps::<1, 2>(tiles, row, first, count, &mut gathered),
                        }
                    }
                }
                row += panels * PANEL;
            }
        }
    }

    /// `count` input rows from `first` on, in G tiles, over P panels from weight row `row` on; `gathered` is scratch.
    #[inline(always)]
    unsafe fn steps<const P: usize, const G: usize>(
        &self,
        tiles: &Tiles,
        row: usize,
        first: usize,
        count: usize,
        gathered: &mut [Tile; 4],
    ) {
        let weight = self.linear.weight();
        let panel = row / PANEL;
        let mut stored: [&[Tile]; P] = [&[]; P];
        if weight.arrangement() == Arrangement::Tiles {
            for p in 0..P {
                stored[p] = weight.tiles(panel + p);
            }
        }
        let steps = weight.cols().div_ceil(2 * LANES);
        let upper = self.x.tile(first).as_ptr();
        let lower = if G == 2 { self.x.tile(first + SIDE).as_ptr() } else { upper };
        tiles.zero::<0>();
        tiles.zero::<1>();
        tiles.zero::<2>();
        tiles.zero::<3>();
        if self.adds {
            for p in 0..P {
                self.ask_for_output::<Lanes>(first..first + count, panel + p);
            }
        }
        let mut awake = MaybeUninit::<Sums>::uninit();
        for step in 0..steps {
            let mut at = [std::ptr::null::<u8>(); P];
            for p in 0..P {
                at[p] = match stored[p].get(step) {
                    Some(tile) => tile.as_ptr().cast(),
                    None => {
                        weight.gather_tile::<Lanes>(panel + p, step, &mut gathered[p]);
                        gathered[p].as_ptr().cast()
                    }
                };
                if first == 0 {
                    for line in 0..SIDE {
                        Lanes::prefetch(at[p].wrapping_add(AHEAD + line * QUAD));
                    }
                }
            }
            // The first inputs wait for memory, which a waking unit would make wait in turn.
            if first > 0 && step % AWAKE == 0 {
                // SAFETY: a tile of inputs has at most 16 lines.
                unsafe { tiles.store::<6>(awake.as_mut_ptr().cast(), QUAD) };
            }
            // SAFETY: a tile of weights is 16 lines, and inputs have a line of each row for each step.
            unsafe {
                tiles.load::<6>(upper.add(step * count.min(SIDE)).cast(), QUAD);
                if G == 2 {
                    tiles.load::<7>(lower.add(step * (count - SIDE)).cast(), QUAD);
                }
                tiles.load::<4>(at[0], QUAD);
                tiles.multiply_bf16::<0, 6, 4>();
                if G == 2 {
                    tiles.multiply_bf16::<2, 7, 4>();
                }
                if P >= 2 {
                    tiles.load::<5>(at[1], QUAD);
                    tiles.multiply_bf16::<1, 6, 5>();
                    if G == 2 {
                        tiles.multiply_bf16::<3, 7, 5>();
                    }
                }
                if P == 4 {
                    tiles.load::<4>(at[2], QUAD);
                    tiles.multiply_bf16::<2, 6, 4>();
                    tiles.load::<5>(at[3], QUAD);
                    tiles.multiply_bf16::<3, 6, 5>();
                }
            }
        }
        // Sums go where they belong, or through a buffer to what finishes them.
        let whole = self.linear.bias().is_none() && !self.adds && row + P * PANEL <= self.rows.end;
        let outs = weight.rows();
        let stride = if whole { outs * size_of::<f32>() } else { QUAD };
        let mut sums = MaybeUninit::<[[Sums; P]; G]>::uninit();
        let buffer = sums.as_mut_ptr().cast::<Sums>();
        let to = |group: usize, p: usize| {
            let rows = if group == 0 { count.min(SIDE) } else { count - SIDE };
            let start = (first + group * SIDE) * outs + row + p * PANEL;
            // SAFETY: these are rows of this task's block of weights, so these columns are its own; the buffer has a place
            // for each group and panel.
            unsafe {
                if whole {
                    self.out.columns(start, rows, outs, PANEL).cast()
                } else {
                    buffer.add(group * P + p).cast::<u8>()
                }
            }
        };
        // SAFETY: a tile of sums has as many rows as its group, each of 16 columns.
        unsafe {
            tiles.store::<0>(to(0, 0), stride);
            if P >= 2 {
                tiles.store::<1>(to(0, 1), stride);
            }
            if G == 2 {
                tiles.store::<2>(to(1, 0), stride);
                if P == 2 {
                    tiles.store::<3>(to(1, 1), stride);
                }
            } else if P == 4 {
                tiles.store::<2>(to(0, 2), stride);
                tiles.store::<3>(to(0, 3), stride);
            }
        }
        if whole {
            return;
        }
        for p in 0..P {
            for n in 0..count {
                // SAFETY: stored above, as rows of the group that has this one.
                let sums = unsafe { &(*buffer.add(n / SIDE * P + p))[n % SIDE] };
                self.put(first + n, row + p * PANEL, &sums.0);
            }
        }
    }
}

/// Tiles for `count` input rows: 0 to 3 are sums, 4 and 5 weights, 6 and 7 inputs, the first 16 and the rest where there
/// are more.
///
/// # Safety
/// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
#[inline(always)]
unsafe fn configured(last: &mut Option<(usize, Tiles)>, count: usize) -> &Tiles {
    if last.as_ref().is_none_or(|(of, _)| *of != count) {
        let (upper, lower) = (count.min(SIDE), if count > SIDE { count - SIDE } else { count });
        let rows = [upper, upper, lower, lower, SIDE, SIDE, upper, lower];
        // Released before the new ones are configured: to be dropped later would release those.
        *last = None;
        // SAFETY: the level is what the caller says.
        *last = Some((count, unsafe { Tiles::new(rows.map(|rows| (rows, QUAD))) }));
    }
    let (_, tiles) = last.as_ref().expect("configured above");
    tiles
}
