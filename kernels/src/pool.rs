//! The process's own threads, and the trait through which plugins borrow the host's.
//!
//! A decode step runs dozens of regions of some ten microseconds each, so entering one must cost about a
//! microsecond: workers spin for a moment before they sleep, tasks are claimed from one counter, and nothing is
//! allocated. The caller never waits for a worker that has not started: it works until no task is left and then
//! waits only for workers that are inside a task. So an oversubscribed machine loses speed, not a barrier per region.
//! A region entered while the pool is busy (nested, or from another thread) runs inline on its caller; results do not
//! depend on who runs a task, so this is not visible.

use core_affinity::CoreId;
use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a thread spins without giving its core away, and until when it yields before it sleeps.
const SPIN: Duration = Duration::from_micros(20);
const YIELD: Duration = Duration::from_micros(60);

/// Threads that run numbered tasks.
pub trait Parallel: Send + Sync {
    /// How many tasks run at once, the caller's thread included.
    fn threads(&self) -> usize;

    /// Calls `task(0) .. task(tasks - 1)`, each once, in any order, and returns when all have finished.
    /// A panic in a task is raised again here, after the others are done.
    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync));
}

/// The calling thread alone.
pub(crate) struct Inline;

impl Parallel for Inline {
    fn threads(&self) -> usize {
        1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        run_inline(tasks, task);
    }
}

/// All tasks on this thread, a panic held back until the others are done.
fn run_inline(tasks: usize, task: &Task<'_>) {
    let mut panic = None;
    for index in 0..tasks {
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index))) {
            panic.get_or_insert(payload);
        }
    }
    if let Some(payload) = panic {
        resume_unwind(payload);
    }
}

type Task<'a> = dyn Fn(usize) + Sync + 'a;

/// The region being run; valid while `Shared::open` holds or a worker is inside.
#[derive(Clone, Copy)]
struct Region {
    task: *const Task<'static>,
    tasks: usize,
}

/// Alone in its cache lines, of which some processors fetch two at once: whoever changes what lies beside it takes them away
/// from all other cores.
#[derive(Default)]
#[repr(align(128))]
pub(crate) struct Apart<T>(pub T);

/// What threads change by turns lies apart: of two cores without a common cache an empty region takes 0.6 us so, and 1.0 with
/// `region` and `sleepers` beside what workers watch, and a pass of 8.9M weights 0.93 of the time.
#[derive(Default)]
struct Shared {
    region: Apart<UnsafeCell<Option<Region>>>,
    /// A caller has the pool.
    busy: AtomicBool,
    /// `region` may be entered.
    open: AtomicBool,
    /// Counts regions, so that a worker enters each at most once.
    generation: AtomicUsize,
    /// Workers between entering and leaving.
    inside: Apart<AtomicUsize>,
    /// Next task to claim.
    next: Apart<AtomicUsize>,
    sleepers: Apart<AtomicUsize>,
    /// The core on which the last caller woke sleepers.
    waking_core: AtomicI32,
    caller_sleeps: AtomicBool,
    stop: AtomicBool,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
    sleep: Mutex<()>,
    wake: Condvar,
    done: Condvar,
}

// SAFETY: `region` is written only by the caller that holds `busy`, while `open` is false and `inside` was seen as 0,
// and read only by workers that counted themselves into `inside` before they saw `open`; all else is Sync.
unsafe impl Sync for Shared {}
// SAFETY: the raw pointer in `region` points to a `Sync` closure, which may be called from any thread.
unsafe impl Send for Shared {}

/// N - 1 workers and the caller.
pub struct ThreadPool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl ThreadPool {
    /// A pool in which `threads` threads work (at least 1), the caller being one of them.
    pub fn new(threads: usize) -> Self {
        Self::start(threads, &[])
    }

    /// The same, each thread bound to a core of its own, the calling thread to the first; with more threads than cores
    /// they share. What the system refuses stays unbound.
    pub fn pinned(threads: usize) -> Self {
        Self::start(threads, &core_affinity::get_core_ids().unwrap_or_default())
    }

    fn start(threads: usize, cores: &[CoreId]) -> Self {
        let core = |index: usize| cores.get(index % cores.len().max(1)).copied();
        let shared = Arc::new(Shared::default());
        let workers = (1..threads.max(1))
            .map(|index| {
                let (shared, core) = (Arc::clone(&shared), core(index));
                let builder = std::thread::Builder::new().name(format!("foretoken-{index}"));
                let work = move || {
                    core.map(core_affinity::set_for_current);
                    shared.work();
                };
                builder.spawn(work).expect("the system refuses another thread")
            })
            .collect();
        core(0).map(core_affinity::set_for_current);
        Self { shared, workers }
    }
}

