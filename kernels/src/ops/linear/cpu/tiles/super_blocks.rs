//! q4_K, and q6_K and q8_0 that fold, by matrix instructions, a super-block at a time.
//!
//! A block's scale of q4_K has 6 bits: 8 times its upper three and its lower three. Either times a weight of 4 bits is at most
//! 7 * 15, a signed byte, so a super-block becomes two planes of bytes, whose dots with 256 inputs add up in two tiles: no
//! block's dot is stored and scaled by itself. Minima go with sums of the inputs. All of it is integers, and gives the bits
//! of `panels`. One that folds is a single plane of signed bytes, to whose integers nothing is added: half of the products and
//! of what is stored. Of q8_0 it is there as it is stored, biased.
//!
//! While tiles multiply a super-block, vectors unpack the next one (`order`, `formats`) and scale the integers of the last
//! (`scales`). A pair is unpacked over the planes that tiles have just read: planes of two super-blocks left the first-level
//! cache no room for inputs, and a bare loop over 16 rows took 1.15 times as long.
//!
//! All bands of a task are one walk, a step of it is a function with registers of its own, and a panel's sums go out with its
//! last super-block: written at a band's end, so many lines at once held up what came behind. Together 16 rows of q4 take 0.95
//! of the time, a pass of a model of 134 M parameters 0.92.

mod formats;
mod order;
mod scales;

pub(super) use formats::{FoldedQ4K, FoldedQ6K, FoldedQ8_0, Q4K};

use super::{BandSums, GROUPS, Groups, Lanes, SIDE, Sums, WeightBlock};
use crate::ops::linear::pack::NOTES;
use crate::quant::{BAND, PANEL, Pair, SUPER};
use crate::simd::amx::Tiles;
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{LANES, Line, Simd};
use formats::SuperFormat;
use order::SuperBlocks;
use scales::Scales;
use std::arch::x86_64::*;
use std::mem::MaybeUninit;

/// Pairs of blocks of a super-block, each of them the k of a tile.
const PAIRS: usize = SUPER / 2;
/// Rows that are scaled with each of them.
const SCALED: usize = SIDE / PAIRS;

/// A pair of blocks as bytes: times the upper or the lower bits of their scales, or folded.
type Plane = [MaybeUninit<[u8; QUAD]>; 2 * QUADS];
/// A super-block's integers by either plane, a line for each input row.
type Ints = [[[i32; LANES]; SIDE]; 2];

#[repr(C, align(64))]
struct Scratch {
    /// Of this super-block, and pair by pair of the next: as many of each pair as the format has.
    planes: [Plane; 2 * PAIRS],
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
            planes: [[MaybeUninit::uninit(); _]; _],
            scales: [MaybeUninit::uninit(); 2],
            ints: [MaybeUninit::uninit(); 2],
        };
        let mut sums: BandSums = [[MaybeUninit::uninit(); BAND]; GROUPS];
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
            walk.clear(&mut sums, BAND);
            let mut block_walk = BlockWalk::<T, Q> {
                block: self,
                walk: &walk,
                tiles: &tiles,
                super_blocks: SuperBlocks::new(self),
                blocks: self.linear.weight().cols().div_ceil(BLOCK),
                stride: self.x.row_bytes(),
                scratch: &mut scratch,
            };
            // SAFETY: tiles are configured for so many rows, and sums were set.
            unsafe {
                match rows == SIDE {
                    true => block_walk.run::<true>(&inputs[..groups], &mut sums),
                    false => block_walk.run::<false>(&inputs[..groups], &mut sums),
                }
            }
        }
    }
}

/// Makes the planes of a pair; asks for the pairs ahead.
#[inline(always)]
fn unpack<T: SuperFormat<Q>, const Q: usize>(pair: &Pair<Q>, planes: &mut [Plane]) {
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

/// Whose sums they are: a panel's and a group of inputs'.
#[derive(Clone, Copy)]
struct PanelSums {
    panel: usize,
    group: usize,
}

/// Integers that wait to be scaled: of which buffer's super-block, the first row's notes, the sums, and whose these are if
/// they are complete then.
#[derive(Clone, Copy)]
struct Waiting {
    buffer: usize,
    notes: *const u8,
    sums: *mut Sums,
    complete: Option<PanelSums>,
}

/// A super-block and a group of inputs.
#[derive(Clone, Copy)]
struct Step<'a, const Q: usize> {
    tiles: &'a Tiles,
    pairs: &'a [Pair<Q>],
    /// The super-block's words of the group's first row; bytes from one row to the next, and how many there are.
    inputs: *const u8,
    stride: usize,
    rows: usize,
    /// What is to be unpacked meanwhile, and scaled.
    unpacked: &'a [Pair<Q>],
    last: Option<Waiting>,
    /// Where the first row's sums will be written, and values from one row to the next: in a panel's first step of the last
    /// span, which is early enough.
    outputs: Option<(*const f32, usize)>,
}

