//! Quantised weights by matrix instructions: a block's quads are a tile as they lie in their panel.
//!
//! Packed inputs are rows of tiles as they are. Integers of several blocks are under way at once, then scaled and added up
//! as in `panels`, with the same bits.

use super::{Lanes, SIDE, WeightBlock};
use crate::ops::linear::PackedRows;
use crate::ops::linear::cpu::panels::{NOTES, signed_scales, sixes};
use crate::quant::{PANEL, Panel};
use crate::simd::amx::Tiles;
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{LANES, Line, Simd, prefetch_far};
use std::arch::x86_64::{__m512i, _mm512_add_epi32, _mm512_load_si512, _mm512_set1_epi32};
use std::ops::Range;

/// Most input rows of one walk, whose sums stay in the first-level cache.
const ROWS: usize = 4 * SIDE;
/// Bytes ahead of their use at which weights are asked for in the first-level cache, and in the second.
const NEAR: usize = 1024;
const FAR: usize = 4096;

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_quantised<T: TileFormat>(&self) {
        let weight = self.linear.weight();
        let blocks = weight.cols().div_ceil(BLOCK);
        let mut scratch = Scratch { ints: [[[0; LANES]; SIDE]; DOTS], bytes: [[0; QUAD]; DOTS * QUADS] };
        let mut first = 0;
        while first < self.x.rows() {
            let count = (self.x.rows() - first).min(ROWS);
            let group = count.div_ceil(count.div_ceil(SIDE));
            let (sums, inputs, weights) = ((group, QUAD), (group, 4 * T::QUADS), (T::QUADS, QUAD));
            // Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
            // SAFETY: the level is what the caller says.
            let tiles = unsafe { Tiles::new([sums, sums, sums, sums, inputs, inputs, weights, weights]) };
            let mut row = self.rows.start;
            while row < self.rows.end {
                let mut walk = PanelWalk {
                    x: self.x,
                    panel: weight.panel(row / PANEL),
                    rows: first..first + count,
                    group,
                    notes: blocks * BLOCK,
                    sums: [Line([0.0; LANES]); ROWS],
                    scratch: &mut scratch,
                };
                let mut block = 0;
                // SAFETY: tiles are configured for groups of this size and this format.
                unsafe {
                    while block < blocks {
                        if (blocks - block) * T::DOTS >= DOTS {
                            walk.add::<T, DOTS>(&tiles, block);
                            block += DOTS / T::DOTS;
                        } else if T::DOTS == 2 {
                            walk.add::<T, 2>(&tiles, block);
                            block += 1;
                        } else {
                            walk.add::<T, 1>(&tiles, block);
                            block += 1;
                        }
                    }
                }
                for (n, sums) in walk.sums[..count].iter().enumerate() {
                    self.put(first + n, row, &sums.0);
                }
                row += PANEL;
            }
            first += count;
        }
    }
}

/// Dots of 16 weight rows with up to 16 inputs that are under way at once, enough to hide their latency.
const DOTS: usize = 4;

/// One panel times some input rows.
struct PanelWalk<'a> {
    x: &'a PackedRows,
    panel: Panel<'a>,
    rows: Range<usize>,
    /// Rows of a tile. The last tile's may be among those of the one before.
    group: usize,
    /// Bytes from the start of a packed row to its notes.
    notes: usize,
    sums: [Line; ROWS],
    scratch: &'a mut Scratch,
}