impl Parallel for ThreadPool {
    fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        let alone = tasks < 2 || self.workers.is_empty();
        if alone || self.shared.busy.swap(true, Ordering::Acquire) {
            return run_inline(tasks, task);
        }
        let panic = self.shared.run_region(tasks, task);
        self.shared.busy.store(false, Ordering::Release);
        if let Some(payload) = panic {
            resume_unwind(payload);
        }
    }
}

impl Drop for ThreadPool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        self.shared.generation.fetch_add(1, Ordering::SeqCst);
        drop(self.shared.lock_sleep());
        self.shared.wake.notify_all();
        for worker in self.workers.drain(..) {
            // A worker catches every panic of a task, so there is none to pass on.
            let _ = worker.join();
        }
    }
}

impl Shared {
    fn lock_sleep(&self) -> MutexGuard<'_, ()> {
        self.sleep.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the region, works on it, and waits for the workers that joined. Returns the first panic.
    fn run_region(&self, tasks: usize, task: &Task<'_>) -> Option<Box<dyn Any + Send>> {
        // SAFETY: only the lifetime is erased; no worker uses the pointer after this function returns, because it
        // closes the region and waits until nobody is inside.
        let task = unsafe { std::mem::transmute::<*const Task<'_>, *const Task<'static>>(task) };
        let region = Region { task, tasks };
        self.next.0.store(0, Ordering::Relaxed);
        // SAFETY: this caller holds `busy`, the region is closed, and the last caller left with `inside` at 0; a
        // worker that enters now sees `open` false and does not read.
        unsafe { *self.region.0.get() = Some(region) };
        self.open.store(true, Ordering::SeqCst);
        self.generation.fetch_add(1, Ordering::SeqCst);
        if self.sleepers.0.load(Ordering::SeqCst) > 0 {
            self.waking_core.store(current_core(), Ordering::Relaxed);
            drop(self.lock_sleep());
            self.wake.notify_all();
        }
        self.claim_tasks(region);
        self.open.store(false, Ordering::SeqCst);
        self.wait_until_empty();
        self.panic.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn claim_tasks(&self, region: Region) {
        loop {
            let index = self.next.0.fetch_add(1, Ordering::Relaxed);
            if index >= region.tasks {
                return;
            }
            // SAFETY: the region is open or this thread is counted in `inside`, so its caller still waits and the
            // closure lives.
            let task = unsafe { &*region.task };
            if let Err(payload) = catch_unwind(AssertUnwindSafe(|| task(index))) {
                self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(payload);
            }
        }
    }

    fn wait_until_empty(&self) {
        if spin_until(|| self.inside.0.load(Ordering::SeqCst) == 0) {
            return;
        }
        self.caller_sleeps.store(true, Ordering::SeqCst);
        let mut guard = self.lock_sleep();
        while self.inside.0.load(Ordering::SeqCst) != 0 {
            guard = self.done.wait(guard).unwrap_or_else(PoisonError::into_inner);
        }
        self.caller_sleeps.store(false, Ordering::SeqCst);
    }

    /// A worker's life.
    fn work(&self) {
        let mut seen = 0;
        loop {
            seen = self.wait_for_generation(seen);
            if self.stop.load(Ordering::SeqCst) {
                return;
            }
            self.inside.0.fetch_add(1, Ordering::SeqCst);
            if self.open.load(Ordering::SeqCst) {
                // SAFETY: counted in before `open` was seen, so the caller waits before it writes again.
                if let Some(region) = unsafe { *self.region.0.get() } {
                    self.claim_tasks(region);
                }
            }
            if self.inside.0.fetch_sub(1, Ordering::SeqCst) == 1 && self.caller_sleeps.load(Ordering::SeqCst) {
                drop(self.lock_sleep());
                self.done.notify_all();
            }
        }
    }

    fn wait_for_generation(&self, seen: usize) -> usize {
        if !spin_until(|| self.generation.load(Ordering::SeqCst) != seen) {
            let mut guard = self.lock_sleep();
            self.sleepers.0.fetch_add(1, Ordering::SeqCst);
            while self.generation.load(Ordering::SeqCst) == seen {
                guard = self.wake.wait(guard).unwrap_or_else(PoisonError::into_inner);
            }
            self.sleepers.0.fetch_sub(1, Ordering::SeqCst);
            drop(guard);
            leave_core(self.waking_core.load(Ordering::Relaxed));
        }
        self.generation.load(Ordering::SeqCst)
    }
}

/// Waits a moment for `ready`; false if it is time to sleep instead.
fn spin_until(ready: impl Fn() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..64 {
            if ready() {
                return true;
            }
            std::hint::spin_loop();
        }
        let waited = start.get_or_insert_with(Instant::now).elapsed();
        if waited > YIELD {
            return false;
        }
        if waited > SPIN {
            std::thread::yield_now();
        }
    }
}

