//! bf16 weights by matrix instructions: up to 32 inputs a walk, in two tiles that share two
//! panels of weights, or in one that goes over four.
//!
//! An output element is one f32 sum over ascending steps, whatever shares its tile. Many rows walk over some steps of a few
//! panels at a time, so that these come from memory once for all of them, and carry their sums to the next steps as they are.

use super::{Lanes, SIDE, WeightBlock};
use crate::quant::PANEL;
use crate::simd::amx::Tiles;
use crate::simd::int8::QUAD;
use crate::simd::{LANES, Line, Simd};
use crate::weight::{Arrangement, Tile};
use std::arch::asm;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most input rows of one walk.
const ROWS: usize = 2 * SIDE;
/// Input rows that walk over the same weights one after the other, before the next weights: the second-level cache does
/// not keep what was read only once.
const GROUP: usize = 2 * ROWS;
/// Bytes ahead of their use at which tiles are asked for in the first-level cache and in the second, in each panel.
const NEAR: usize = 1024;
const FAR: usize = 3072;

/// Of more rows than a group: steps after which sums are carried, for so many rows and panels. 512 rows on Emerald Rapids take
/// 0.87 of the time that they take group by group, with weights read anew by each; of 4 to 16 steps these are the fastest.
const DEPTH: usize = 8;
const MOST_ROWS: usize = 4 * GROUP;
const PANELS: usize = 8;

/// Steps after which a tile is stored only to be stored: what stores tiles falls asleep when it is not used for half a
/// microsecond, and takes 300 ns to wake (measured on Sapphire Rapids), a sixth of a walk over 2048 columns.
const AWAKE: usize = 4;

/// Sums of a tile: a line for each input row.
type Sums = [Line; SIDE];

/// What is walked over before the next: so many weight rows, input rows and steps.
struct Order {
    weights: usize,
    inputs: usize,
    steps: usize,
}

