//! q4_K, and q6_K and q8_0 that fold, by matrix instructions, a super-block at a time.
//!
//! A block's scale of q4_K has 6 bits: 8 times its upper three and its lower three. Either times a weight of 4 bits is at most
//! 7 * 15, a signed byte, so a super-block becomes two planes of bytes, whose dots with 256 inputs add up in two tiles: no
//! block's dot is stored and scaled by itself. Minima go with sums of the inputs. All of it is integers, and gives the bits
//! of `panels`. One that folds is a single plane of signed bytes, to whose integers nothing is added: half of the products and
//! of what is stored. Of q8_0 it is there as it is stored, biased.
//!
//! While tiles multiply a super-block, vectors unpack the next one and scale the integers of the last. A pair is unpacked over
//! the planes that tiles have just read: planes of two super-blocks left the first-level cache no room for inputs, and a
//! bare loop over 16 rows took 1.15 times as long.

mod formats;

pub(super) use formats::{FoldedQ4K, FoldedQ6K, FoldedQ8_0, Q4K};

use super::{BandSums, GROUPS, Groups, Lanes, SIDE, Sums, WeightBlock};
use crate::ops::linear::pack::NOTES;
use crate::quant::{BAND, PANEL, Pair, Panels, SPAN, SUPER, meta_bytes};
use crate::simd::amx::Tiles;
use crate::simd::int8::{BLOCK, Int8, QUAD, QUADS};
use crate::simd::{LANES, SHIFT, Simd};
use formats::SuperFormat;
use std::arch::asm;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

/// Pairs of blocks of a super-block, each of them the k of a tile.
const PAIRS: usize = SUPER / 2;
/// Rows that are scaled with each of them.
const SCALED: usize = SIDE / PAIRS;

/// A pair of blocks as bytes times the upper and the lower bits of their scales; of one that folds the first is all.
type Planes = [[[u8; QUAD]; 2 * QUADS]; 2];
/// A super-block's integers by either plane, a line for each input row.
type Ints = [[[i32; LANES]; SIDE]; 2];
type F = <Lanes as Simd>::F;
type I = <Lanes as Int8>::I;

#[repr(C, align(64))]
struct Scratch {
    /// Of this super-block, and pair by pair of the next.
    planes: [MaybeUninit<Planes>; PAIRS],
    /// Of this super-block, and of the last.
    scales: [MaybeUninit<Scales>; 2],
    /// Of this super-block and group of inputs, and of the last.
    ints: [MaybeUninit<Ints>; 2],
}

impl WeightBlock<'_> {
    #[inline(always)]
    pub(super) unsafe fn walk_super_blocks<T: SuperFormat<Q>, const Q: usize>(&self) {
        // Not cleared, which would take as long as a short walk.
        let mut scratch = Scratch {
            planes: [MaybeUninit::uninit(); PAIRS],
            scales: [MaybeUninit::uninit(); 2],
            ints: [MaybeUninit::uninit(); 2],
        };
        let mut sums: BandSums = [[MaybeUninit::uninit(); GROUPS]; BAND];
        for walk in Groups::of(self.x.rows()) {
            let (groups, rows) = (walk.groups, walk.rows);
            let mut inputs = [std::ptr::null(); GROUPS];
            for group in 0..groups {
                // All rows are there.
                inputs[group] = self.x.rows_from(walk.start(group), rows).as_ptr().cast();
            }
            let (sides, weights) = ((rows, QUAD), (2 * QUADS, QUAD));
            // Tiles 0 to 3 are sums, 4 and 5 inputs, 6 and 7 weights.
            // SAFETY: the level is what the caller says.
            let tiles = unsafe { Tiles::new([sides, sides, sides, sides, sides, sides, weights, weights]) };
            for band in self.bands() {
                let panels = band.start / PANEL..band.end.div_ceil(PANEL);
                walk.clear(&mut sums[..panels.len()]);
                let mut band_walk = BandWalk {
                    block: self,
                    inputs: walk.inputs(),
                    tiles: &tiles,
                    weight: self.linear.weight().panels(),
                    panels,
                    blocks: self.linear.weight().cols().div_ceil(BLOCK),
                    rows,
                    stride: self.x.row_bytes(),
                    scratch: &mut scratch,
                };
                // SAFETY: tiles are configured for so many rows, and sums were set.
                unsafe {
                    match rows == SIDE {
                        true => band_walk.run::<T, true>(&inputs[..groups], &mut sums),
                        false => band_walk.run::<T, false>(&inputs[..groups], &mut sums),
                    }
                    self.put_groups(&walk, &band, &sums);
                }
            }
        }
    }
}