impl PanelWalk<'_> {
    /// Adds the D dots of the blocks from `block` on to the sums.
    ///
    /// # Safety
    /// Tiles must be configured for `group` and the format, and the blocks be there.
    #[inline(always)]
    unsafe fn add<T: TileFormat, const D: usize>(&mut self, tiles: &Tiles, block: usize) {
        let mut quads = [std::ptr::null::<u8>(); D];
        let mut scales = [Lanes::splat(0.0); D];
        let mut minima = [None; D];
        for dot in 0..D {
            let (block, half) = (block + dot / T::DOTS, dot % T::DOTS);
            if half == 0 {
                let bytes = &mut self.scratch.bytes.as_chunks_mut::<QUADS>().0[dot / T::DOTS];
                let start = T::quads(&self.panel, block, bytes);
                for half in 0..T::DOTS {
                    quads[dot + half] = start.wrapping_add(half * T::QUADS * QUAD);
                }
            }
            (scales[dot], minima[dot]) = (T::scales(&self.panel, block, half), T::minima(&self.panel, block));
        }
        let stride = self.x.row_bytes();
        let mut done = self.rows.start;
        while done < self.rows.end {
            let first = done.min(self.rows.end - self.group);
            let row = self.x.row(first).as_ptr().cast::<u8>();
            // SAFETY: a row has 32 bytes for each block, and behind those of all blocks their notes; a tile of sums has at
            // most 16 lines.
            unsafe {
                let inputs = row.add(block * BLOCK);
                // Asked for bit by bit, so that no load has to wait behind all of it.
                let ask_for = |dot: usize| {
                    if done == 0 && dot.is_multiple_of(T::DOTS) {
                        ask::<T>(&self.panel, block + dot / T::DOTS);
                    }
                };
                ask_for(0);
                dot::<T, 0, 4, 6>(tiles, inputs, stride, quads[0]);
                if D >= 2 {
                    ask_for(1);
                    dot::<T, 1, 5, 7>(tiles, inputs.add(4 * T::QUADS), stride, quads[D.min(2) - 1]);
                }
                if D == 4 {
                    ask_for(2);
                    dot::<T, 2, 4, 6>(tiles, inputs.add(2 * 4 * T::QUADS), stride, quads[D - 2]);
                    ask_for(3);
                    dot::<T, 3, 5, 7>(tiles, inputs.add(3 * 4 * T::QUADS), stride, quads[D - 1]);
                }
                let to = self.scratch.ints.as_mut_ptr();
                tiles.store::<0>(to.cast(), QUAD);
                if D >= 2 {
                    tiles.store::<1>(to.add(1).cast(), QUAD);
                }
                if D == 4 {
                    tiles.store::<2>(to.add(2).cast(), QUAD);
                    tiles.store::<3>(to.add(3).cast(), QUAD);
                }
            }
            while done < first + self.group {
                let n = done - first;
                let sum = &mut self.sums[done - self.rows.start].0;
                let mut new = Lanes::load(sum);
                for dot in 0..D {
                    // SAFETY: the row has 4 notes for each block, aligned as words; integers are aligned as lines.
                    let (notes, mut int): (&[i32; NOTES], __m512i) = unsafe {
                        let notes = row.add(n * stride + self.notes).cast::<[i32; NOTES]>();
                        let int = _mm512_load_si512(self.scratch.ints[dot][n].as_ptr().cast());
                        (&*notes.add(block + dot / T::DOTS), int)
                    };
                    if T::HAS_BIAS {
                        // SAFETY: the level has AVX-512.
                        int = unsafe { _mm512_add_epi32(int, _mm512_set1_epi32(notes[1 + dot % T::DOTS])) };
                    }
                    let input = Lanes::splat(f32::from_bits(notes[0] as u32));
                    new = Lanes::fma(Lanes::mul(Lanes::from_i32(int), scales[dot]), input, new);
                    if let Some(minima) = minima[dot] {
                        new = Lanes::fma(minima, Lanes::splat(f32::from_bits(notes[1] as u32)), new);
                    }
                }
                Lanes::store(new, sum);
                done += 1;
            }
        }
    }
}

/// Tile C becomes the inputs times the quads.
///
/// # Safety
/// Tiles must be configured for the format, and what they read be there.
#[inline(always)]
unsafe fn dot<T: TileFormat, const C: u8, const A: u8, const B: u8>(
    tiles: &Tiles,
    inputs: *const u8,
    stride: usize,
    quads: *const u8,
) {
    tiles.zero::<C>();
    // SAFETY: the caller's.
    unsafe {
        tiles.load::<B>(quads, QUAD);
        tiles.load::<A>(inputs, stride);
    }
    tiles.multiply_int8::<C, A, B>();
}

/// What blocks leave between instructions.
#[repr(C, align(64))]
struct Scratch {
    /// Integers of each dot, a line for each input row.
    ints: [[[i32; LANES]; SIDE]; DOTS],
    /// Weights as bytes, where they are stored otherwise.
    bytes: [[u8; QUAD]; DOTS * QUADS],
}

type F = <Lanes as Simd>::F;

