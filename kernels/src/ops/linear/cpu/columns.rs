//! A block of bf16 weights in columns times all packed input rows.
//!
//! A tile of rows by rows loads 7 vectors for 12 multiply-adds where registers are few, and widens each. Here 16 weight
//! rows lie side by side, as `Weight::in_columns` laid them, so that a loaded vector serves up to 5 inputs and the inputs
//! need no widening: fewer loads, half of the instructions, a fifth of the traffic from the second-level cache. It is the
//! tile of every dense matrix product (Goto and van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008),
//! but for the order: an element is still one 16-lane sum over ascending k and one horizontal sum, bit for bit that of
//! `rows`. So lanes are summed one after the other, each with all registers, and folded at the end.

use super::{AHEAD, WeightBlock};
use crate::quant::PANEL;
use crate::simd::{LANES, Line, MOST_PARTS, Simd};

/// The pairs of 16 weight rows in one lane of one step.
type Pairs = [u16; 2 * LANES];

impl WeightBlock<'_> {
    /// The block, if its weights are in columns.
    #[inline(always)]
    pub(super) fn walk_columns<S: Simd>(&self) {
        for row in self.rows.clone().step_by(PANEL) {
            let panel = self.linear.weight().columns(row / PANEL);
            for chunk in 0..self.x.chunks() {
                let rows = self.x.chunk(chunk);
                match rows.len() {
                    // The sums of few inputs would wait for each other: they take several lanes at once.
                    1 => self.columns::<S, 1, 4>(row, rows.start, panel),
                    2 => self.columns::<S, 2, 2>(row, rows.start, panel),
                    3 => self.columns::<S, 3, 1>(row, rows.start, panel),
                    4 => self.columns::<S, 4, 1>(row, rows.start, panel),
                    _ => self.columns::<S, 5, 1>(row, rows.start, panel),
                }
            }
        }
    }

    /// The panel of weight rows from `row` on times N input rows from `first` on, L lanes at a time.
    #[inline(always)]
    fn columns<S: Simd, const N: usize, const L: usize>(&self, row: usize, first: usize, panel: &[Pairs]) {
        let steps = panel.len() / LANES;
        let inputs = self.x.columns(first, N).as_chunks::<N>().0;
        assert!(panel.len() == LANES * steps && inputs.len() == panel.len() * S::HALVES);
        let ahead = if L == 1 { AHEAD } else { L * size_of_val(&panel[..steps]) };
        let mut lanes = [[Line([0.0; LANES]); N]; LANES];
        for lane in (0..LANES).step_by(L) {
            let mut registers = [[[S::splat_part(0.0); MOST_PARTS]; N]; L];
            for step in 0..steps {
                for l in 0..L {
                    let at = (lane + l) * steps + step;
                    // SAFETY: by the assertion there are pairs for each step of 16 lanes, and HALVES times N inputs.
                    let pairs = unsafe { panel.get_unchecked(at) };
                    if first == 0 {
                        S::prefetch(pairs.as_ptr().cast::<u8>().wrapping_add(ahead));
                    }
                    for half in 0..S::HALVES {
                        // SAFETY: as above.
                        let inputs = unsafe { inputs.get_unchecked(S::HALVES * at + half) };
                        let mut weights = [S::load_half(pairs, 0, half); MOST_PARTS];
                        for part in 1..S::PARTS {
                            weights[part] = S::load_half(pairs, part, half);
                        }
                        for n in 0..N {
                            let input = S::splat_half(inputs[n]);
                            for part in 0..S::PARTS {
                                registers[l][n][part] = S::dot_half(registers[l][n][part], weights[part], input);
                            }
                        }
                    }
                }
            }
            for l in 0..L {
                for n in 0..N {
                    for part in 0..S::PARTS {
                        S::store_part(registers[l][n][part], &mut lanes[lane + l][n].0, part);
                    }
                }
            }
        }
        // The order of the horizontal sum.
        let mut width = LANES / 2;
        while width > 0 {
            for lane in 0..width {
                for n in 0..N {
                    let sum = S::add(S::load(&lanes[lane][n].0), S::load(&lanes[lane + width][n].0));
                    S::store(sum, &mut lanes[lane][n].0);
                }
            }
            width /= 2;
        }
        let (outs, rows) = (self.linear.weight().rows(), row..self.rows.end.min(row + PANEL));
        for (n, sums) in lanes[0].iter().enumerate() {
            let start = (first + n) * outs;
            // SAFETY: these are rows of this task's block of weights, so these columns are its own.
            let out = unsafe { self.out.range(start + rows.start..start + rows.end) };
            for (i, (out, sum)) in out.iter_mut().zip(sums.0).enumerate() {
                *out = sum + self.linear.bias().map_or(0.0, |bias| bias[row + i]);
            }
        }
    }
}