/// The core that runs this thread; negative where the system does not say.
fn current_core() -> i32 {
    #[cfg(target_os = "linux")]
    // SAFETY: takes nothing and touches no memory of the process.
    return unsafe { libc::sched_getcpu() };
    #[cfg(not(target_os = "linux"))]
    -1
}

/// Takes this thread off `core`, if it runs there and may run elsewhere. Where another core is busy for a moment, Linux wakes
/// a worker on its caller's, and both share it until the load is next balanced: for the first 40 ms on two cores, in one
/// of two processes.
fn leave_core(core: i32) {
    #[cfg(target_os = "linux")]
    if core >= 0 && current_core() == core {
        // SAFETY: a set of cores is plain bits, which the system reads and writes in its size; `core` is one of the
        // system's, and CPU_CLR checks it.
        unsafe {
            let size = size_of::<libc::cpu_set_t>();
            let mut allowed: libc::cpu_set_t = std::mem::zeroed();
            if libc::sched_getaffinity(0, size, &mut allowed) != 0 || libc::CPU_COUNT(&allowed) < 2 {
                return;
            }
            let mut others = allowed;
            libc::CPU_CLR(core as usize, &mut others);
            // It goes at once; then it is free again. What is refused changes nothing.
            libc::sched_setaffinity(0, size, &others);
            libc::sched_setaffinity(0, size, &allowed);
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = core;
}

/// Physical cores that this process may use: hardware threads of one core share its vector units, so "auto" counts
/// cores. Falls back to the hardware threads where the system does not say.
pub fn physical_cores() -> usize {
    let available = std::thread::available_parallelism().map_or(1, |n| n.get());
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match count_cores(&cpuinfo) {
        0 => available,
        cores => cores.min(available),
    }
}

/// Distinct (physical id, core id) pairs in the text of `/proc/cpuinfo`.
fn count_cores(cpuinfo: &str) -> usize {
    let mut cores = std::collections::BTreeSet::new();
    let mut package = String::new();
    for line in cpuinfo.lines() {
        let Some((name, value)) = line.split_once(':') else { continue };
        match name.trim() {
            "physical id" => package = value.trim().to_owned(),
            "core id" => {
                cores.insert((package.clone(), value.trim().to_owned()));
            }
            _ => {}
        }
    }
    cores.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The cores that this thread may run on.
    #[cfg(target_os = "linux")]
    fn allowed() -> Vec<usize> {
        core_affinity::get_core_ids().unwrap_or_default().iter().map(|core| core.id).collect()
    }

    /// The system may move a thread back at any time, but not each time.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_thread_leaves_a_core_and_stays_free() {
        let before = allowed();
        let leaves = || {
            let core = current_core();
            leave_core(core);
            current_core() != core
        };
        let left = (0..100).filter(|_| leaves()).count();
        assert!(before.len() < 2 || left > 50, "it left {left} of 100 times");
        assert_eq!(allowed(), before);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_bound_thread_stays() {
        let bound = std::thread::spawn(|| {
            let core = core_affinity::get_core_ids().unwrap_or_default()[0];
            assert!(core_affinity::set_for_current(core));
            leave_core(current_core());
            (current_core() as usize == core.id, allowed() == [core.id])
        });
        assert_eq!(bound.join().unwrap(), (true, true));
    }

    #[test]
    fn hardware_threads_of_one_core_count_once() {
        let text = "physical id\t: 0\ncore id\t\t: 0\n\nphysical id\t: 0\ncore id\t\t: 1\n\nphysical id\t: 0\ncore id\t\t: 0\n";
        assert_eq!(count_cores(text), 2);
        assert_eq!(count_cores("processor\t: 0\nBogoMIPS\t: 50.0\n"), 0);
    }
}
