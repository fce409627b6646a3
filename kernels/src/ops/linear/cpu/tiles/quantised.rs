//! Quantised weights but those of `super_blocks` by matrix instructions: a block's quads are a tile as they lie in their panel.
//!
//! Packed inputs are rows of tiles as they are. The integers of some dots are computed while those of another are scaled and
//! added up as in `panels`, with the same bits.

use super::{BandSums, GROUPS, Groups, Lanes, SIDE, WeightBlock};
use crate::ops::linear::cpu::panels::signed_scales;
use crate::ops::linear::pack::NOTES;
use crate::quant::{BAND, PANEL, Panel, SPAN};
use crate::simd::amx::Tiles;
use crate::simd::int8::{BLOCK, QUAD, QUADS, sixes};
use crate::simd::{LANES, Line, SHIFT, Simd};
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Bytes ahead of their use at which weights are asked for in the first-level cache, and in the second.
const NEAR: usize = 2560;
const FAR: usize = 6144;

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_quantised<T: TileFormat>(&self) {
        let weight = self.linear.weight().panels();
        let blocks = self.linear.weight().cols().div_ceil(BLOCK);
        // Little of it is cleared: all would take as long as a short walk.
        let mut scratch = Scratch {
            ints: [MaybeUninit::uninit(); DOTS],
            firsts: [Line([0.0; LANES]); SIDE],
            bytes: [MaybeUninit::uninit(); SPAN],
        };
        let mut sums: BandSums = [[MaybeUninit::uninit(); BAND]; GROUPS];
        for walk in Groups::of(self.x.rows()) {
            let (groups, rows) = (walk.groups, walk.rows);
            let (totals, inputs, weights) = ((rows, QUAD), (rows, 4 * T::QUADS), (T::QUADS, QUAD));
            // Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
            // SAFETY: the level is what the caller says.
            let tiles = unsafe { Tiles::new([totals, totals, totals, totals, inputs, inputs, weights, weights]) };
            // Of several groups the last asks for what the first will walk over next.
            let far = if groups == 1 { FAR } else { SPAN * (T::STORED_QUADS * QUAD + PANEL * size_of::<u16>()) };
            for band in self.bands() {
                let panels = band.clone().step_by(PANEL);
                walk.clear(&mut sums, panels.len());
                for span in 0..blocks.div_ceil(SPAN) {
                    for (place, row) in panels.clone().enumerate() {
                        let panel = weight.panel(row / PANEL, span);
                        if span + 1 == blocks.div_ceil(SPAN) {
                            self.ask_for_output::<Lanes>(walk.inputs(), row / PANEL);
                        }
                        for (group, sums) in sums[..groups].iter_mut().enumerate() {
                            // All rows are there.
                            let packed = self.x.rows_from(walk.start(group), rows).as_ptr().cast::<u8>();
                            let mut span_walk = SpanWalk {
                                tiles: &tiles,
                                panel,
                                rows,
                                inputs: packed.wrapping_add(span * SPAN * BLOCK),
                                notes: packed.wrapping_add(blocks * BLOCK + span * SPAN * size_of::<[i32; NOTES]>()),
                                stride: self.x.row_bytes(),
                                far,
                                is_first: group == 0,
                                scratch: &mut scratch,
                            };
                            // SAFETY: tiles are configured for so many rows and this format; a row has 32 bytes and 4 notes
                            // for each block; sums were set above.
                            unsafe {
                                let sums = sums[place].assume_init_mut();
                                match (group + 1 == groups, rows == SIDE) {
                                    (true, true) => span_walk.add::<T, true, true>(sums),
                                    (true, false) => span_walk.add::<T, true, false>(sums),
                                    (false, true) => span_walk.add::<T, false, true>(sums),
                                    (false, false) => span_walk.add::<T, false, false>(sums),
                                }
                            }
                        }
                    }
                }
                // SAFETY: these are sums of this walk.
                unsafe { self.put_groups(&walk, &band, &sums) };
            }
        }
    }

    /// Writes what groups give for a band.
    ///
    /// # Safety
    /// The sums must be set.
    #[inline(always)]
    unsafe fn put_groups(&self, groups: &Groups, band: &Range<usize>, sums: &BandSums) {
        for group in 0..groups.groups {
            let start = groups.start(group);
            // Rows of the group before are there.
            for n in groups.new_rows(group) {
                for (row, sums) in band.clone().step_by(PANEL).zip(&sums[group]) {
                    // SAFETY: the caller's.
                    self.put(start + n, row, unsafe { &sums.assume_init_ref()[n].0 });
                }
            }
        }
    }
}

