//! Once buffers have grown, a plan allocates nothing. (A KV manager in its library counts for itself, in its own tests.)

mod bed;

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use foretoken_cfg_pair::Policy;

struct Counting;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: the caller's contract is the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as in `alloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Allocations of many steps, sequences that start over included.
fn of_steps(mut step: impl FnMut()) -> u64 {
    (0..1000).for_each(|_| step());
    let before = ALLOCATIONS.get();
    (0..1000).for_each(|_| step());
    ALLOCATIONS.get() - before
}

#[test]
fn a_steady_plan_allocates_nothing() {
    for policy in [Policy::Fixed, Policy::Adaptive, Policy::CostAware] {
        let mut bed = bed::Bed::new(policy, "paged");
        assert_eq!(of_steps(|| bed.step()), 0, "{policy:?}");
    }
    let before = ALLOCATIONS.get();
    drop(vec![0u8; 1000]);
    assert_eq!(ALLOCATIONS.get(), before + 1, "the counter counts");
}
