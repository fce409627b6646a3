//! Where an operation runs: the device, the SIMD level and the threads.
//!
//! Every op takes an [`Exec`] instead of asking globals, so that the engine and its plugins run on the same threads,
//! and so that one test body can run at every level. It is cheap to clone. A device other than the CPU becomes a
//! variant of [`Device`]; no op hides where it runs.

use crate::error::KernelError;
use crate::pool::{Apart, Inline, Parallel, ThreadPool};
use crate::profile::{Op, Profile, Timer};
use crate::simd::SimdLevel;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Elements a row-wise op must touch before a second thread pays for its wake-up.
const PARALLEL_ELEMENTS: usize = 16 * 1024;

/// Most stretches of [`Exec::run_in_stretches`].
const MOST_STRETCHES: usize = 64;

/// What computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The host's processor.
    Cpu,
}

/// Device, SIMD level and threads of an operation.
#[derive(Clone)]
pub struct Exec {
    device: Device,
    simd: SimdLevel,
    pool: Arc<dyn Parallel>,
    profile: Option<Arc<Profile>>,
}

impl Exec {
    /// The CPU with the level that `FORETOKEN_SIMD` allows and the given threads.
    pub fn new(pool: Arc<dyn Parallel>) -> Result<Self, KernelError> {
        Ok(Self { device: Device::Cpu, simd: SimdLevel::from_env()?, pool, profile: None })
    }

    /// The CPU with `threads` threads of its own.
    pub fn cpu(threads: usize) -> Result<Self, KernelError> {
        Self::new(Arc::new(ThreadPool::new(threads)))
    }

    /// Portable code on the calling thread: slow, and the same everywhere.
    pub fn portable_single() -> Self {
        Self { device: Device::Cpu, simd: SimdLevel::Portable, pool: Arc::new(Inline), profile: None }
    }

    /// The same threads at another level; an error if the machine lacks it.
    pub fn with_simd(&self, level: SimdLevel) -> Result<Self, KernelError> {
        let best = SimdLevel::detect();
        if level > best {
            return Err(KernelError::SimdUnsupported { requested: level, best });
        }
        Ok(Self { simd: level, ..self.clone() })
    }

    /// The same level on other threads.
    pub fn with_pool(&self, pool: Arc<dyn Parallel>) -> Self {
        Self { pool, ..self.clone() }
    }

    /// The same, with the time of each op added to `profile`.
    pub fn with_profile(&self, profile: Arc<Profile>) -> Self {
        Self { profile: Some(profile), ..self.clone() }
    }

    /// Times `op` until the result is dropped.
    #[inline(always)]
    pub(crate) fn time(&self, op: Op) -> Timer<'_> {
        Timer::start(self.profile.as_deref(), op)
    }

    /// What computes.
    pub fn device(&self) -> Device {
        self.device
    }

    /// The instructions used. Never above what the machine has, which the dispatch relies on.
    pub fn simd(&self) -> SimdLevel {
        self.simd
    }

    /// The threads.
    pub fn pool(&self) -> &Arc<dyn Parallel> {
        &self.pool
    }

    /// Number of threads.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }

    /// Calls `task(0) .. task(tasks - 1)`, each once, for a walk over memory: a thread takes the tasks of a stretch in order,
    /// so that what lies behind a task is its own next one and may be asked for, and when it has no more, those that are left
    /// of other stretches. A task is told whether it begins a walk: whether the thread has not just done the task before it.
    pub(crate) fn run_in_stretches(&self, tasks: usize, task: &(dyn Fn(usize, bool) + Sync)) {
        let stretches = self.threads().min(tasks);
        if !(2..=MOST_STRETCHES).contains(&stretches) {
            return self.pool.run(tasks, &|index| task(index, true));
        }
        let bound = |stretch: usize| tasks * stretch / stretches;
        let next: [_; MOST_STRETCHES] = std::array::from_fn(|stretch| Apart(AtomicUsize::new(bound(stretch))));
        self.pool.run(stretches, &|own| {
            let mut following = None;
            for stretch in (own..stretches).chain(0..own) {
                loop {
                    let index = next[stretch].0.fetch_add(1, Ordering::Relaxed);
                    if index >= bound(stretch + 1) {
                        break;
                    }
                    task(index, following != Some(index));
                    following = Some(index + 1);
                }
            }
        });
    }

    /// Runs `body` over `0..rows` in parts, in one part when `row_elements` make it too small to share.
    pub(crate) fn for_rows(&self, rows: usize, row_elements: usize, body: &(dyn Fn(Range<usize>) + Sync)) {
        let threads = self.threads();
        if threads == 1 || rows < 2 || rows * row_elements < PARALLEL_ELEMENTS {
            return body(0..rows);
        }
        let part = rows.div_ceil(threads * 4);
        self.run_in_stretches(rows.div_ceil(part), &|task, _| body(task * part..rows.min((task + 1) * part)));
    }
}

impl fmt::Debug for Exec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Exec({:?}, {}, {} threads)", self.device, self.simd, self.threads())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_task_of_the_stretches_runs_once() {
        for threads in [1, 2, 5, MOST_STRETCHES + 6] {
            let exec = Exec::cpu(threads).unwrap();
            for tasks in [0, 1, 2, 3, 7, 100] {
                let runs: Vec<AtomicUsize> = (0..tasks).map(|_| AtomicUsize::new(0)).collect();
                exec.run_in_stretches(tasks, &|task, _| {
                    runs[task].fetch_add(1, Ordering::Relaxed);
                });
                let runs: Vec<usize> = runs.into_iter().map(AtomicUsize::into_inner).collect();
                assert_eq!(runs, vec![1; tasks], "{threads} threads");
            }
        }
    }

    /// Seen in a pool whose calls follow each other, the last one first.
    #[test]
    fn a_stretch_is_taken_in_order() {
        struct OneByOne;
        impl Parallel for OneByOne {
            fn threads(&self) -> usize {
                3
            }
            fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
                (0..tasks).rev().for_each(task);
            }
        }
        let order = std::sync::Mutex::new(Vec::new());
        let exec = Exec::new(Arc::new(OneByOne)).unwrap();
        exec.run_in_stretches(7, &|task, begins| order.lock().unwrap().push((task, begins)));
        // The last stretch, then what is left of the others.
        let walks = [(4, true), (5, false), (6, false), (0, true), (1, false), (2, false), (3, false)];
        assert_eq!(order.into_inner().unwrap(), walks);
    }
}