/// Dots of 16 weight rows with up to 16 inputs, each with a tile and lines of its own: three are computed, which takes long,
/// while the fourth is scaled.
const DOTS: usize = 4;
/// Blocks that are unpacked ahead.
const UNPACKED: usize = 8;

/// A span of one panel times a group of input rows.
struct SpanWalk<'a> {
    tiles: &'a Tiles,
    panel: Panel<'a>,
    /// How many input rows there are.
    rows: usize,
    /// Where the first one's inputs of the span start, and its notes.
    inputs: *const u8,
    notes: *const u8,
    /// Bytes from one row to the next.
    stride: usize,
    /// Bytes ahead of their use at which weights are asked for in the second-level cache.
    far: usize,
    /// Whether it is the first group that walks over the span.
    is_first: bool,
    scratch: &'a mut Scratch,
}

/// The text once for each of 16 rows, as long as there are so many.
macro_rules! for_rows {
    ($rows:expr, $n:ident, $body:block) => {
        for_rows!($rows, $n, $body, 0 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15)
    };
    ($rows:expr, $n:ident, $body:block, $($number:literal)*) => {
        'rows: {
            $({
                const $n: usize = $number;
                if $n >= $rows {
                    break 'rows;
                }
                $body
            })*
        }
    };
}

impl SpanWalk<'_> {
    /// Adds the dots of the span to the sums; LAST is the last group that walks over it, FULL one of 16 rows.
    ///
    /// # Safety
    /// Tiles must be configured for so many rows and the format, and rows and blocks be there.
    #[inline(always)]
    unsafe fn add<T: TileFormat, const LAST: bool, const FULL: bool>(&mut self, lines: &mut [Line; SIDE]) {
        // In registers, all of them.
        let mut sums = [Lanes::splat(0.0); SIDE];
        for n in 0..SIDE {
            sums[n] = Lanes::load(&lines[n].0);
        }
        let dots = T::DOTS * self.panel.blocks();
        if self.is_first {
            self.unpack::<T>(0..UNPACKED);
        }
        // SAFETY: the caller's.
        unsafe {
            self.multiply::<T, 0, 4, 6>(0, dots);
            self.multiply::<T, 1, 5, 7>(1, dots);
            self.multiply::<T, 2, 4, 6>(2, dots);
            for dot in (0..dots).step_by(DOTS) {
                if self.is_first {
                    let next = dot / T::DOTS + UNPACKED;
                    self.unpack::<T>(next..next + DOTS / T::DOTS);
                }
                self.multiply::<T, 3, 5, 7>(dot + 3, dots);
                self.scale::<T, LAST, FULL, 0>(dot, dots, &mut sums);
                self.multiply::<T, 0, 4, 6>(dot + 4, dots);
                self.scale::<T, LAST, FULL, 1>(dot + 1, dots, &mut sums);
                self.multiply::<T, 1, 5, 7>(dot + 5, dots);
                self.scale::<T, LAST, FULL, 2>(dot + 2, dots, &mut sums);
                self.multiply::<T, 2, 4, 6>(dot + 6, dots);
                self.scale::<T, LAST, FULL, 3>(dot + 3, dots, &mut sums);
            }
        }
        for n in 0..SIDE {
            Lanes::store(sums[n], &mut lines[n].0);
        }
    }

    /// Makes bytes of these blocks of the span, as far as there are so many, if they are stored otherwise. Long before they
    /// are loaded, since a tile waits until what was stored has reached the cache.
    #[inline(always)]
    fn unpack<T: TileFormat>(&mut self, places: Range<usize>) {
        if T::STORED_QUADS < QUADS {
            for place in places.start..places.end.min(self.panel.blocks()) {
                self.scratch.bytes[place].write(T::unpack(&self.panel, place));
            }
        }
    }

    /// The integers of a dot of the span, if there is that one, by tiles C, A and B, into the lines of C.
    ///
    /// # Safety
    /// As of [`Self::add`].
    #[inline(always)]
    unsafe fn multiply<T: TileFormat, const C: u8, const A: u8, const B: u8>(&mut self, dot: usize, dots: usize) {
        if dot >= dots {
            return;
        }
        let (block, part) = (dot / T::DOTS, dot % T::DOTS);
        // SAFETY: the caller's; a tile of sums has at most 16 lines.
        unsafe {
            let quads = if T::STORED_QUADS == QUADS {
                self.panel.ahead(QUADS, block, 0)
            } else {
                self.scratch.bytes.as_ptr().add(block).cast()
            };
            self.tiles.zero::<C>();
            self.tiles.load::<B>(quads.add(part * T::QUADS * QUAD), QUAD);
            self.tiles.load::<A>(self.inputs.add(block * BLOCK + part * 4 * T::QUADS), self.stride);
            self.tiles.multiply_int8::<C, A, B>();
            self.tiles.store::<C>(self.scratch.ints[C as usize].as_mut_ptr().cast(), QUAD);
        }
    }

    /// Adds the integers in the lines of C, a dot of the span, if there is that one. Between its rows it asks for the
    /// weights ahead, whose loads would otherwise stand in the way of its own.
    ///
    /// # Safety
    /// As of [`Self::add`].
    #[inline(always)]
    unsafe fn scale<T: TileFormat, const LAST: bool, const FULL: bool, const C: usize>(
        &mut self,
        dot: usize,
        dots: usize,
        sums: &mut [F; SIDE],
    ) {
        if dot >= dots {
            return;
        }
        let (block, part) = (dot / T::DOTS, C % T::DOTS);
        let scales = T::scales(&self.panel, block, part);
        let shift = Lanes::mul(Lanes::splat(-SHIFT), scales);
        let ahead = self.panel.ahead(T::STORED_QUADS, block, part * T::ASKED * QUAD + NEAR);
        let ask = |quad: isize| {
            let near = ahead.wrapping_offset(quad * QUAD as isize);
            Lanes::prefetch(near);
            if LAST {
                Lanes::prefetch_far(near.wrapping_add(self.far - NEAR));
            }
        };
        if part == 0 && block.is_multiple_of(2) {
            // The line with the scales of two blocks.
            ask(-1);
        }
        let rows = if FULL { SIDE } else { self.rows };
        let ints = self.scratch.ints[C].as_ptr().cast::<[i32; LANES]>();
        let mut row = self.notes.wrapping_add(block * size_of::<[i32; NOTES]>()).wrapping_sub(self.stride);
        for_rows!(rows, N, {
            if FULL && N * T::ASKED % SIDE < T::ASKED {
                ask((N * T::ASKED / SIDE) as isize);
            }
            if !FULL && N < T::ASKED {
                ask(N as isize);
            }
            row = row.wrapping_add(self.stride);
            // SAFETY: the caller's; notes are aligned as words, and integers as lines.
            let (notes, int): (&[i32; NOTES], __m512i) =
                unsafe { (&*row.cast(), _mm512_load_si512(ints.add(N).cast())) };
            let input = Lanes::splat(f32::from_bits(notes[0] as u32));
            // SAFETY: AVX-512 by the level. An addition and not a conversion: while tiles are in use, only one of a core's two
            // ports multiplies or converts floats (seen on a Xeon), and the other is idle.
            let int = unsafe { _mm512_add_epi32(int, _mm512_set1_epi32(notes[1 + part])) };
            let mut scaled = Lanes::fma(Lanes::from_bits(int), scales, shift);
            // Parts of a block are added before they are scaled by the input.
            if part + 1 < T::DOTS {
                Lanes::store(scaled, &mut self.scratch.firsts[N].0);
            } else {
                if T::DOTS == 2 {
                    scaled = Lanes::add(Lanes::load(&self.scratch.firsts[N].0), scaled);
                }
                sums[N] = Lanes::fma(scaled, input, sums[N]);
            }
        });
        for quad in rows..T::ASKED {
            ask(quad as isize);
        }
    }
}

