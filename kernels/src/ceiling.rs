//! What this machine does at best without further ado: the rate at which its threads read memory, plainly, and at which they
//! multiply, and what it costs them to begin together.
//!
//! Measured and not looked up, because the figures of a data sheet say nothing about a shared or virtual machine, and
//! in the same process and on the same threads as what is held against them.

use crate::bytes::{AlignedBytes, typed};
use crate::exec::Exec;
use crate::quant::BlockFormat;
#[cfg(target_arch = "x86_64")]
use crate::simd::amx::Tiles;
use crate::simd::int8::{BLOCK, QUAD, QUADS};
use crate::simd::{Asks, Kernel, LANES, Line, Simd, SimdLevel, dispatch};
use crate::weight::WeightDtype;
use std::hint::black_box;
use std::time::Instant;

/// Bytes of a task of the reading test.
const PART: usize = 1 << 20;
/// How many rows ahead [`ReadTest::rows_per_second`] asks for one.
const ROWS_AHEAD: usize = 32;
/// Steps of a task of the multiplying test.
const STEPS: usize = 200_000;
/// Regions of [`region_seconds`].
const REGIONS: u32 = 500;

/// Memory to read, far more than the caches hold.
pub struct ReadTest {
    bytes: AlignedBytes,
}

impl ReadTest {
    /// `len` bytes, rounded up to a MiB, all written once.
    pub fn new(len: usize) -> Self {
        let mut bytes = AlignedBytes::zeroed(len.next_multiple_of(PART));
        bytes.as_mut().fill(1);
        Self { bytes }
    }

    /// Bytes per second of one reading on all threads of `exec`: a plain one, as the processor's own prefetcher serves it. A walk
    /// that asks for what lies ahead may outdo it: on Emerald Rapids bf16 weights are read at 33 GB/s where this says 29.
    pub fn bytes_per_second(&self, exec: &Exec) -> f64 {
        let bytes = self.bytes.as_ref();
        let start = Instant::now();
        exec.run_in_stretches(bytes.len() / PART, &|task, _| {
            black_box(dispatch(exec.simd(), Sum(&bytes[task * PART..(task + 1) * PART])));
        });
        bytes.len() as f64 / start.elapsed().as_secs_f64()
    }

    /// Rows per second of `len` bytes, at least 64 and a multiple of 4, in an order: memory is parts of `slots` rows side by
    /// side, and of each the rows `order` are read. A row is asked for 32 rows ahead. What attention to slots in that order
    /// is held against.
    ///
    /// Panics if `len` is something else, a part does not fit the memory, or a row is not among its slots.
    pub fn rows_per_second(&self, exec: &Exec, (len, slots): (usize, usize), order: &[u32]) -> f64 {
        assert!(len >= size_of::<Line>() && len.is_multiple_of(4), "rows of {len} bytes");
        let (bytes, part) = (self.bytes.as_ref(), len * slots);
        assert!((1..=bytes.len()).contains(&part), "{slots} rows of {len} bytes in {} bytes", bytes.len());
        let parts = bytes.len() / part;
        let start = Instant::now();
        exec.run_in_stretches(parts, &|task, _| {
            let part = &bytes[task * part..(task + 1) * part];
            black_box(dispatch(exec.simd(), SumRows { part, len, order }));
        });
        (parts * order.len()) as f64 / start.elapsed().as_secs_f64()
    }
}

/// Some of the rows of a part.
struct SumRows<'a> {
    part: &'a [u8],
    len: usize,
    order: &'a [u32],
}

impl Kernel for SumRows<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let Self { part, len, order } = self;
        let mut sums = [S::splat(0.0); 4];
        for (at, row) in order.iter().enumerate() {
            if let Some(row) = order.get(at + ROWS_AHEAD) {
                let asked = part.as_ptr().wrapping_add(*row as usize * len);
                for at in (0..len).step_by(size_of::<Line>()) {
                    S::prefetch(asked.wrapping_add(at));
                }
                S::prefetch(asked.wrapping_add(len - 1));
            }
            let row: &[f32] = typed(&part[*row as usize * len..][..len]);
            for (at, vector) in row.as_chunks().0.iter().enumerate() {
                sums[at % 4] = S::max(sums[at % 4], S::load(vector));
            }
            if let (true, Some(last)) = (len % size_of::<Line>() > 0, row.last_chunk()) {
                sums[3] = S::max(sums[3], S::load(last));
            }
        }
        S::greatest(S::max(S::max(sums[0], sums[1]), S::max(sums[2], sums[3])))
    }
}

struct Sum<'a>(&'a [u8]);

impl Kernel for Sum<'_> {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let mut sums = [S::splat(0.0); 4];
        for chunk in typed::<f32>(self.0).as_chunks::<LANES>().0.as_chunks::<4>().0 {
            for (sum, chunk) in sums.iter_mut().zip(chunk) {
                *sum = S::max(*sum, S::load(chunk));
            }
        }
        S::greatest(S::max(S::max(sums[0], sums[1]), S::max(sums[2], sums[3])))
    }
}

/// Multiply-adds per second on all threads of `exec`, with the instructions that a linear of `dtype` uses and every
/// operand in a register or the first-level cache.
pub fn multiply_add_rate(exec: &Exec, dtype: WeightDtype) -> f64 {
    let tiles = exec.simd() == SimdLevel::Amx && (dtype == WeightDtype::Bf16 || dtype.is_quantised());
    let start = Instant::now();
    exec.pool().run(exec.threads(), &|_| {
        #[cfg(target_arch = "x86_64")]
        if tiles {
            return multiply_tiles(dtype);
        }
        black_box(dispatch(exec.simd(), Multiply(dtype)));
    });
    let per_step = if tiles { per_tile_step(dtype) } else { dispatch(exec.simd(), PerStep(dtype)) };
    let per_thread = per_step * STEPS;
    (per_thread * exec.threads()) as f64 / start.elapsed().as_secs_f64()
}