impl<const Q: usize> Step<'_, Q> {
    /// Whether it is like most: nothing is missing, and no outputs are asked for.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        [self.pairs.len(), self.unpacked.len()] == [PAIRS; 2] && self.last.is_some() && self.outputs.is_none()
    }
}

/// A block of weight rows times the groups of input rows of a walk.
struct BlockWalk<'a, T, const Q: usize> {
    block: &'a WeightBlock<'a>,
    walk: &'a Groups,
    tiles: &'a Tiles,
    super_blocks: SuperBlocks<'a, T, Q>,
    /// Blocks of a row.
    blocks: usize,
    /// Bytes from one input row to the next.
    stride: usize,
    scratch: &'a mut Scratch,
}

impl<T: SuperFormat<Q>, const Q: usize> BlockWalk<'_, T, Q> {
    /// Writes what the super-blocks give for the groups, whose first rows `groups` are.
    ///
    /// # Safety
    /// Tiles must be configured for so many rows, which must be there, and sums be zeros.
    #[inline(always)]
    unsafe fn run<const FULL: bool>(&mut self, groups: &[*const u8], sums: &mut BandSums) {
        let mut next = self.super_blocks.next();
        if let Some(next) = next {
            for (pair, planes) in next.pairs.iter().zip(self.scratch.planes.chunks_mut(T::PLANES)) {
                unpack::<T, Q>(pair, planes);
            }
        }
        let (mut buffer, mut item) = (0, 0);
        let mut last = None;
        while let Some(this) = next {
            next = self.super_blocks.next();
            Scales::write::<T, Q>(&mut self.scratch.scales[buffer], &this);
            let (words, notes) = (this.first * BLOCK, self.blocks * BLOCK + this.first * size_of::<[i32; NOTES]>());
            for (group, inputs) in groups.iter().enumerate() {
                // In place, so by the last group.
                let unpacked = if group + 1 == groups.len() { next.map_or(&[][..], |next| next.pairs) } else { &[] };
                let sums_of = PanelSums { panel: this.panel, group };
                let complete = (this.first + SUPER >= self.blocks).then_some(sums_of);
                let outputs = (this.first == self.super_blocks.last_span()).then(|| self.outputs(sums_of));
                let step = Step {
                    tiles: self.tiles,
                    pairs: this.pairs,
                    inputs: inputs.wrapping_add(words),
                    stride: self.stride,
                    rows: self.walk.rows,
                    unpacked,
                    last,
                    outputs,
                };
                // SAFETY: the caller's; this super-block was unpacked.
                unsafe {
                    match (item, step.is_whole()) {
                        (0, true) => Self::step::<0, 1, FULL, true>(&step, self.scratch),
                        (0, false) => Self::step::<0, 1, FULL, false>(&step, self.scratch),
                        (_, true) => Self::step::<2, 3, FULL, true>(&step, self.scratch),
                        (_, false) => Self::step::<2, 3, FULL, false>(&step, self.scratch),
                    }
                    self.put(last);
                }
                let (notes, sums) = (inputs.wrapping_add(notes), sums[group][this.place].as_mut_ptr());
                last = Some(Waiting { buffer, notes, sums, complete });
                item = 1 - item;
            }
            buffer = 1 - buffer;
        }
        if let Some(waiting) = last {
            // SAFETY: the caller's.
            unsafe {
                for pair in 0..PAIRS {
                    Self::scale::<FULL>(waiting, (self.stride, self.walk.rows), self.scratch, 1 - item, pair, |_| {});
                }
                self.put(last);
            }
        }
    }

    /// Where the outputs of a panel start for a group, and values from one row to the next.
    #[inline(always)]
    fn outputs(&self, PanelSums { panel, group }: PanelSums) -> (*const f32, usize) {
        let outs = self.block.linear.weight().rows();
        (self.block.out.address(self.walk.start(group) * outs + panel * PANEL), outs)
    }

    /// Writes sums that are complete, and sets them to zero for the next band.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx), and the sums be there.
    #[inline(always)]
    unsafe fn put(&self, last: Option<Waiting>) {
        if let Some(Waiting { sums, complete: Some(complete), .. }) = last {
            // SAFETY: the caller's.
            unsafe { self.put_sums(complete, &mut *sums) };
        }
    }

    /// The same of these; one panel in many super-blocks.
    ///
    /// # Safety
    /// The level must be [`SimdLevel::Amx`](crate::SimdLevel::Amx).
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn put_sums(&self, PanelSums { panel, group }: PanelSums, sums: &mut Sums) {
        let new = self.walk.new_rows(group);
        self.block.put_lines::<Lanes>(self.walk.start(group) + new.start, panel * PANEL, &sums[new]);
        sums.fill(Line([0.0; LANES]));
    }

    /// The integers of a super-block and a group of inputs, in tiles C and D; meanwhile unpacks the next one, and scales what
    /// came before. A function of its own, so that registers are for what it needs; WHOLE ones are spared all questions.
    ///
    /// # Safety
    /// As of [`Self::run`]; the super-block must be unpacked, and of what came before the scales and integers be there.
    #[inline(never)]
    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx2,fma,f16c")]
    unsafe fn step<const C: u8, const D: u8, const FULL: bool, const WHOLE: bool>(
        step: &Step<'_, Q>,
        scratch: &mut Scratch,
    ) {
        // Read once, so that the compiler knows what is asserted.
        let step = *step;
        assert!(!WHOLE || step.is_whole());
        step.tiles.zero::<C>();
        if !T::FOLDS {
            step.tiles.zero::<D>();
        }
        // SAFETY: the caller's.
        unsafe {
            Self::pair::<C, D, 4, FULL>(&step, scratch, 0);
            Self::pair::<C, D, 5, FULL>(&step, scratch, 1);
            Self::pair::<C, D, 4, FULL>(&step, scratch, 2);
            Self::pair::<C, D, 5, FULL>(&step, scratch, 3);
            // A tile of sums has at most 16 lines.
            let ints = scratch.ints[usize::from(C / 2)].as_mut_ptr().cast::<u8>();
            step.tiles.store::<C>(ints, QUAD);
            if !T::FOLDS {
                step.tiles.store::<D>(ints.add(size_of::<Ints>() / 2), QUAD);
            }
        }
    }

    /// A pair of a step, if there is that one, and the parts of the rest that go with it.
    ///
    /// # Safety
    /// As of [`Self::step`].
    #[inline(always)]
    unsafe fn pair<const C: u8, const D: u8, const A: u8, const FULL: bool>(
        step: &Step<'_, Q>,
        scratch: &mut Scratch,
        pair: usize,
    ) {
        if let Some(stored) = step.pairs.get(pair) {
            let planes: *const Plane = &raw const scratch.planes[T::PLANES * pair];
            let upper = if T::STORED { stored.quads.as_ptr().cast() } else { planes.cast::<u8>() };
            let inputs = step.inputs.wrapping_add(2 * pair * BLOCK);
            // SAFETY: the caller's. If a row lacks the second block, its notes follow, by which zeros are multiplied.
            unsafe {
                step.tiles.load::<A>(inputs, step.stride);
                step.tiles.load::<6>(upper, QUAD);
                if T::STORED {
                    step.tiles.multiply_int8::<C, A, 6>();
                } else if T::FOLDS {
                    step.tiles.multiply_signed::<C, A, 6>();
                } else {
                    step.tiles.load::<7>(planes.add(1).cast(), QUAD);
                    step.tiles.multiply_int8::<C, A, 6>();
                    step.tiles.multiply_int8::<D, A, 7>();
                }
            }
        }
        let unpacked = step.unpacked.get(pair);
        if let Some(unpacked) = unpacked {
            unpack::<T, Q>(unpacked, &mut scratch.planes[T::PLANES * pair..][..T::PLANES]);
        }
        if let Some((outputs, outs)) = step.outputs {
            for n in (SCALED * pair..SCALED * (pair + 1)).filter(|n| FULL || *n < step.rows) {
                Lanes::prefetch_write(outputs.wrapping_add(n * outs).cast());
            }
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
            Some(last) => unsafe {
                Self::scale::<FULL>(last, (step.stride, step.rows), scratch, 1 - usize::from(C / 2), pair, between);
            },
            None => (0..SCALED).for_each(between),
        }
    }

    /// Adds the integers of the rows that go with a pair to their sums; FULL is a group of 16 rows. `between` is called before
    /// each of them.
    ///
    /// # Safety
    /// As of [`Self::run`]; the integers and scales must be there.
    #[inline(always)]
    unsafe fn scale<const FULL: bool>(
        waiting: Waiting,
        (stride, rows): (usize, usize),
        scratch: &Scratch,
        item: usize,
        pair: usize,
        between: impl Fn(usize),
    ) {
        let first = SCALED * pair;
        // SAFETY: the caller's.
        let scales = unsafe { Scales::read::<T, Q>(&scratch.scales[waiting.buffer]) };
        let ints = scratch.ints[item].as_ptr().cast::<__m512i>();
        let sums = waiting.sums;
        let mut notes = waiting.notes.wrapping_add(first * stride);
        for row in 0..SCALED {
            between(row);
            let n = first + row;
            if !FULL && n >= rows {
                continue;
            }
            // SAFETY: the caller's.
            unsafe {
                let sum = scales.add::<T, Q>(ints.add(n), notes.cast(), Lanes::load(&(*sums)[n].0));
                Lanes::store(sum, &mut (*sums)[n].0);
            }
            notes = notes.wrapping_add(stride);
        }
    }
}
