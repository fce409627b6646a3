//! The thread pool: every task once, panics, nesting, oversubscription, several callers.
//!
//! Thread counts exceed the cores of any machine this runs on, since that is where a barrier would collapse.
//! The panic test counts the tasks that ran besides the bad one.

use foretoken_kernels::{Parallel, ThreadPool, physical_cores};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

fn counts(tasks: usize) -> Vec<AtomicUsize> {
    (0..tasks).map(|_| AtomicUsize::new(0)).collect()
}

#[test]
fn every_task_runs_once_even_with_many_more_threads_than_cores() {
    for threads in [1, 2, 4, 16] {
        let pool = ThreadPool::new(threads);
        assert_eq!(pool.threads(), threads);
        for tasks in (0..40).chain([1000]).cycle().take(400) {
            let counts = counts(tasks);
            pool.run(tasks, &|task| {
                counts[task].fetch_add(1, Ordering::Relaxed);
            });
            assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == 1), "{threads} threads, {tasks} tasks");
        }
    }
}

#[test]
fn a_panic_is_raised_in_the_caller_after_the_other_tasks() {
    for threads in [1, 3] {
        let pool = ThreadPool::new(threads);
        for bad in 0..20 {
            let counts = counts(20);
            let raised = catch_unwind(AssertUnwindSafe(|| {
                pool.run(20, &|task| {
                    assert!(task != bad, "task {bad}");
                    counts[task].fetch_add(1, Ordering::Relaxed);
                });
            }));
            assert!(raised.is_err());
            let ran: usize = counts.iter().map(|count| count.load(Ordering::Relaxed)).sum();
            assert_eq!(ran, 19, "all other tasks ran");
        }
        let ran = AtomicUsize::new(0);
        pool.run(8, &|_| {
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 8, "the pool works on");
    }
}

#[test]
fn a_nested_region_runs_inline() {
    let pool = ThreadPool::new(3);
    let ran = AtomicUsize::new(0);
    pool.run(10, &|_| {
        let thread = std::thread::current().id();
        pool.run(10, &|_| {
            assert_eq!(std::thread::current().id(), thread);
            ran.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(ran.into_inner(), 100);
}

#[test]
fn several_callers_share_a_pool() {
    let (pool, ran) = (ThreadPool::new(2), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    pool.run(7, &|_| {
                        ran.fetch_add(1, Ordering::Relaxed);
                    });
                }
            });
        }
    });
    assert_eq!(ran.into_inner(), 4 * 200 * 7);
}

#[test]
fn a_sleeping_pool_wakes_up() {
    let pool = ThreadPool::new(4);
    for _ in 0..5 {
        std::thread::sleep(std::time::Duration::from_millis(2));
        let ran = AtomicUsize::new(0);
        pool.run(64, &|_| {
            std::thread::sleep(std::time::Duration::from_micros(200));
            ran.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(ran.into_inner(), 64);
    }
    assert!(physical_cores() >= 1);
}

#[test]
fn pinned_threads_have_a_core_each_and_run_every_task() {
    let pool = ThreadPool::pinned(3);
    let (runs, cores) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    pool.run(60, &|_| {
        runs.fetch_add(1, Ordering::Relaxed);
        let own = core_affinity::get_core_ids().map_or(1, |cores| cores.len());
        cores.lock().unwrap().push(own);
    });
    assert_eq!(runs.into_inner(), 60);
    assert!(cores.into_inner().unwrap().iter().all(|cores| *cores == 1));
}
