//! A block of bf16 weights in columns times all packed input rows.
//!
//! 64 weight rows lie side by side, pair by pair of k, as `Weight::rearranged` laid them: weights are one stream, read from
//! end to end, a lane of a sum is a weight row, and an input that is broadcast serves all of them. It is the tile of every
//! dense matrix product (Goto and van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008). An element is
//! one sum over ascending k. Memory serves one stream fastest (on Zen 4 two rows abreast are read at three quarters of the
//! rate), asked for a stretch ahead: on Zen 5 a tenth faster with 4 inputs than if the processor's own prefetcher is left alone.
//! Where lines are asked for twice, the second-level cache is asked a stretch before: on Emerald Rapids another tenth with few
//! inputs, and with 16.
//!
//! Several chunks of inputs take turns on each stretch of a column, which stays in the first-level cache meanwhile; where
//! registers are few, so do its panels. Each walk asks for its part of the lines to come in one piece: when one asked for even
//! lines and another for odd ones, the first had the neighbours fetched too, twice what memory gives, and 16 inputs took a
//! fifth longer on Emerald Rapids.
//!
//! Four panels at once are as many chains of products for a single input. By two, chunks had up to 12 inputs: on Zen 5 one or
//! two inputs took nearly twice as long on weights in a cache, 24 a tenth longer.

use super::WeightBlock;
use crate::ops::linear::pack::MOST_COLUMN_ROWS;
use crate::quant::PANEL;
use crate::simd::{Asks, LANES, Line, MOST_PARTS, Simd};
use crate::weight::{COLUMN, COLUMN_PANELS};
use std::mem::MaybeUninit;
use std::ops::Range;

/// Most input rows that take turns.
const ROWS: usize = 24;
/// Pairs of k that they take turns on: 16 KiB of weights.
const STRETCH: usize = 64;
/// Bytes ahead of their use at which weights are asked for in the first-level cache; in the second, twice that.
const AHEAD: usize = STRETCH * size_of::<Pairs>();

/// One pair of k of 64 weight rows.
type Pairs = [[u16; 2 * LANES]; COLUMN_PANELS];

/// Sums of some input rows.
type Sums = [[MaybeUninit<Line>; ROWS]; COLUMN_PANELS];

/// A chunk of input rows whose turn it is.
struct Turn {
    rows: Range<usize>,
    /// Where its sums begin.
    at: usize,
    /// Which of so many it is.
    number: usize,
    of: usize,
}

