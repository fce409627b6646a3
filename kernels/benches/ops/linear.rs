//! The skinny linear: GB/s of weights at one row, and what more rows cost, t(n)/t(1).
//!
//! The table is what speculation lives on: verifying n rows must cost about as much as one.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::Linear;
use foretoken_kernels::ops::{LinearJob, PackedRows, linear};
use foretoken_kernels::{Exec, WeightDtype};

const SHAPES: [[usize; 2]; 3] = [[1024, 384], [4096, 384], [5632, 2048]];

pub fn bench(criterion: &mut Criterion) {
    let exec = machine::exec();
    println!("{:>10} {:>5} {:>9}  t(n)/t(1) at n = 2, 4, 6, 8, 64", "shape", "dtype", "t(1)");
    for shape in SHAPES {
        for dtype in WeightDtype::ALL {
            let times = [1, 2, 4, 6, 8, 64].map(|rows| Case::new(&exec, dtype, shape, rows).seconds_per_call());
            let gigabytes = dtype.byte_len(shape) as f64 / times[0] / 1e9;
            let ratios = times[1..].iter().map(|t| format!(" {:5.2}", t / times[0])).collect::<String>();
            println!("{:>10} {dtype:>5} {gigabytes:4.1} GB/s {ratios}", format!("{}x{}", shape[0], shape[1]));
        }
    }
    let mut group = criterion.benchmark_group("linear");
    for rows in [1, 6, 512] {
        let mut case = Case::new(&exec, WeightDtype::Bf16, SHAPES[2], rows);
        group.throughput(Throughput::Bytes(case.weight_bytes()));
        group.bench_function(BenchmarkId::new("5632x2048 bf16", rows), |b| b.iter(|| case.call()));
    }
    group.finish();
}

struct Case<'a> {
    exec: &'a Exec,
    linears: Vec<Linear>,
    packed: PackedRows,
    out: Vec<f32>,
    turn: usize,
}

impl<'a> Case<'a> {
    fn new(exec: &'a Exec, dtype: WeightDtype, shape: [usize; 2], rows: usize) -> Self {
        let linears = machine::weights(dtype, shape).into_iter();
        let linears = linears.map(|weight| Linear::new("bench", weight, None).expect("no bias")).collect();
        let mut packed = PackedRows::new();
        packed.pack(exec, dtype, shape[1], &machine::values(rows * shape[1]));
        Self { exec, linears, packed, out: vec![0.0; rows * shape[0]], turn: 0 }
    }

    fn weight_bytes(&self) -> u64 {
        self.linears[0].weight().byte_len() as u64
    }

    fn call(&mut self) {
        self.turn = (self.turn + 1) % self.linears.len();
        let job = LinearJob { linear: &self.linears[self.turn], out: &mut self.out };
        linear(self.exec, &self.packed, &mut [job]);
    }

    /// The fastest of several rounds through all weights.
    fn seconds_per_call(&mut self) -> f64 {
        let calls = self.linears.len().min(400_000 / (self.packed.rows() * self.linears[0].weight().rows()) + 3);
        machine::fastest(7, || (0..calls).for_each(|_| self.call())) / calls as f64
    }
}
