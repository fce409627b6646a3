//! f32, widened from what is stored.

use super::columns::{self, Columns};
use super::{Floats, PAIRS, Words, rows_of};
use crate::blocks::kv_format::{Bf16, F32, KvFormat};
use crate::ops::attention::cpu::Parts;
use crate::ops::attention::cpu::queries::{Queries, Weights};
use crate::ops::attention::cpu::tile::{Gathered, TILE, TokenRows};
use crate::simd::{LANES, Line, Simd, Square};
use std::marker::PhantomData;
use std::mem::MaybeUninit;

/// Words that are f32, stored as D.
pub(in super::super) struct Singles<D>(PhantomData<D>);

/// How to widen a dtype's numbers.
pub(in super::super) trait Widen: KvFormat {
    /// As of [`Words`].
    const SQUARES: usize;
    /// As of [`Words`].
    const ASKS_NEAR: bool;

    /// Lines of a row.
    fn lines(head_dim: usize) -> usize {
        head_dim.div_ceil(LANES)
    }
    /// The dimension that lane `lane` of line `line` has.
    fn dim(line: usize, lane: usize) -> usize {
        line * LANES + lane
    }
    /// As of [`Words`].
    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        for (Line(sums), out) in sums.iter().zip(out.chunks_mut(LANES)) {
            out.copy_from_slice(&sums[..out.len()]);
        }
    }
    /// As of [`Words`].
    fn columns<S: Simd>(keys: &TokenRows<'_, Self::Element>, first: usize, square: usize, to: &mut [Square]);
    /// Part `part` of line `lines.0 + lines.1` of a token, where `lines.0` is even.
    ///
    /// # Safety
    /// The token must be among the 32, and the line must need no zeros.
    unsafe fn part<S: Simd>(
        rows: &TokenRows<'_, Self::Element>,
        token: usize,
        lines: (usize, usize),
        part: usize,
    ) -> S::Part;
}

impl<S: Simd, D: Widen> Words<S> for Singles<D> {
    type Element = D::Element;
    type Values = Floats;
    const FEW: usize = usize::MAX;
    const SQUARES: usize = D::SQUARES;
    const SQUARE_DIMS: usize = LANES;
    const ASKS_NEAR: bool = D::ASKS_NEAR;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        D::lines(head_dim)
    }

    #[inline(always)]
    fn columns(keys: &TokenRows<'_, D::Element>, first: usize, square: usize, to: &mut [Square]) {
        D::columns::<S>(keys, first, square, to);
    }

    #[inline(always)]
    fn values(values: &TokenRows<'_, D::Element>, word: usize, to: &mut [Line]) {
        assert!(word < TILE);
        let row = values.get(word);
        for (line, Line(to)) in to.iter_mut().enumerate() {
            if D::dim(line, LANES - 1) < values.head_dim {
                for part in 0..S::PARTS {
                    // SAFETY: by the assertion, and this line's last dimension is there; where evens are apart from odds, its
                    // neighbour's is as well, since a head has an even number of them.
                    let numbers = unsafe { D::part::<S>(values, word, (line & !1, line & 1), part) };
                    S::store_part(numbers, to, part);
                }
                continue;
            }
            for (lane, to) in to.iter_mut().enumerate() {
                let dim = D::dim(line, lane);
                *to = if dim < values.head_dim { D::element(row, values.head_dim, dim) } else { 0.0 };
            }
        }
    }

    #[inline(always)]
    unsafe fn stored(values: &TokenRows<'_, D::Element>, word: usize, lines: (usize, usize), part: usize) -> S::Part {
        // SAFETY: by this function's contract.
        unsafe { D::part::<S>(values, word, lines, part) }
    }

    #[inline(always)]
    fn query(q: &[f32], scale: f32, query: usize, all: &mut [MaybeUninit<Line>]) {
        columns::query::<S, Self>(q, scale, query, all);
    }

    #[inline(always)]
    fn weigh_each<const N: usize>(
        seen: &mut Queries<'_>,
        at: usize,
        parts: Option<&Parts>,
        tile: &mut Gathered<'_, '_, Self::Element>,
        weights: &mut Weights,
    ) {
        columns::weigh::<S, Self, N>(seen, at, parts, tile, weights);
    }

    #[inline(always)]
    fn weight(query: usize, _block: usize, word: usize) -> usize {
        columns::weight(query, word)
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        D::dims(sums, out);
    }
}

impl<S: Simd, D: Widen> Columns<S> for Singles<D> {
    type Keys = Floats;

    #[inline(always)]
    fn words(q: &[f32], scale: f32, to: &mut [f32]) {
        to.iter_mut().zip(q).for_each(|(to, q)| *to = q * scale);
    }

    #[inline(always)]
    fn weights<const N: usize>(weights: &[[S::F; 2]; N], to: &mut [Line]) -> [S::F; N] {
        let mut sums = [S::splat(0.0); N];
        for (i, to) in to.as_chunks_mut::<2>().0.iter_mut().enumerate().take(N) {
            let [low, high] = weights[i];
            S::store(low, &mut to[0].0);
            S::store(high, &mut to[1].0);
            sums[i] = S::add(low, high);
        }
        sums
    }
}

impl Widen for F32 {
    const SQUARES: usize = 1;
    const ASKS_NEAR: bool = false;

    #[inline(always)]
    fn columns<S: Simd>(keys: &TokenRows<'_, f32>, first: usize, square: usize, to: &mut [Square]) {
        let [to] = to else { unreachable!("one square at a time") };
        S::transpose(&rows_of::<_, LANES>(keys, (first, square * LANES), &mut MaybeUninit::uninit()), to);
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(rows: &TokenRows<'_, f32>, token: usize, lines: (usize, usize), part: usize) -> S::Part {
        // SAFETY: by this function's contract.
        S::load_part(unsafe { rows.chunk(token, (lines.0 + lines.1) * LANES) }, part)
    }
}

/// Of each 32 dimensions the even ones are in one line, and the odd ones in the next.
impl Widen for Bf16 {
    const SQUARES: usize = 2;
    const ASKS_NEAR: bool = true;

    #[inline(always)]
    fn lines(head_dim: usize) -> usize {
        2 * head_dim.div_ceil(PAIRS)
    }

    #[inline(always)]
    fn dim(line: usize, lane: usize) -> usize {
        line / 2 * PAIRS + 2 * lane + line % 2
    }

    #[inline(always)]
    fn dims(sums: &[Line], out: &mut [f32]) {
        for (both, out) in sums.as_chunks::<2>().0.iter().zip(out.chunks_mut(PAIRS)) {
            let dims: [f32; PAIRS] = std::array::from_fn(|i| both[i % 2].0[i / 2]);
            out.copy_from_slice(&dims[..out.len()]);
        }
    }

    #[inline(always)]
    fn columns<S: Simd>(keys: &TokenRows<'_, u16>, first: usize, square: usize, to: &mut [Square]) {
        let to = to.as_mut_array().expect("two squares at a time");
        S::transpose_bf16(&rows_of::<_, PAIRS>(keys, (first, square * LANES), &mut MaybeUninit::uninit()), to);
    }

    #[inline(always)]
    unsafe fn part<S: Simd>(rows: &TokenRows<'_, u16>, token: usize, lines: (usize, usize), part: usize) -> S::Part {
        // SAFETY: by this function's contract.
        S::load_part_bf16(unsafe { rows.chunk(token, lines.0 * LANES + lines.1 / 2 * PAIRS) }, part, lines.1 % 2)
    }
}