impl WeightBlock<'_> {
    /// The block, if its weights are in columns.
    #[inline(always)]
    pub(super) fn walk_columns<S: Simd>(&self) {
        // Set by the first stretch: a short walk would feel it if they were cleared.
        let mut sums: Sums = [const { [const { MaybeUninit::uninit() }; _] }; _];
        for column in self.rows.start / COLUMN..self.rows.end.div_ceil(COLUMN) {
            let weights: &[Pairs] = self.linear.weight().column(column);
            let turns = ROWS / S::COLUMN_ROWS;
            for first in (0..self.x.chunks()).step_by(turns) {
                let chunks = first..self.x.chunks().min(first + turns);
                let inputs = self.x.chunk(first).start..self.x.chunk(chunks.end - 1).end;
                // One chunk goes over all of them at once, if it takes all panels.
                let at_once = chunks.len() == 1 && panels_at_once::<S>(inputs.len()) == COLUMN_PANELS;
                let stretch = if at_once { weights.len() } else { STRETCH };
                for from in (0..weights.len()).step_by(stretch) {
                    let pairs = from..weights.len().min(from + stretch);
                    for (number, chunk) in chunks.clone().enumerate() {
                        let rows = self.x.chunk(chunk);
                        let turn = Turn { at: rows.start - inputs.start, rows, number, of: chunks.len() };
                        self.turn::<S>(weights, pairs.clone(), &turn, &mut sums);
                    }
                }
                let rows = column * COLUMN..self.rows.end.min((column + 1) * COLUMN);
                for (row, sums) in rows.step_by(PANEL).zip(&sums) {
                    // SAFETY: packed rows have columns, so there is a first stretch, which has set the sums of all inputs of
                    // these chunks.
                    let lines = unsafe { sums[..inputs.len()].assume_init_ref() };
                    self.put_lines::<S>(inputs.start, row, lines);
                }
            }
        }
    }

    /// Some pairs of a column of weight rows times one chunk.
    #[inline(always)]
    fn turn<S: Simd>(&self, weights: &[Pairs], pairs: Range<usize>, turn: &Turn, sums: &mut Sums) {
        match turn.rows.len() {
            1 => self.stretch::<S, 1>(weights, pairs, turn, sums),
            2 => self.stretch::<S, 2>(weights, pairs, turn, sums),
            3 => self.stretch::<S, 3>(weights, pairs, turn, sums),
            4 => self.stretch::<S, 4>(weights, pairs, turn, sums),
            5 => self.stretch::<S, 5>(weights, pairs, turn, sums),
            _ => self.stretch::<S, MOST_COLUMN_ROWS>(weights, pairs, turn, sums),
        }
    }

    /// The same for the N input rows of a chunk.
    #[inline(always)]
    fn stretch<S: Simd, const N: usize>(&self, weights: &[Pairs], pairs: Range<usize>, turn: &Turn, sums: &mut Sums) {
        // Larger chunks than a level has registers for would only be dead code.
        if N > S::COLUMN_ROWS {
            return;
        }
        // Chunks share the lines to come by quarters, so that memory is busy all the time, and each walk asks for its part in one
        // piece. Who has no part asks for what there is, which spares another copy of the walk.
        let quarter = pairs.len() * size_of::<Pairs>() / 4;
        let share = |chunk: usize| (4 * chunk).div_ceil(turn.of);
        let (begin, quarters) = (share(turn.number), share(turn.number + 1) - share(turn.number));
        let ahead = if quarters > 0 { AHEAD } else { 0 };
        match (panels_at_once::<S>(N), quarters) {
            (COLUMN_PANELS, 4) => {
                let ask = (0, Asks::alone::<S>(AHEAD));
                self.sides::<S, N, COLUMN_PANELS, 4>(0, weights, pairs, turn, ask, sums)
            }
            (COLUMN_PANELS, 2) => {
                self.sides::<S, N, COLUMN_PANELS, 2>(0, weights, pairs, turn, (begin * quarter, ahead), sums)
            }
            (COLUMN_PANELS, _) => {
                self.sides::<S, N, COLUMN_PANELS, 1>(0, weights, pairs, turn, (begin * quarter, ahead), sums)
            }
            (2, _) => {
                for walk in 0..2 {
                    let ask = ((begin + 2 * walk) * quarter, ahead);
                    self.sides::<S, N, 2, 2>(2 * walk, weights, pairs.clone(), turn, ask, sums);
                }
            }
            _ => {
                for walk in 0..COLUMN_PANELS {
                    let ask = ((begin + walk) * quarter, if walk < quarters { ahead } else { 0 });
                    self.sides::<S, N, 1, 1>(walk, weights, pairs.clone(), turn, ask, sums);
                }
            }
        }
    }

    /// The same for P panels of the column from panel `first` on. With each pair it asks for L lines, from so many bytes behind
    /// the stretch's start on, of weights that lie so many bytes ahead.
    #[inline(always)]
    fn sides<S: Simd, const N: usize, const P: usize, const L: usize>(
        &self,
        first: usize,
        weights: &[Pairs],
        pairs: Range<usize>,
        turn: &Turn,
        (from, ahead): (usize, usize),
        sums: &mut Sums,
    ) {
        let mut asked = weights[pairs.start..].as_ptr().cast::<u8>().wrapping_add(from);
        let inputs = self.x.columns(turn.rows.start, N).as_chunks::<N>().0;
        let inputs = &inputs[pairs.start * S::HALVES..pairs.end * S::HALVES];
        // In registers.
        let mut registers = [[[S::splat_part(0.0); MOST_PARTS]; N]; P];
        if pairs.start > 0 {
            for p in 0..P {
                for n in 0..N {
                    for part in 0..S::PARTS {
                        // SAFETY: the first stretch has set them.
                        let sum = unsafe { sums[first + p][turn.at + n].assume_init_ref() };
                        registers[p][n][part] = S::load_part(&sum.0, part);
                    }
                }
            }
        }
        // A step is as much as asks for one line, or half of it.
        let steps = L.max(S::HALVES);
        for (pairs, inputs) in weights[pairs].iter().zip(inputs.chunks_exact(S::HALVES)) {
            let asks = Asks::ahead(asked, ahead, L, steps / L);
            asked = asked.wrapping_add(L * size_of::<Line>());
            let pairs: &[[u16; 2 * LANES]; P] = pairs[first..].first_chunk().expect("panels of the column");
            for half in 0..S::HALVES {
                let mut weights = [[S::load_half(&pairs[0], 0, half); MOST_PARTS]; P];
                for p in 0..P {
                    for part in 0..S::PARTS {
                        weights[p][part] = S::load_half(&pairs[p], part, half);
                    }
                }
                let these = half * steps / S::HALVES..(half + 1) * steps / S::HALVES;
                multiply::<S, N, P>(&mut registers, 0..N / 2, &weights, &inputs[half]);
                for step in these.clone() {
                    asks.amid::<S>(step);
                }
                multiply::<S, N, P>(&mut registers, N / 2..N, &weights, &inputs[half]);
                for step in these {
                    asks.after::<S>(step);
                }
            }
        }
        for p in 0..P {
            for n in 0..N {
                let mut line = Line([0.0; LANES]);
                for part in 0..S::PARTS {
                    S::store_part(registers[p][n][part], &mut line.0, part);
                }
                sums[first + p][turn.at + n].write(line);
            }
        }
    }
}

/// Adds the products of weights of P panels and of some of the N inputs.
#[inline(always)]
fn multiply<S: Simd, const N: usize, const P: usize>(
    sums: &mut [[[S::Part; MOST_PARTS]; N]; P],
    inputs: Range<usize>,
    weights: &[[S::Half; MOST_PARTS]; P],
    values: &[f32; N],
) {
    for n in inputs {
        let input = S::splat_half(values[n]);
        for p in 0..P {
            for part in 0..S::PARTS {
                sums[p][n][part] = S::dot_half(sums[p][n][part], weights[p][part], input);
            }
        }
    }
}

/// Panels whose sums with so many input rows fit the registers: all, but where one is half of the lanes.
#[inline(always)]
const fn panels_at_once<S: Simd>(rows: usize) -> usize {
    match (S::PARTS, rows) {
        (1, _) | (_, 1) => COLUMN_PANELS,
        (_, 2) => 2,
        _ => 1,
    }
}
