//! What every op costs on this machine, against the bandwidth it could have.
//!
//! One module per op. `cargo bench -p foretoken-kernels --bench ops -- linear` runs one of them. Runs are short by
//! default; `--measurement-time` and `--sample-size` lengthen them. Weights rotate through a buffer larger than the
//! second-level cache. `record` keeps a run's results, each against the measured ceiling, in `benches/results`.

mod argmax;
mod attention;
mod embed;
mod guide;
mod gumbel;
mod linear;
mod machine;
mod penalise;
mod record;
mod rmsnorm;
mod rope_kv;
mod sample;
mod softmax;
mod swiglu;
mod warp;

use criterion::Criterion;
use std::time::{Duration, SystemTime};

fn main() {
    let short = Criterion::default().without_plots();
    let short = short.sample_size(10).warm_up_time(Duration::from_millis(100));
    let mut criterion = short.measurement_time(Duration::from_millis(300)).configure_from_args();
    let (started, ceilings) = (SystemTime::now(), machine::ceilings());
    linear::bench(&mut criterion);
    attention::bench(&mut criterion);
    rmsnorm::bench(&mut criterion);
    rope_kv::bench(&mut criterion);
    swiglu::bench(&mut criterion);
    embed::bench(&mut criterion);
    softmax::bench(&mut criterion);
    argmax::bench(&mut criterion);
    guide::bench(&mut criterion);
    penalise::bench(&mut criterion);
    warp::bench(&mut criterion);
    sample::bench(&mut criterion);
    gumbel::bench(&mut criterion);
    criterion.final_summary();
    record::record(&ceilings, started);
}