/// A block of weights as bytes.
type Bytes = [[u8; QUAD]; QUADS];

/// What dots leave between instructions.
#[repr(C, align(64))]
struct Scratch {
    /// Integers of each dot, a line for each input row.
    ints: [MaybeUninit<[[i32; LANES]; SIDE]>; DOTS],
    /// The first of a block's two dots, scaled by its weights, for each input row.
    firsts: [Line; SIDE],
    /// Weights of a span as bytes, where they are stored otherwise.
    bytes: [MaybeUninit<Bytes>; SPAN],
}

type F = <Lanes as Simd>::F;

/// One block of a panel's format.
pub(super) trait TileFormat {
    /// Dots of a block, each with a scale: one or two.
    const DOTS: usize;
    /// Quads of a dot.
    const QUADS: usize = QUADS / Self::DOTS;
    /// Quads in which a block is stored, and those that are asked for with each dot.
    const STORED_QUADS: usize;
    const ASKED: usize = Self::STORED_QUADS / Self::DOTS;
    /// The block's quads as bytes, where they are stored otherwise.
    fn unpack(panel: &Panel<'_>, block: usize) -> Bytes;
    /// The scales of a dot: f16, unless the format says otherwise.
    #[inline(always)]
    fn scales(panel: &Panel<'_>, block: usize, _dot: usize) -> F {
        Lanes::load_f16(panel.meta_words(Self::STORED_QUADS, block))
    }
}

pub(super) struct Q8_0;

impl TileFormat for Q8_0 {
    const DOTS: usize = 1;
    const STORED_QUADS: usize = QUADS;