/// Up to 8 blocks of a panel.
#[derive(Clone, Copy)]
struct SuperBlock<'a, const Q: usize> {
    pairs: &'a [Pair<Q>],
    supers: &'a [[u16; PANEL]],
    /// The panel's place in its band.
    place: usize,
    /// The span, and the first pair in it.
    span: usize,
    pair: usize,
}

impl<const Q: usize> SuperBlock<'_, Q> {
    /// The first block of the row.
    #[inline(always)]
    fn first(&self) -> usize {
        self.span * SPAN + 2 * self.pair
    }
}

/// Makes the planes of a pair; asks for the pairs ahead.
#[inline(always)]
fn unpack<T: SuperFormat<Q>, const Q: usize>(pair: &Pair<Q>, planes: &mut MaybeUninit<Planes>) {
    ask::<T, Q>(pair, 0);
    // SAFETY: the level has matrix instructions.
    unsafe { T::unpack(pair, |line| ask::<T, Q>(pair, 1 + line), planes) };
}

/// Asks for what lies ahead of a line of a pair.
#[inline(always)]
fn ask<T: SuperFormat<Q>, const Q: usize>(pair: &Pair<Q>, line: usize) {
    let line = (&raw const *pair).cast::<u8>().wrapping_add(line * QUAD);
    Lanes::prefetch(line.wrapping_add(T::NEAR));
    Lanes::prefetch_far(line.wrapping_add(T::FAR));
}

/// What scales a super-block's integers.
#[derive(Clone, Copy)]
struct Scales {
    minima: [I; PAIRS],
    d: F,
    d_min: F,
    shift: F,
}

impl Scales {
    #[inline(always)]
    fn of<const Q: usize>(this: &SuperBlock<'_, Q>) -> Self {
        let mut minima = [Lanes::splat_i32(0); PAIRS];
        let d = Lanes::load_f16(this.supers.first().unwrap_or(&this.pairs[0].meta[0]));
        let [_, d_min] = this.supers else {
            return Self { minima, d, d_min: d, shift: d };
        };
        for (minima, pair) in minima.iter_mut().zip(this.pairs) {
            let [[_, first], [_, second]] = [&pair.meta[0], &pair.meta[1]].map(meta_bytes);
            *minima = Lanes::load_pairs(first, second);
        }
        let d_min = Lanes::mul(Lanes::load_f16(d_min), Lanes::splat(-1.0));
        Self { minima, d, d_min, shift: Lanes::mul(d_min, Lanes::splat(-SHIFT)) }
    }
}

/// Integers that wait to be scaled: of which buffer's super-block, the first row's notes, and the sums.
#[derive(Clone, Copy)]
struct Waiting {
    buffer: usize,
    notes: *const u8,
    sums: *mut Sums,
}

/// A super-block and a group of inputs.
#[derive(Clone, Copy)]
struct Step<'a, const Q: usize> {
    this: SuperBlock<'a, Q>,
    /// The group's first row.
    inputs: *const u8,
    /// What is to be unpacked meanwhile, and scaled.
    unpacked: &'a [Pair<Q>],
    last: Option<Waiting>,
}

/// A band of panels times the groups of input rows.
struct BandWalk<'a, const Q: usize> {
    block: &'a WeightBlock<'a>,
    /// All input rows.
    inputs: Range<usize>,
    tiles: &'a Tiles,
    weight: Panels<'a>,
    panels: Range<usize>,
    /// Blocks of a row.
    blocks: usize,
    /// Rows of a group, and bytes from one to the next.
    rows: usize,
    stride: usize,
    scratch: &'a mut Scratch,
}

