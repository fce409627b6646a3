//! Once buffers have grown, a plan allocates nothing. (A KV manager in its library counts for itself, in its own tests.)

mod bed;
#[path = "../../../counting.rs"]
mod counting;

use counting::allocations;
use foretoken_cfg_pair::Policy;

/// Allocations of many steps, sequences that start over included.
fn of_steps(mut step: impl FnMut()) -> u64 {
    (0..1000).for_each(|_| step());
    let before = allocations();
    (0..1000).for_each(|_| step());
    allocations() - before
}

#[test]
fn a_steady_plan_allocates_nothing() {
    for policy in [Policy::Fixed, Policy::Adaptive, Policy::CostAware] {
        let mut bed = bed::Bed::new(policy, "paged");
        assert_eq!(of_steps(|| bed.step()), 0, "{policy:?}");
    }
    let before = allocations();
    drop(vec![0u8; 1000]);
    assert_eq!(allocations(), before + 1, "the counter counts");
}
