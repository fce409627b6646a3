//! The machine the numbers belong to: its ceilings, the cost of a region, and the data to bench on.

use foretoken_kernels::ceiling::{ReadTest, multiply_add_rate, region_seconds};
use foretoken_kernels::{Exec, SharedBytes, Weight, WeightDtype, physical_cores};
use std::sync::{Arc, LazyLock};

/// Bytes through which weights rotate, so that each is out of all caches when its turn comes again: a server's third level
/// has 260 MiB.
pub const ROTATION: usize = 512 << 20;

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
    (0..count).map(|_| quantised(dtype, shape)).collect()
}

/// One quantised weight.
pub fn quantised(dtype: WeightDtype, shape: [usize; 2]) -> Weight {
    Weight::from_rows(dtype, shape, |row, out| {
        out.iter_mut().enumerate().for_each(|(i, out)| *out = ((row * 131 + i * 7919) % 1009) as f32 / 504.5 - 1.0);
    })
}

/// Numbers that look like activations.
pub fn values(len: usize) -> Vec<f32> {
    (0..len).map(|i| ((i * 7919 % 1009) as f32 / 504.5 - 1.0) * 3.0).collect()
}

/// What the numbers are to be held against.
pub struct Ceilings {
    /// Threads and instructions.
    pub exec: Exec,
    /// Bytes per second at which all cores read memory.
    pub read: f64,
    /// Multiply-adds per second of each dtype's linear, operands in registers.
    pub rates: Vec<(WeightDtype, f64)>,
    /// Seconds of a parallel region without work.
    pub region: f64,
}

/// Medians of a few measurements on all cores.
pub fn ceilings() -> Ceilings {
    let exec = exec();
    let median = |measure: &dyn Fn() -> f64| {
        let mut samples: Vec<f64> = (0..9).map(|_| measure()).collect();
        samples.sort_by(f64::total_cmp);
        samples[samples.len() / 2]
    };
    let memory = ReadTest::new(ROTATION);
    let read = median(&|| memory.bytes_per_second(&exec));
    let rates = WeightDtype::ALL.map(|dtype| (dtype, median(&|| multiply_add_rate(&exec, dtype)))).into();
    let region = median(&|| region_seconds(&exec));
    Ceilings { exec, read, rates, region }
}