impl<'a, const Q: usize> BandWalk<'a, Q> {
    /// The super-block from `pair` on, if there is one.
    #[inline(always)]
    fn super_block<T: SuperFormat<Q>>(&self, span: usize, place: usize, pair: usize) -> Option<SuperBlock<'a, Q>> {
        if span * SPAN >= self.blocks {
            return None;
        }
        let panel = self.weight.panel(self.panels.start + place, span);
        let pairs = &panel.pairs()[pair..];
        let pairs = &pairs[..pairs.len().min(PAIRS)];
        Some(SuperBlock { pairs, supers: panel.supers_of(2 * pair / SUPER, T::SUPERS), place, span, pair })
    }

    /// The one behind it in the walk: the panel's next, or the next panel's first, span by span.
    #[inline(always)]
    fn behind<T: SuperFormat<Q>>(&self, this: &SuperBlock<'_, Q>) -> Option<SuperBlock<'a, Q>> {
        let blocks = SPAN.min(self.blocks - this.span * SPAN);
        let pair = this.pair + PAIRS;
        if 2 * pair < blocks {
            self.super_block::<T>(this.span, this.place, pair)
        } else if this.place + 1 < self.panels.len() {
            self.super_block::<T>(this.span, this.place + 1, 0)
        } else {
            self.super_block::<T>(this.span + 1, 0, 0)
        }
    }

    /// Adds what the super-blocks give to the sums of their panels and the groups, whose first rows `groups` are.
    ///
    /// # Safety
    /// Tiles must be configured for so many rows, which must be there, and sums be set.
    #[inline(always)]
    unsafe fn run<T: SuperFormat<Q>, const FULL: bool>(&mut self, groups: &[*const u8], sums: &mut BandSums) {
        let mut next = self.super_block::<T>(0, 0, 0);
        if let Some(next) = next {
            for (pair, planes) in next.pairs.iter().zip(&mut self.scratch.planes) {
                unpack::<T, Q>(pair, planes);
            }
        }
        let (mut buffer, mut item) = (0, 0);
        let mut last = None;
        while let Some(this) = next {
            next = self.behind::<T>(&this);
            if this.pair == 0 && (this.span + 1) * SPAN >= self.blocks {
                self.block.ask_for_output::<Lanes>(self.inputs.clone(), self.panels.start + this.place);
            }
            self.scratch.scales[buffer].write(Scales::of(&this));
            let notes = self.blocks * BLOCK + this.first() * size_of::<[i32; NOTES]>();
            for (group, inputs) in groups.iter().enumerate() {
                // In place, so by the last group.
                let unpacked = if group + 1 == groups.len() { next.map_or(&[][..], |next| next.pairs) } else { &[] };
                let step = Step { this, inputs: *inputs, unpacked, last };
                // SAFETY: the caller's; this super-block was unpacked.
                unsafe {
                    match item {
                        0 => self.step::<0, 1, T, FULL>(step),
                        _ => self.step::<2, 3, T, FULL>(step),
                    }
                }
                let (notes, sums) = (inputs.wrapping_add(notes), sums[this.place][group].as_mut_ptr());
                last = Some(Waiting { buffer, notes, sums });
                item = 1 - item;
            }
            buffer = 1 - buffer;
        }
        if let Some(last) = last {
            // SAFETY: the caller's.
            unsafe { (0..PAIRS).for_each(|pair| self.scale::<T, FULL>(last, 1 - item, pair, |_| {})) };
        }
    }

    /// The integers of a super-block and a group of inputs, in tiles C and D; meanwhile unpacks the next one, and scales what
    /// came before.
    ///
    /// # Safety
    /// As of [`Self::run`]; the super-block must be unpacked, and of what came before the scales and integers be there.
    #[inline(always)]
    unsafe fn step<const C: u8, const D: u8, T: SuperFormat<Q>, const FULL: bool>(&mut self, step: Step<'_, Q>) {
        self.tiles.zero::<C>();
        if !T::FOLDS {
            self.tiles.zero::<D>();
        }
        // SAFETY: the caller's.
        unsafe {
            self.pair::<C, D, 4, T, FULL>(&step, 0);
            self.pair::<C, D, 5, T, FULL>(&step, 1);
            self.pair::<C, D, 4, T, FULL>(&step, 2);
            self.pair::<C, D, 5, T, FULL>(&step, 3);
            // A tile of sums has at most 16 lines.
            let ints = self.scratch.ints[usize::from(C / 2)].as_mut_ptr().cast::<u8>();
            self.tiles.store::<C>(ints, QUAD);
            if !T::FOLDS {
                self.tiles.store::<D>(ints.add(size_of::<Ints>() / 2), QUAD);
            }
        }
    }

    /// A pair of a step, if there is that one, and the parts of the rest that go with it.
    ///
    /// # Safety
    /// As of [`Self::step`].
    #[inline(always)]
    unsafe fn pair<const C: u8, const D: u8, const A: u8, T: SuperFormat<Q>, const FULL: bool>(
        &mut self,
        step: &Step<'_, Q>,
        pair: usize,
    ) {
        if pair < step.this.pairs.len() {
            let upper = match T::STORED {
                true => step.this.pairs[pair].quads.as_ptr().cast::<u8>(),
                false => self.scratch.planes[pair].as_ptr().cast(),
            };
            let inputs = step.inputs.wrapping_add((step.this.first() + 2 * pair) * BLOCK);
            // SAFETY: the caller's. If a row lacks the second block, its notes follow, by which zeros are multiplied.
            unsafe {
                self.tiles.load::<A>(inputs, self.stride);
                self.tiles.load::<6>(upper, QUAD);
                if T::STORED {
                    self.tiles.multiply_int8::<C, A, 6>();
                } else if T::FOLDS {
                    self.tiles.multiply_signed::<C, A, 6>();
                } else {
                    self.tiles.load::<7>(upper.add(size_of::<Planes>() / 2), QUAD);
                    self.tiles.multiply_int8::<C, A, 6>();
                    self.tiles.multiply_int8::<D, A, 7>();
                }
            }
        }
        let unpacked = step.unpacked.get(pair);
        if let Some(unpacked) = unpacked {
            unpack::<T, Q>(unpacked, &mut self.scratch.planes[pair]);
        }
        // What is not unpacked is asked for between rows: all at once it would stand in the way of their own loads.
        let between = |row: usize| {
            if let (true, Some(pair)) = (T::STORED, unpacked) {
                let lines = 2 * Q / SCALED;
                (row * lines..(row + 1) * lines).for_each(|line| ask::<T, Q>(pair, 1 + line));
            }
        };
        match step.last {
            // SAFETY: the caller's.
            Some(last) => unsafe { self.scale::<T, FULL>(last, 1 - usize::from(C / 2), pair, between) },
            None => (0..SCALED).for_each(between),
        }
    }

    /// Adds the integers of the rows that go with a pair to their sums; FULL is a group of 16 rows. `between` is called before
    /// each of them.
    ///
    /// # Safety
    /// As of [`Self::run`]; the integers and scales must be there.
    #[inline(always)]
    unsafe fn scale<T: SuperFormat<Q>, const FULL: bool>(
        &self,
        waiting: Waiting,
        item: usize,
        pair: usize,
        between: impl Fn(usize),
    ) {
        // SAFETY: the caller's.
        let scales = unsafe { *self.scratch.scales[waiting.buffer].assume_init_ref() };
        let ints = self.scratch.ints[item].as_ptr().cast::<__m512i>();
        for row in 0..SCALED {
            between(row);
            let n = SCALED * pair + row;
            if !FULL && n >= self.rows {
                continue;
            }
            let notes = waiting.notes.wrapping_add(n * self.stride).cast::<[i32; NOTES]>();
            // SAFETY: the caller's: AVX-512 by the level; rows have notes of whole super-blocks.
            unsafe {
                let mut upper = _mm512_load_si512(ints.add(n));
                if T::STORED {
                    upper = _mm512_add_epi32(upper, _mm512_set1_epi32((*notes)[1]));
                }
                let dot = if T::FOLDS {
                    Lanes::mul(Lanes::from_i32(upper), scales.d)
                } else {
                    let ints = _mm512_add_epi32(_mm512_slli_epi32::<3>(upper), _mm512_load_si512(ints.add(SIDE + n)));
                    // Below 2^22, so that these are the bits of `SHIFT` and the integer.
                    let minima = add_minima(_mm512_set1_epi32(SHIFT.to_bits() as i32), &scales.minima, notes);
                    let minima = Lanes::fma(_mm512_castsi512_ps(minima), scales.d_min, scales.shift);
                    Lanes::fma(Lanes::from_i32(ints), scales.d, minima)
                };
                let input = Lanes::splat(f32::from_bits((*notes)[0] as u32));
                let sum = &mut (*waiting.sums)[n].0;
                Lanes::store(Lanes::fma(dot, input, Lanes::load(sum)), sum);
            }
        }
    }
}