    #[inline(always)]
    fn unpack(panel: &Panel<'_>, block: usize) -> Bytes {
        *panel.quads(block)
    }
}

pub(super) struct Q4_0;

impl TileFormat for Q4_0 {
    const DOTS: usize = 1;
    const STORED_QUADS: usize = QUADS / 2;

    #[inline(always)]
    fn unpack(panel: &Panel<'_>, block: usize) -> Bytes {
        nibbles(panel.quads(block))
    }
}

pub(super) struct Q6K;

impl TileFormat for Q6K {
    const DOTS: usize = 2;
    const STORED_QUADS: usize = 6;

    #[inline(always)]
    fn unpack(panel: &Panel<'_>, block: usize) -> Bytes {
        sixes(panel.quads(block))
    }
    #[inline(always)]
    fn scales(panel: &Panel<'_>, block: usize, dot: usize) -> F {
        let [d] = panel.supers::<1>(block);
        signed_scales::<Lanes>(d, &panel.meta_bytes(Self::STORED_QUADS, block)[dot])
    }
}

/// Quads of 4 bits a weight as bytes.
#[inline(always)]
fn nibbles(packed: &[[u8; QUAD]; QUADS / 2]) -> Bytes {
    let mut bytes = [[0; QUAD]; QUADS];
    for (quad, packed) in packed.iter().enumerate() {
        for (i, both) in packed.iter().enumerate() {
            bytes[quad][i] = both & 15;
            bytes[QUADS / 2 + quad][i] = both >> 4;
        }
    }
    bytes
}
