//! A block of bf16 weights in columns times all packed input rows.
//!
//! A tile of rows by rows loads 7 vectors for 12 multiply-adds where registers are few, and widens each. Here 16 weight
//! rows lie side by side, as `Weight::rearranged` laid them, so that a loaded vector serves up to 5 inputs and the inputs
//! need no widening: fewer loads, half of the instructions, a fifth of the traffic from the second-level cache. It is the
//! tile of every dense matrix product (Goto and van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008),
//! but for the order: an element is still one 16-lane sum over ascending k and one horizontal sum, bit for bit that of
//! `rows`. So lanes are summed one after the other, each with all registers, in the order in which the horizontal sum
//! folds them.

use super::{AHEAD, WeightBlock};
use crate::quant::PANEL;
use crate::simd::{LANES, Line, MOST_PARTS, Simd};

/// The pairs of 16 weight rows in one lane of one step.
type Pairs = [u16; 2 * LANES];

impl WeightBlock<'_> {
    /// The block, if its weights are in columns.
    #[inline(always)]
    pub(super) fn walk_columns<S: Simd>(&self) {
        let mut row = self.rows.start;
        while row < self.rows.end {
            // Few inputs take two panels at once: each input that is loaded serves both, and their sums wait less for
            // each other.
            let panels = if self.x.rows() <= 2 && row + PANEL < self.rows.end { 2 } else { 1 };
            for chunk in 0..self.x.chunks() {
                let rows = self.x.chunk(chunk);
                match (rows.len(), panels) {
                    (1, 2) => self.columns::<S, 2, 1, 2>(row, rows.start),
                    (1, _) => self.columns::<S, 1, 1, 4>(row, rows.start),
                    (2, 2) => self.columns::<S, 2, 2, 1>(row, rows.start),
                    (2, _) => self.columns::<S, 1, 2, 2>(row, rows.start),
                    (3, _) => self.columns::<S, 1, 3, 1>(row, rows.start),
                    (4, _) => self.columns::<S, 1, 4, 1>(row, rows.start),
                    _ => self.columns::<S, 1, 5, 1>(row, rows.start),
                }
            }
            row += panels * PANEL;
        }
    }

    /// P panels of weight rows from `row` on times N input rows from `first` on, L lanes at a time.
    #[inline(always)]
    fn columns<S: Simd, const P: usize, const N: usize, const L: usize>(&self, row: usize, first: usize) {
        let panels: [&[Pairs]; P] = std::array::from_fn(|p| self.linear.weight().columns(row / PANEL + p));
        let steps = panels[0].len() / LANES;
        let inputs = self.x.columns(first, N).as_chunks::<N>().0;
        assert!(panels.iter().all(|panel| panel.len() == LANES * steps) && inputs.len() == LANES * steps * S::HALVES);
        let ahead = if L == 1 { AHEAD } else { L * size_of_val(&panels[0][..steps]) };
        // Sums of 1, 2, 4, 8 and 16 lanes, each until its neighbour is there.
        let mut waiting = [[[Line([0.0; LANES]); N]; P]; LANES.ilog2() as usize + 1];
        for group in 0..LANES / L {
            let lanes: [[&[Pairs]; P]; L] =
                std::array::from_fn(|l| panels.map(|panel| &panel[(group * L + l) * steps..][..steps]));
            let inputs: [&[[f32; N]]; L] = std::array::from_fn(|l| {
                let per_lane = steps * S::HALVES;
                &inputs[(group * L + l) * per_lane..][..per_lane]
            });
            let mut registers = [[[[S::splat_part(0.0); MOST_PARTS]; N]; P]; L];
            for step in 0..steps {
                for l in 0..L {
                    for half in 0..S::HALVES {
                        // SAFETY: every lane has HALVES times N inputs for each step.
                        let inputs = unsafe { inputs[l].get_unchecked(S::HALVES * step + half) };
                        for p in 0..P {
                            // SAFETY: every lane has `steps` pairs.
                            let pairs = unsafe { lanes[l][p].get_unchecked(step) };
                            if half == 0 && (P > 1 || first == 0) {
                                S::prefetch(pairs.as_ptr().cast::<u8>().wrapping_add(ahead));
                            }
                            let mut weights = [S::load_half(pairs, 0, half); MOST_PARTS];
                            for part in 1..S::PARTS {
                                weights[part] = S::load_half(pairs, part, half);
                            }
                            for n in 0..N {
                                let input = S::splat_half(inputs[n]);
                                for part in 0..S::PARTS {
                                    registers[l][p][n][part] =
                                        S::dot_half(registers[l][p][n][part], weights[part], input);
                                }
                            }
                        }
                    }
                }
            }
            let mut sums = [[[Line([0.0; LANES]); N]; P]; L];
            for l in 0..L {
                for p in 0..P {
                    for n in 0..N {
                        for part in 0..S::PARTS {
                            S::store_part(registers[l][p][n][part], &mut sums[l][p][n].0, part);
                        }
                    }
                }
            }
            let mut width = L;
            while width > 1 {
                width /= 2;
                for l in 0..width {
                    sums[l] = add_lines::<S, P, N>(&sums[2 * l], &sums[2 * l + 1]);
                }
            }
            let (mut sum, mut size, mut before) = (sums[0], 0, group);
            while before % 2 == 1 {
                sum = add_lines::<S, P, N>(&waiting[size], &sum);
                (size, before) = (size + 1, before / 2);
            }
            waiting[size] = sum;
        }
        for (p, inputs) in waiting[(LANES / L).ilog2() as usize].iter().enumerate() {
            for (n, sums) in inputs.iter().enumerate() {
                self.put(first + n, row + p * PANEL, &sums.0);
            }
        }
    }
}

/// Sums of lanes, of P panels and N inputs.
#[inline(always)]
fn add_lines<S: Simd, const P: usize, const N: usize>(a: &[[Line; N]; P], b: &[[Line; N]; P]) -> [[Line; N]; P] {
    let mut sums = [[Line([0.0; LANES]); N]; P];
    for p in 0..P {
        for n in 0..N {
            S::store(S::add(S::load(&a[p][n].0), S::load(&b[p][n].0)), &mut sums[p][n].0);
        }
    }
    sums
}
