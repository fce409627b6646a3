//! The linear in every format: bytes of weights per second for few rows, multiply-adds per second for many.
//!
//! Speculation lives on how little the time grows from one row to eight. `foretoken bench` gives that ratio for whole
//! models, within interleaved rounds; here each cell has its own ceiling. Weights rotate, so that they come from memory, but
//! for those that are called cached.

use crate::machine;
use criterion::{BenchmarkId, Criterion, Throughput};
use foretoken_kernels::blocks::Linear;
use foretoken_kernels::ops::{LinearJob, PackedRows, linear};
use foretoken_kernels::{Exec, WeightDtype};

/// The MLP's of a 1.1 B and of a 134 M model.
const SHAPES: [[usize; 2]; 2] = [[5632, 2048], [2048, 768]];
/// One that caches hold, and the rows it is multiplied with.
const CACHED: [usize; 2] = [1024, 1024];
const CACHED_ROWS: usize = 16;
/// Rows from which multiplying and not reading is what counts.
const MANY: usize = 8;

pub fn bench(criterion: &mut Criterion) {
    let exec = machine::exec();
    let mut group = criterion.benchmark_group("linear");
    for [outs, ins] in SHAPES {
        for dtype in WeightDtype::ALL {
            let linears: Vec<Linear> = machine::weights(dtype, [outs, ins])
                .into_iter()
                .map(|weight| Linear::new("bench", weight.arranged(&exec), None).expect("no bias"))
                .collect();
            for rows in [1, 2, 4, 8, 16, 64, 512] {
                let mut case = Case::new(&exec, &linears, rows);
                group.throughput(match rows < MANY {
                    true => Throughput::Bytes(linears[0].weight().byte_len() as u64),
                    false => Throughput::Elements((rows * outs * ins) as u64),
                });
                let name = BenchmarkId::new(format!("{dtype} {outs}x{ins}"), rows);
                group.bench_function(name, |b| b.iter(|| case.call()));
            }
        }
    }
    // Weights that stay in a core's own cache: what the walk itself takes of the rate of multiplying.
    let [outs, ins] = CACHED;
    for dtype in WeightDtype::ALL.into_iter().filter(|dtype| dtype.is_quantised()) {
        let weight = machine::quantised(dtype, CACHED);
        let linears = [Linear::new("bench", weight.arranged(&exec), None).expect("no bias")];
        let mut case = Case::new(&exec, &linears, CACHED_ROWS);
        group.throughput(Throughput::Elements((CACHED_ROWS * outs * ins) as u64));
        let name = BenchmarkId::new(format!("{dtype} {outs}x{ins} cached"), CACHED_ROWS);
        group.bench_function(name, |b| b.iter(|| case.call()));
    }
    group.finish();
}

struct Case<'a> {
    exec: &'a Exec,
    linears: &'a [Linear],
    packed: PackedRows,
    out: Vec<f32>,
    turn: usize,
}

impl<'a> Case<'a> {
    fn new(exec: &'a Exec, linears: &'a [Linear], rows: usize) -> Self {
        let weight = linears[0].weight();
        let mut packed = PackedRows::new();
        packed.pack(exec, weight, &machine::values(rows * weight.cols()));
        Self { exec, linears, packed, out: vec![0.0; rows * weight.rows()], turn: 0 }
    }

    fn call(&mut self) {
        self.turn = (self.turn + 1) % self.linears.len();
        let job = LinearJob { linear: &self.linears[self.turn], out: &mut self.out, adds: false };
        linear(self.exec, &self.packed, &mut [job]);
    }
}