/// Some steps of `count` input rows from `first` on over the panels from weight row `row` on.
struct Walk {
    row: usize,
    first: usize,
    count: usize,
    steps: Range<usize>,
    /// Where the sums are that steps before have left, and those behind will find.
    carried: *mut Sums,
    /// Lines of each tile that are asked for.
    asked: Range<usize>,
    /// How far ahead those of the next part lie in bytes; `None` if all steps go together.
    ahead: Option<usize>,
}

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_bf16(&self) {
        // SAFETY: the level is what the caller says; the sums of a group are not carried.
        unsafe {
            if self.x.rows() > GROUP {
                return self.walk_in_parts();
            }
            let steps = self.linear.weight().cols().div_ceil(2 * LANES);
            let order = Order { weights: self.rows.len().max(1), inputs: GROUP, steps };
            self.walk_in(order, std::ptr::null_mut());
        }
    }

    /// Many rows. By itself, since what it has on the stack would cost a walk of few rows time.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn walk_in_parts(&self) {
        let mut carried = [const { MaybeUninit::<Sums>::uninit() }; PANELS * MOST_ROWS / SIDE];
        let order = Order { weights: PANELS * PANEL, inputs: MOST_ROWS, steps: DEPTH };
        // SAFETY: the caller's; there is room for so many.
        unsafe { self.walk_in(order, carried.as_mut_ptr().cast()) };
    }

    /// Walks in an order.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx). Unless all steps go together there must be room for the sums
    /// of the order's weight rows and input rows.
    #[inline(always)]
    unsafe fn walk_in(&self, order: Order, carried: *mut Sums) {
        let mut tiles = None;
        // Tiles of weights that nobody arranged: made once, since filling them takes as long as a short walk.
        let mut gathered = [[0; PANEL * 2 * LANES]; 4];
        let (rows, steps) = (self.x.rows(), self.linear.weight().cols().div_ceil(2 * LANES));
        let parts = |inputs: Range<usize>| (0..steps).step_by(order.steps).map(move |step| (inputs.clone(), step));
        for block in self.rows.clone().step_by(order.weights) {
            let block = block..self.rows.end.min(block + order.weights);
            let inputs = (0..rows).step_by(order.inputs).map(|first| first..rows.min(first + order.inputs));
            for (inputs, step) in inputs.flat_map(parts) {
                let mut carried = carried;
                for group in inputs.clone().step_by(GROUP) {
                    let group = group..inputs.end.min(group + GROUP);
                    let mut row = block.start;
                    while row < block.end {
                        let left = (block.end - row).div_ceil(PANEL);
                        let panels = match (left, group.len() > SIDE) {
                            (4.., false) => 4,
                            (1, _) => 1,
                            _ => 2,
                        };
                        for first in group.clone().step_by(ROWS) {
                            let count = (group.end - first).min(ROWS);
                            // The first inputs ask for what they walk over, or all for a share of the next part.
                            let share = |row: usize| SIDE * (row - inputs.start) / inputs.len();
                            let ahead = (order.steps < steps).then_some(order.steps * size_of::<Tile>());
                            let asked = match (ahead, first) {
                                (Some(_), _) => share(first)..share(first + count),
                                (None, 0) => 0..SIDE,
                                (None, _) => 0..0,
                            };
                            let part = step..steps.min(step + order.steps);
                            let walk = Walk { row, first, count, steps: part, carried, asked, ahead };
                            // SAFETY: the level is what the caller says.
                            let tiles = unsafe { configured(&mut tiles, count) };
                            // SAFETY: tiles are configured for these inputs; the rest is the caller's.
                            unsafe {
                                match (panels, count > SIDE) {
                                    (4, _) => self.steps::<4, 1>(tiles, walk, &mut gathered),
                                    (2, false) => self.steps::<2, 1>(tiles, walk, &mut gathered),
                                    (2, true) => self.steps::<2, 2>(tiles, walk, &mut gathered),
                                    (_, false) => self.steps::<1, 1>(tiles, walk, &mut gathered),
                                    (_, true) => self.steps::<1, 2>(tiles, walk, &mut gathered),
                                }
                            }
                            carried = carried.wrapping_add(panels * count.div_ceil(SIDE));
                        }
                        row += panels * PANEL;
                    }
                }
            }
        }
    }

    /// A walk in G tiles of inputs over P panels; `gathered` is scratch.
    ///
    /// # Safety
    /// Tiles must be configured for these inputs, and unless all steps go together there must be room for their sums.
    #[inline(always)]
    unsafe fn steps<const P: usize, const G: usize>(&self, tiles: &Tiles, walk: Walk, gathered: &mut [Tile; 4]) {
        let Walk { row, first, count, .. } = walk;
        let weight = self.linear.weight();
        let panel = row / PANEL;
        let mut stored: [&[Tile]; P] = [&[]; P];
        if weight.arrangement() == Arrangement::Tiles {
            for p in 0..P {
                stored[p] = weight.tiles(panel + p);
            }
        }
        let begins = walk.steps.start == 0;
        let ends = walk.steps.end == weight.cols().div_ceil(2 * LANES);
        let upper = self.x.tile(first).as_ptr();
        let lower = if G == 2 { self.x.tile(first + SIDE).as_ptr() } else { upper };
        if begins {
            tiles.zero::<0>();
            tiles.zero::<1>();
            tiles.zero::<2>();
            tiles.zero::<3>();
        } else {
            let from = |group: usize, p: usize| walk.carried.wrapping_add(group * P + p).cast::<u8>();
            // SAFETY: the steps before have left these sums there.
            unsafe {
                tiles.load::<0>(from(0, 0), QUAD);
                if P >= 2 {
                    tiles.load::<1>(from(0, 1), QUAD);
                }
                if G == 2 {
                    tiles.load::<2>(from(1, 0), QUAD);
                    if P == 2 {
                        tiles.load::<3>(from(1, 1), QUAD);
                    }
                } else if P == 4 {
                    tiles.load::<2>(from(0, 2), QUAD);
                    tiles.load::<3>(from(0, 3), QUAD);
                }
            }
        }
        if self.adds && ends {
            for p in 0..P {
                self.ask_for_output::<Lanes>(first..first + count, panel + p);
            }
        }
        let mut awake = MaybeUninit::<Sums>::uninit();
        for step in walk.steps {
            let mut at = [std::ptr::null::<u8>(); P];
            for p in 0..P {
                at[p] = match stored[p].get(step) {
                    Some(tile) => tile.as_ptr().cast(),
                    None => {
                        weight.gather_tile::<Lanes>(panel + p, step, &mut gathered[p]);
                        gathered[p].as_ptr().cast()
                    }
                };
                for line in walk.asked.clone() {
                    let line = at[p].wrapping_add(line * QUAD);
                    match walk.ahead {
                        // SAFETY: a line of this tile.
                        None => unsafe { ask_and_read(line) },
                        Some(ahead) => Lanes::prefetch_far(line.wrapping_add(ahead)),
                    }
                }
            }
            // The first inputs wait for memory, which a waking unit would make wait in turn.
            if first > 0 && begins && ends && step % AWAKE == 0 {
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
        // Sums go where they belong, or through a buffer to what finishes them, or to the next steps.
        let whole = ends && self.linear.bias().is_none() && !self.adds && row + P * PANEL <= self.rows.end;
        let outs = weight.rows();
        let stride = if whole { outs * size_of::<f32>() } else { QUAD };
        let mut sums = MaybeUninit::<[[Sums; P]; G]>::uninit();
        let buffer = if ends { sums.as_mut_ptr().cast() } else { walk.carried };
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
        if whole || !ends {
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

/// Asks for what lies ahead of a line, and reads the line.
///
/// Its tile is read right behind, but a tile that waits for its lines leaves memory idle: on Emerald Rapids a core reads 14 GB/s
/// tile by tile, whatever is asked for, and 18 if a plain load has waited for each line before. 1 to 16 rows take 0.82
/// to 0.89 of the time.
///
/// # Safety
/// The line must be readable.
#[inline(always)]
unsafe fn ask_and_read(line: *const u8) {
    Lanes::prefetch(line.wrapping_add(NEAR));
    Lanes::prefetch_far(line.wrapping_add(FAR));
    // In assembly, since the compiler would leave out what nothing needs.
    // SAFETY: the caller's.
    unsafe { asm!("mov {}, [{}]", out(reg) _, in(reg) line, options(nostack, preserves_flags, readonly)) };
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
