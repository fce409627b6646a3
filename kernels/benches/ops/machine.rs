//! The machine the numbers belong to: its ceiling for reading, the cost of a region, and the data to bench on.
//!
//! The ceiling is measured with the same threads and the same buffer as the linears, since a figure from a data sheet
//! says nothing about a shared or virtual machine.

use foretoken_kernels::{Exec, SharedBytes, Weight, WeightDtype, physical_cores};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

/// Bytes through which weights rotate, so that each is out of the second-level cache when its turn comes again.
pub const ROTATION: usize = 256 << 20;

static BUFFER: LazyLock<Arc<Vec<u8>>> = LazyLock::new(|| {
    // 0x3c3c is 0.0115 in bf16 and 0x3c3c3c3c is 0.0115 in f32: ordinary numbers.
    Arc::new(vec![0x3c; ROTATION])
});

/// All cores.
pub fn exec() -> Exec {
    Exec::cpu(physical_cores()).expect("FORETOKEN_SIMD names a level this machine has")
}

/// Weights of one shape that together fill the rotation.
pub fn weights(dtype: WeightDtype, shape: [usize; 2]) -> Vec<Weight> {
    let count = (ROTATION / dtype.byte_len(shape)).max(1);
    if !dtype.is_quantised() {
        let bytes = dtype.byte_len(shape);
        let part = |i: usize| SharedBytes::new(BUFFER.clone(), i * bytes..(i + 1) * bytes).expect("inside the buffer");
        return (0..count).map(|i| Weight::new("bench", dtype, shape, part(i)).expect("sized")).collect();
    }
    let fill = |row: usize, out: &mut [f32]| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = ((row * 131 + i * 7919) % 1009) as f32 / 504.5 - 1.0);
    };
    (0..count).map(|_| Weight::from_rows(dtype, shape, fill)).collect()
}

/// Numbers that look like activations.
pub fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 3.0).collect()
}

/// Seconds of the fastest of `repeats` calls.
pub fn fastest(repeats: usize, mut call: impl FnMut()) -> f64 {
    let time = |call: &mut dyn FnMut()| {
        let start = Instant::now();
        call();
        start.elapsed().as_secs_f64()
    };
    (0..repeats).map(|_| time(&mut call)).fold(f64::INFINITY, f64::min)
}

/// Bytes per second at which all cores read the rotation.
pub fn read_ceiling(exec: &Exec) -> f64 {
    let (buffer, part) = (BUFFER.clone(), 1 << 20);
    let total = AtomicU64::new(0);
    let seconds = fastest(5, || {
        exec.pool().run(ROTATION / part, &|task| {
            let words = buffer[task * part..(task + 1) * part].as_chunks::<8>().0;
            let mut sums = [0u64; 32];
            for words in words.chunks_exact(32) {
                for (sum, word) in sums.iter_mut().zip(words) {
                    *sum ^= u64::from_ne_bytes(*word);
                }
            }
            total.fetch_add(sums.iter().fold(0, |a, b| a ^ b), Ordering::Relaxed);
        });
    });
    std::hint::black_box(total);
    ROTATION as f64 / seconds
}

/// Prints what the other numbers are to be held against.
pub fn describe() {
    let exec = exec();
    let region = fastest(20, || (0..1000).for_each(|_| exec.pool().run(exec.threads(), &|_| {}))) / 1000.0;
    println!("{exec:?}, read ceiling {:.1} GB/s, empty region {:.2} us", read_ceiling(&exec) / 1e9, region * 1e6);
}
