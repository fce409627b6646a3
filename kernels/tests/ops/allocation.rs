//! A steady-state pass allocates nothing, on any thread.
//!
//! The counter sees the whole process, and other tests allocate meanwhile. So a window is measured until one is
//! clean: what the pass itself allocates is in every window, and the test then fails when its time is over.

use crate::decoder_layer::{Model, Sequence};
use crate::support::levels;
use foretoken_kernels::WeightDtype;
use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

/// The system's allocator, counted.
pub struct Counting;

// SAFETY: every call is passed to `System` unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is System's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller's contract is System's.
        unsafe { System.dealloc(pointer, layout) }
    }
    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller's contract is System's.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

/// Fails if `pass` allocates each time it runs.
fn assert_no_allocation(what: &str, mut pass: impl FnMut()) {
    let deadline = Instant::now() + Duration::from_secs(20);
    let mut least = usize::MAX;
    while Instant::now() < deadline {
        let before = ALLOCATIONS.load(Ordering::SeqCst);
        pass();
        least = least.min(ALLOCATIONS.load(Ordering::SeqCst) - before);
        if least == 0 {
            return;
        }
    }
    panic!("{what}: at least {least} allocations in every pass");
}

/// Linear, rope, attention, norms and swiglu are all in a layer.
#[test]
fn a_decoder_layer_in_steady_state() {
    for exec in levels() {
        for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
            let model = Model::new(dtype);
            let mut sequence = Sequence::new(&model, 64);
            sequence.chain(&exec, &model, 0..20);
            let mut step = sequence.prepared_chain(&model, 20..26);
            step.run(&exec, &model);
            assert_no_allocation(&format!("{exec:?} {dtype}"), || step.run(&exec, &model));
        }
    }
}

#[test]
fn the_sampling_path_in_steady_state() {
    use foretoken_kernels::ops::{Penalties, PenaltyScratch, WarpParams, WarpScratch, gumbel_argmax, penalise, warp};
    let logits = crate::support::values(3, 5000);
    let (mut row, mut probs) = (logits.clone(), vec![0.0; 5000]);
    let (mut scratch, mut counts) = (WarpScratch::new(), PenaltyScratch::default());
    let penalties = Penalties { repetition: 1.2, ..Penalties::default() };
    let params = WarpParams { temperature: 0.7, top_k: 50, top_p: 0.9, min_p: 0.01 };
    let mut pass = || {
        row.copy_from_slice(&logits);
        penalise(&mut row, &[(3, 1.0)], &penalties, 0..40, 50..60, &mut counts);
        warp(&row, &params, &mut probs, &mut scratch).expect("finite");
        let key = foretoken_kernels::NoiseKey { seed: 1, completion: 0, stream: 0 };
        std::hint::black_box(gumbel_argmax(&probs, key));
    };
    pass();
    assert_no_allocation("sampling", pass);
}
