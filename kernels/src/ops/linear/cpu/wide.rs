//! A block of bf16 weights in wide columns times all packed input rows, for levels with a register for 16 lanes and many
//! of them.
//!
//! As `columns`, with 32 weight rows side by side: an input that is broadcast serves two registers of weights, and weights
//! are one stream, read from end to end. Memory serves that fastest, and with few inputs best unasked (on Zen 4 two rows
//! abreast, asked for 4 KiB ahead, are read at three quarters of the rate).
//!
//! Two chunks of inputs take turns on each lane, which stays in the first-level cache meanwhile.

use super::WeightBlock;
use crate::ops::linear::pack::WIDE_ROWS;
use crate::quant::PANEL;
use crate::simd::{LANES, Line, Simd};
use crate::weight::{WIDE, WIDE_PANELS};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Chunks of input rows that take turns.
const TURNS: usize = 2;
/// Input rows from which multiplying takes so long that the next lane is better asked for meanwhile: the processor's own
/// prefetcher keeps no such distance.
const ASKING: usize = 6;
/// Sums of 1, 2, 4, 8 and 16 lanes.
const SIZES: usize = LANES.ilog2() as usize + 1;

/// The pairs of 32 weight rows in one lane of one step.
type Pairs = [[u16; 2 * LANES]; WIDE_PANELS];

/// Sums of some input rows, each until its neighbour is there.
type Sums = [[[MaybeUninit<Line>; TURNS * WIDE_ROWS]; WIDE_PANELS]; SIZES];

/// A chunk of input rows, and when it is its turn.
struct Turn {
    rows: Range<usize>,
    /// Where its sums begin.
    at: usize,
    index: usize,
    turns: usize,
}

impl WeightBlock<'_> {
    /// The block, if its weights are in wide columns.
    #[inline(always)]
    pub(super) fn walk_wide<S: Simd>(&self) {
        // A level whose lanes take several registers would only have dead code.
        assert_eq!(S::PARTS, 1, "no weights in wide columns at this level");
        // Set lane by lane: a short walk would feel it if they were cleared.
        let mut sums: Sums = [const { [const { [const { MaybeUninit::uninit() }; _] }; _] }; _];
        for column in self.rows.start / WIDE..self.rows.end.div_ceil(WIDE) {
            for first in (0..self.x.chunks()).step_by(TURNS) {
                let chunks = first..self.x.chunks().min(first + TURNS);
                let (start, turns) = (self.x.chunk(first).start, chunks.len());
                // One chunk goes over all lanes at once.
                let lanes = if turns == 1 { LANES } else { 1 };
                for lane in (0..LANES).step_by(lanes) {
                    for (index, chunk) in chunks.clone().enumerate() {
                        let rows = self.x.chunk(chunk);
                        let turn = Turn { at: rows.start - start, rows, index, turns };
                        self.turn::<S>(column, lane..lane + lanes, turn, &mut sums);
                    }
                }
                let rows = column * WIDE..self.rows.end.min((column + 1) * WIDE);
                for n in start..self.x.chunk(chunks.end - 1).end {
                    for (panel, row) in rows.clone().step_by(PANEL).enumerate() {
                        // SAFETY: the last lane has set the sums of all lanes for every input of these chunks.
                        let sums = unsafe { &sums[SIZES - 1][panel][n - start].assume_init_ref().0 };
                        self.put(n, row, sums);
                    }
                }
            }
        }
    }

    /// Some lanes of a column of weight rows times one chunk.
    #[inline(always)]
    fn turn<S: Simd>(&self, column: usize, lanes: Range<usize>, turn: Turn, sums: &mut Sums) {
        match turn.rows.len() {
            1 => self.lanes::<S, 1>(column, lanes, turn, sums),
            2 => self.lanes::<S, 2>(column, lanes, turn, sums),
            3 => self.lanes::<S, 3>(column, lanes, turn, sums),
            4 => self.lanes::<S, 4>(column, lanes, turn, sums),
            5 => self.lanes::<S, 5>(column, lanes, turn, sums),
            6 => self.lanes::<S, 6>(column, lanes, turn, sums),
            7 => self.lanes::<S, 7>(column, lanes, turn, sums),
            8 => self.lanes::<S, 8>(column, lanes, turn, sums),
            9 => self.lanes::<S, 9>(column, lanes, turn, sums),
            10 => self.lanes::<S, 10>(column, lanes, turn, sums),
            11 => self.lanes::<S, 11>(column, lanes, turn, sums),
            _ => self.lanes::<S, WIDE_ROWS>(column, lanes, turn, sums),
        }
    }

    /// The same for the N input rows of a chunk.
    #[inline(always)]
    fn lanes<S: Simd, const N: usize>(&self, column: usize, lanes: Range<usize>, turn: Turn, sums: &mut Sums) {
        let weights: &[Pairs] = self.linear.weight().wide_column(column);
        let inputs = self.x.columns(turn.rows.start, N).as_chunks::<N>().0;
        let steps = weights.len() / LANES;
        // Of the next lane's lines a single turn asks for all, one of several for its share.
        let asked = if turn.turns > 1 { [turn.index % WIDE_PANELS; WIDE_PANELS] } else { std::array::from_fn(|p| p) };
        for lane in lanes {
            let weights = &weights[lane * steps..][..steps];
            let inputs = &inputs[lane * steps * S::HALVES..][..steps * S::HALVES];
            let mut registers = [[S::splat_part(0.0); N]; WIDE_PANELS];
            for (pairs, inputs) in weights.iter().zip(inputs.chunks_exact(S::HALVES)) {
                if N >= ASKING {
                    for panel in asked {
                        let next = size_of_val(weights) + panel * size_of_val(&pairs[0]);
                        S::prefetch_far(pairs.as_ptr().cast::<u8>().wrapping_add(next));
                    }
                }
                for half in 0..S::HALVES {
                    let mut weights = [S::load_half(&pairs[0], 0, half); WIDE_PANELS];
                    for panel in 1..WIDE_PANELS {
                        weights[panel] = S::load_half(&pairs[panel], 0, half);
                    }
                    for n in 0..N {
                        let input = S::splat_half(inputs[half][n]);
                        for panel in 0..WIDE_PANELS {
                            registers[panel][n] = S::dot_half(registers[panel][n], weights[panel], input);
                        }
                    }
                }
            }
            for panel in 0..WIDE_PANELS {
                for n in 0..N {
                    let mut line = Line([0.0; LANES]);
                    S::store_part(registers[panel][n], &mut line.0, 0);
                    let (mut sum, size) = (S::load(&line.0), lane.trailing_ones() as usize);
                    for before in &sums[..size] {
                        // SAFETY: the lanes before this one have set what waits for it.
                        let before = unsafe { &before[panel][turn.at + n].assume_init_ref().0 };
                        sum = S::add(S::load(before), sum);
                    }
                    S::store(sum, &mut line.0);
                    sums[size][panel][turn.at + n].write(line);
                }
            }
        }
    }
}