/// One block of a panel's format.
pub(super) trait TileFormat {
    /// Dots of a block, each with a scale.
    const DOTS: usize;
    /// Quads of a dot.
    const QUADS: usize = QUADS / Self::DOTS;
    /// Quads in which a block is stored.
    const STORED_QUADS: usize;
    /// Whether notes 1 and on undo the weights' bias.
    const HAS_BIAS: bool;
    /// The block's 8 quads as bytes: where they lie, or unpacked into `bytes`.
    fn quads(panel: &Panel<'_>, block: usize, bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8;
    /// The scales of a dot: f16, unless the format says otherwise.
    #[inline(always)]
    fn scales(panel: &Panel<'_>, block: usize, _dot: usize) -> F {
        Lanes::load_f16(panel.meta_words(block))
    }
    /// What is added for each sum of inputs, if the format has minima.
    fn minima(_panel: &Panel<'_>, _block: usize) -> Option<F> {
        None
    }
}

/// Asks for lines behind the stored quads of a block: for near ones in the first-level cache, and for far ones in the
/// second, which can wait for more lines at once.
#[inline(always)]
fn ask<T: TileFormat>(panel: &Panel<'_>, block: usize) {
    for quad in 0..T::STORED_QUADS {
        let near = panel.ahead::<1>(block * T::STORED_QUADS + quad, NEAR);
        prefetch_far(near.wrapping_add(FAR - NEAR));
        Lanes::prefetch(near);
    }
}

pub(super) struct Q8_0;

impl TileFormat for Q8_0 {
    const DOTS: usize = 1;
    const STORED_QUADS: usize = QUADS;
    const HAS_BIAS: bool = true;

    #[inline(always)]
    fn quads(panel: &Panel<'_>, block: usize, _bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8 {
        panel.quads::<QUADS>(block).as_ptr().cast()
    }
}

pub(super) struct Q4_0;

impl TileFormat for Q4_0 {
    const DOTS: usize = 1;
    const STORED_QUADS: usize = QUADS / 2;
    const HAS_BIAS: bool = true;

    #[inline(always)]
    fn quads(panel: &Panel<'_>, block: usize, bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8 {
        nibbles(panel, block, bytes)
    }
}

pub(super) struct Q4K;

impl TileFormat for Q4K {
    const DOTS: usize = 1;
    const STORED_QUADS: usize = QUADS / 2;
    const HAS_BIAS: bool = false;

    #[inline(always)]
    fn quads(panel: &Panel<'_>, block: usize, bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8 {
        nibbles(panel, block, bytes)
    }
    #[inline(always)]
    fn scales(panel: &Panel<'_>, block: usize, _dot: usize) -> F {
        let [d, _] = panel.supers::<2>(block);
        Lanes::mul(Lanes::load_f16(d), Lanes::load_u8(&panel.meta_bytes(block)[0]))
    }
    #[inline(always)]
    fn minima(panel: &Panel<'_>, block: usize) -> Option<F> {
        let [_, d_min] = panel.supers::<2>(block);
        Some(Lanes::mul(Lanes::load_f16(d_min), Lanes::load_u8(&panel.meta_bytes(block)[1])))
    }
}

pub(super) struct Q6K;

impl TileFormat for Q6K {
    const DOTS: usize = 2;
    const STORED_QUADS: usize = 6;
    const HAS_BIAS: bool = true;

    #[inline(always)]
    fn quads(panel: &Panel<'_>, block: usize, bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8 {
        *bytes = sixes(panel.quads(block));
        bytes.as_ptr().cast()
    }
    #[inline(always)]
    fn scales(panel: &Panel<'_>, block: usize, dot: usize) -> F {
        let [d] = panel.supers::<1>(block);
        signed_scales::<Lanes>(d, &panel.meta_bytes(block)[dot])
    }
}

/// Quads of 4 bits a weight as bytes.
#[inline(always)]
fn nibbles(panel: &Panel<'_>, block: usize, bytes: &mut [[u8; QUAD]; QUADS]) -> *const u8 {
    let packed: &[[u8; QUAD]; QUADS / 2] = panel.quads(block);
    for (quad, packed) in packed.iter().enumerate() {
        for (i, both) in packed.iter().enumerate() {
            bytes[quad][i] = both & 15;
            bytes[QUADS / 2 + quad][i] = both >> 4;
        }
    }
    bytes.as_ptr().cast()
}