/// Seconds of a parallel region without work on all threads of `exec`, the mean of some hundreds: how long threads take to
/// hand work to each other, which tells how far apart their cores are.
pub fn region_seconds(exec: &Exec) -> f64 {
    let start = Instant::now();
    (0..REGIONS).for_each(|_| exec.pool().run(exec.threads(), &|_| {}));
    start.elapsed().as_secs_f64() / f64::from(REGIONS)
}

/// k of a tile: as many as weights share a scale, or as fit.
fn tile_depth(dtype: WeightDtype) -> usize {
    if dtype == WeightDtype::Q6K { BLOCK / 2 } else { BLOCK }
}

/// Multiply-adds of a step of [`multiply_tiles`].
fn per_tile_step(dtype: WeightDtype) -> usize {
    4 * LANES * LANES * tile_depth(dtype)
}

/// Four products of tiles a step, enough to hide their latency.
#[cfg(target_arch = "x86_64")]
fn multiply_tiles(dtype: WeightDtype) {
    let (rows, bytes) = if dtype == WeightDtype::Bf16 { (16, 64) } else { (tile_depth(dtype) / 4, tile_depth(dtype)) };
    let (sums, inputs, weights) = ((LANES, 64), (LANES, bytes), (rows, 64));
    // SAFETY: called only where the level is `Amx`.
    let tiles = unsafe { Tiles::new([sums, sums, sums, sums, inputs, inputs, weights, weights]) };
    for _ in 0..STEPS {
        if dtype == WeightDtype::Bf16 {
            tiles.multiply_bf16::<0, 4, 6>();
            tiles.multiply_bf16::<1, 4, 7>();
            tiles.multiply_bf16::<2, 5, 6>();
            tiles.multiply_bf16::<3, 5, 7>();
        } else {
            tiles.multiply_int8::<0, 4, 6>();
            tiles.multiply_int8::<1, 4, 7>();
            tiles.multiply_int8::<2, 5, 6>();
            tiles.multiply_int8::<3, 5, 7>();
        }
    }
}

/// Multiply-adds of a step of [`Multiply`].
struct PerStep(WeightDtype);

impl Kernel for PerStep {
    type Output = usize;

    #[inline(always)]
    fn run<S: Simd>(self) -> usize {
        match (self.0.is_quantised(), self.0) {
            (true, _) => S::PANEL_ROWS * LANES * BLOCK,
            (_, WeightDtype::Bf16) => SUMS * 2 * LANES / S::HALVES / S::PARTS,
            _ => SUMS * LANES / S::PARTS,
        }
    }
}

/// Sums that run side by side, enough to hide the latency of an addition at every level.
const SUMS: usize = 12;

struct Multiply(WeightDtype);

impl Kernel for Multiply {
    type Output = f32;

    #[inline(always)]
    fn run<S: Simd>(self) -> f32 {
        let lines = black_box([Line([1.5; LANES]); 2]);
        match BlockFormat::of(self.0) {
            None if self.0 == WeightDtype::Bf16 => {
                let (weights, input) =
                    (S::load_half(black_box(&[0x3f80; 2 * LANES]), 0, 0), S::load_input(&lines, 0, 0));
                let mut sums = [S::load_part(&[0.0; LANES], 0); SUMS];
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = S::dot_half(*sum, weights, input);
                    }
                }
                total::<S>(sums)
            }
            None => {
                let (weights, input) = (S::load_part(&lines[0].0, 0), S::load_part(&lines[1].0, 0));
                let mut sums = [S::load_part(&[0.0; LANES], 0); SUMS];
                for _ in 0..STEPS {
                    for sum in &mut sums {
                        *sum = S::fma_part(weights, input, *sum);
                    }
                }
                total::<S>(sums)
            }
            // `PANEL_ROWS` of a level is 4 or 8.
            Some(format) if S::PANEL_ROWS == 4 => blocks::<S, 4>(format),
            Some(format) => blocks::<S, 8>(format),
        }
    }
}

#[inline(always)]
fn total<S: Simd>(sums: [S::Part; SUMS]) -> f32 {
    let mut lanes = [0.0; LANES];
    for sum in sums {
        S::store_part(sum, black_box(&mut lanes), 0);
    }
    lanes[0]
}

#[inline(always)]
fn blocks<S: Simd, const N: usize>(format: BlockFormat) -> f32 {
    let (bytes, nibbles) = ([[3; QUAD]; QUADS], [[3; QUAD]; 4]);
    let words = [[1; N]; 2 * QUADS];
    let mut sums = [S::splat(0.0); N];
    for _ in 0..STEPS {
        let inputs = black_box(&words);
        let ints = match format {
            BlockFormat::Q8_0 | BlockFormat::Q6K => {
                S::dot_bytes(black_box(&bytes), &inputs[..S::WIDE_INPUT.words()], &[0; N], Asks::NONE)
            }
            BlockFormat::Q4_0 | BlockFormat::Q4K => {
                S::dot_nibbles(black_box(&nibbles), inputs.first_chunk().expect("enough"), &[0; N], Asks::NONE)
            }
        };
        for n in 0..N {
            sums[n] = S::add(sums[n], S::from_i32(ints[n]));
        }
    }
    let mut total = 0.0;
    for sum in sums {
        total += S::sum(sum);
    }
    total
}