/// Adds the products of the pairs' minima and of what inputs' notes say of both blocks of each.
///
/// In assembly, since the compiler would load each note by an instruction of its own.
///
/// # Safety
/// The processor must have AVX-512 VNNI, and notes of a super-block be there.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn add_minima(mut sum: I, minima: &[I; PAIRS], notes: *const [i32; NOTES]) -> I {
    const { assert!(NOTES == 4 && PAIRS == 4) }
    // SAFETY: the instructions read the last of every second block's four notes and change only the sum.
    unsafe {
        asm!(
            "vpdpwssd {sum}, {first}, dword ptr [{notes} + 12]{{1to16}}",
            "vpdpwssd {sum}, {second}, dword ptr [{notes} + 44]{{1to16}}",
            "vpdpwssd {sum}, {third}, dword ptr [{notes} + 76]{{1to16}}",
            "vpdpwssd {sum}, {fourth}, dword ptr [{notes} + 108]{{1to16}}",
            sum = inout(zmm_reg) sum,
            first = in(zmm_reg) minima[0],
            second = in(zmm_reg) minima[1],
            third = in(zmm_reg) minima[2],
            fourth = in(zmm_reg) minima[3],
            notes = in(reg) notes,
            options(pure, readonly, nostack, preserves_flags),
        );
    }
    sum
}
