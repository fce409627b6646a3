//! What planning and keeping the books of a step costs: schedule, reserve, commit and report of 256 sequences with drafts.
//!
//! A step of so many sequences takes milliseconds at least; this is to stay below 50 microseconds of it.
#![forbid(unsafe_code)]

#[path = "../tests/bed/mod.rs"]
mod bed;

use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_cfg_pair::Policy;

fn benches(criterion: &mut Criterion) {
    for (name, policy) in [("fixed", Policy::Fixed), ("adaptive", Policy::Adaptive), ("cost-aware", Policy::CostAware)]
    {
        for kv in ["paged", "radix"] {
            let mut bed = bed::Bed::new(policy, kv);
            criterion.bench_function(&format!("a step of 256, {name}, {kv}"), |bencher| bencher.iter(|| bed.step()));
        }
    }
}

criterion_group!(all, benches);
criterion_main!(all);
