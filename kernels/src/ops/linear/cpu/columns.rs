//! A block of bf16 weight rows times many input rows, at a level with few registers.
//!
//! A tile of rows by rows loads 7 vectors for 12 multiply-adds there and widens each. Here 16 weight rows lie side by
//! side, as a panel that is laid out once for all inputs, so that a loaded vector serves 6 inputs and the inputs need no
//! widening: fewer loads, half of the instructions, a fifth of the traffic from the second-level cache. It is the tile of
//! every dense matrix product (Goto and van de Geijn, *Anatomy of high-performance matrix multiplication*, 2008), but for
//! the order: an element is still one 16-lane sum over ascending k and one horizontal sum, bit for bit that of `rows`.
//! So lanes are summed one after the other, each with all registers, and folded at the end.

use super::WeightBlock;
use crate::ops::linear::pack::COLUMN_ROWS;
use crate::simd::{LANES, Line, MOST_PARTS, Simd};
use std::cell::RefCell;

/// Weight rows of a panel.
const PANEL_ROWS: usize = LANES;

thread_local! {
    /// The panel, `[16 lanes, steps]` lines of 16 weight rows' pairs of bf16; grows once and is reused.
    static PANEL: RefCell<Vec<Line>> = const { RefCell::new(Vec::new()) };
}

impl WeightBlock<'_> {
    /// The block, if its inputs are packed for this.
    #[inline(always)]
    pub(super) fn walk_columns<S: Simd>(&self) {
        // At other levels it would only be dead code.
        if S::PARTS == 1 {
            return;
        }
        let steps = self.x.cols().div_ceil(2 * LANES);
        // Not lent to a closure: what must have the level's instructions must be inlined.
        let mut panel = PANEL.take();
        if panel.len() < LANES * steps {
            panel.resize(LANES * steps, Line([0.0; LANES]));
        }
        let panel_lines = &mut panel[..LANES * steps];
        for row in self.rows.clone().step_by(PANEL_ROWS) {
            let rows = self.rows.end.min(row + PANEL_ROWS) - row;
            self.lay_out::<S>(row, rows, steps, panel_lines);
            for first in (0..self.x.rows()).step_by(COLUMN_ROWS) {
                match self.x.rows() - first {
                    1 => self.columns::<S, 1>(row, rows, first, panel_lines),
                    2 => self.columns::<S, 2>(row, rows, first, panel_lines),
                    3 => self.columns::<S, 3>(row, rows, first, panel_lines),
                    4 => self.columns::<S, 4>(row, rows, first, panel_lines),
                    5 => self.columns::<S, 5>(row, rows, first, panel_lines),
                    _ => self.columns::<S, COLUMN_ROWS>(row, rows, first, panel_lines),
                }
            }
        }
        PANEL.set(panel);
    }

    /// Turns `rows` weight rows from `row` on into a panel; the others of 16 are zeros.
    #[inline(always)]
    fn lay_out<S: Simd>(&self, row: usize, rows: usize, steps: usize, panel: &mut [Line]) {
        let cols = self.x.cols();
        let weights = &self.linear.weight().u16s()[row * cols..(row + rows) * cols];
        for step in 0..steps {
            let mut pairs = [[0.0; LANES]; LANES];
            let from = step * 2 * LANES;
            let len = (cols - from).min(2 * LANES);
            for (weights, pairs) in weights.chunks_exact(cols).zip(&mut pairs) {
                S::prefetch(weights.as_ptr().wrapping_add(from + cols * PANEL_ROWS).cast());
                let (whole, rest) = weights[from..from + len].as_chunks::<2>();
                for (pair, [even, odd]) in pairs.iter_mut().zip(whole) {
                    *pair = f32::from_bits(u32::from(*even) | u32::from(*odd) << 16);
                }
                if let [even] = rest {
                    pairs[whole.len()] = f32::from_bits(u32::from(*even));
                }
            }
            let mut turned = [[0.0; LANES]; LANES];
            S::transpose(&pairs, &mut turned);
            for (lane, turned) in turned.into_iter().enumerate() {
                panel[lane * steps + step].0 = turned;
            }
        }
    }

    /// The panel of `rows` weight rows from `row` on times N input rows from `first` on.
    #[inline(always)]
    fn columns<S: Simd, const N: usize>(&self, row: usize, rows: usize, first: usize, panel: &[Line]) {
        let inputs = self.x.columns(first, N);
        let steps = panel.len() / LANES;
        assert!(inputs.len() == panel.len() * 2 * N);
        let mut lanes = [[Line([0.0; LANES]); N]; LANES];
        for (lane, sums) in lanes.iter_mut().enumerate() {
            let panel = &panel[lane * steps..(lane + 1) * steps];
            let inputs = inputs[lane * steps * 2 * N..(lane + 1) * steps * 2 * N].as_chunks::<N>().0;
            let mut registers = [[S::splat_part(0.0); MOST_PARTS]; N];
            for (step, pairs) in panel.iter().enumerate() {
                for half in 0..2 {
                    let weights = [S::load_half(pairs.u16s(), 0, half), S::load_half(pairs.u16s(), 1, half)];
                    // SAFETY: by the assertion there are N evens and N odds for each of the lane's steps.
                    let inputs = unsafe { inputs.get_unchecked(2 * step + half) };
                    for n in 0..N {
                        let input = S::splat_half(inputs[n]);
                        for part in 0..MOST_PARTS {
                            registers[n][part] = S::dot_half(registers[n][part], weights[part], input);
                        }
                    }
                }
            }
            for n in 0..N {
                for part in 0..MOST_PARTS {
                    S::store_part(registers[n][part], &mut sums[n].0, part);
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
        let outs = self.linear.weight().rows();
        for (n, sums) in lanes[0].iter().enumerate() {
            // SAFETY: these are rows of this task's block of weights, so these columns are its own.
            let out = unsafe { self.out.range((first + n) * outs + row..(first + n) * outs + row + rows) };
            for (i, (out, sum)) in out.iter_mut().zip(sums.0).enumerate() {
                *out = sum + self.linear.bias().map_or(0.0, |bias| bias[row + i]);
            }
        }
    }
}
