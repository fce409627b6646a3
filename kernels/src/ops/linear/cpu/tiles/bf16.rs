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

/// Most input rows of one walk.
const ROWS: usize = 2 * SIDE;
/// Bytes ahead of their use at which tiles are asked for, in each panel.
const AHEAD: usize = 2048;

/// Sums of a tile: a line for each input row.
type Sums = [Line; SIDE];

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_bf16(&self) {
        let mut first = 0;
        while first < self.x.rows() {
            let count = (self.x.rows() - first).min(ROWS);
            let (upper, lower) = (count.min(SIDE), if count > SIDE { count - SIDE } else { count });
            let weights = (SIDE, QUAD);
            // Tiles 0 to 3 are sums, 4 and 5 weights, 6 and 7 inputs: the first 16, and the rest where there are more.
            // SAFETY: the level is what the caller says.
            let tiles = unsafe {
                Tiles::new([
                    (upper, QUAD),
                    (upper, QUAD),
                    (lower, QUAD),
                    (lower, QUAD),
                    weights,
                    weights,
                    (upper, QUAD),
                    (lower, QUAD),
                ])
            };
            let mut row = self.rows.start;
            while row < self.rows.end {
                // SAFETY: tiles are configured for these chunks.
                row += PANEL
                    * unsafe {
                        match ((self.rows.end - row).div_ceil(PANEL), count > SIDE) {
                            (4.., false) => self.steps::<4, 1>(&tiles, row, first, count),
                            (2.., false) => self.steps::<2, 1>(&tiles, row, first, count),
                            (_, false) => self.steps::<1, 1>(&tiles, row, first, count),
                            (2.., true) => self.steps::<2, 2>(&tiles, row, first, count),
                            (_, true) => self.steps::<1, 2>(&tiles, row, first, count),
                        }
                    };
            }
            first += count;
        }
    }

    /// `count` input rows from `first` on, in G tiles, over P panels from weight row `row` on; returns P.
    #[inline(always)]
    unsafe fn steps<const P: usize, const G: usize>(
        &self,
        tiles: &Tiles,
        row: usize,
        first: usize,
        count: usize,
    ) -> usize {
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
        let mut gathered = [[0; PANEL * 2 * LANES]; P];
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
        let mut sums = [[Line([0.0; LANES]); SIDE]; 4];
        // SAFETY: a tile of sums has at most 16 lines.
        unsafe {
            let to: [*mut u8; 4] = std::array::from_fn(|tile| sums[tile].as_mut_ptr().cast());
            tiles.store::<0>(to[0]);
            tiles.store::<1>(to[1]);
            tiles.store::<2>(to[2]);
            tiles.store::<3>(to[3]);
        }
        for p in 0..P {
            for n in 0..count {
                let sums: &Sums = &sums[if G == 2 { n / SIDE * 2 + p } else { p }];
                self.put(first + n, row + p * PANEL, &sums[n % SIDE].0);
            }
        }
        P
    }
}
