//! A steady-state decode step of the engine and its kernels allocates nothing.
//!
//! The counter counts this thread's allocations only; the pool's workers run kernels, which count theirs in their own
//! crate's test. Text is off: detokenising is the tokenizer library's work and returns strings.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use foretoken::Request;

use super::support::*;

struct Counting;

thread_local! {
    static COUNT: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: defers to the system's allocator; the counter is a plain thread-local cell without a destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: passed on from the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: passed on from the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: passed on from the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations of steps 4 to 40 of a run that the engine has seen once: buffers have the size they need.
fn allocations(parts: &str, sampling: &foretoken::config::Sampling, sequences: usize) -> usize {
    // Integrity checks recount everything and so allocate; they are off as in production.
    let mut config = config(parts);
    config.checks = false;
    let mut engine = foretoken::Engine::new(config).expect("a good config");
    let prompts = prompts(&engine, sequences);
    let mut counted = 0;
    for _ in 0..2 {
        for prompt in &prompts {
            engine.submit(Request { prompt: prompt.clone(), sampling: sampling.clone(), text: false }).expect("good");
        }
        let mut tokens = 0_usize;
        (0..4).for_each(|_| engine.step(&mut |_| tokens += 1));
        let before = COUNT.with(Cell::get);
        (0..36).for_each(|_| engine.step(&mut |_| tokens += 1));
        counted = COUNT.with(Cell::get) - before;
        assert!(engine.has_work() && tokens >= 39, "the steps counted were not steady decode steps");
        engine.run(&mut |_| ());
    }
    counted
}

#[test]
fn a_steady_decode_step_allocates_nothing() {
    // A library has its own allocator, so the proposers' and samplers' own allocations are not the engine's.
    for (name, parts) in [("plain", PLAIN), ("ngram", NGRAM), ("draft-model", DRAFT_MODEL)] {
        for (mode, sampling) in [("greedy", greedy(400)), ("sampled", sampled(400, 2))] {
            for sequences in [1, 4] {
                let counted = allocations(parts, &sampling, sequences);
                assert_eq!(counted, 0, "{name}, {mode}, {sequences} sequences: {counted} allocations in 36 steps");
            }
        }
    }
}
