//! The bridge for plugins: the same kernels on the engine's threads, reached through the host.
//!
//! A plugin links its own copy of this crate, but must not start threads of its own beside the engine's.

use std::sync::Arc;

use foretoken_plugin_api as api;

use crate::{Exec, NoiseKey, Parallel, ops::warp::WarpParams};

struct HostPool {
    host: api::Host,
}

impl Parallel for HostPool {
    fn threads(&self) -> usize {
        self.host.threads()
    }

    fn run(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) {
        // Kernels have no way to fail halfway: a panic in a task is a panic of the plugin, which its guard contains.
        self.host.parallel(tasks, task).expect("the host's pool");
    }
}

impl From<&api::Host> for Exec {
    fn from(host: &api::Host) -> Self {
        // The engine refuses a bad SIMD cap before any plugin loads, so only an engine can see this fail.
        Self::new(Arc::new(HostPool { host: host.clone() })).expect("the engine checked the SIMD level")
    }
}

impl From<api::NoiseKey> for NoiseKey {
    fn from(key: api::NoiseKey) -> Self {
        Self { seed: key.seed, completion: key.completion, stream: key.stream }
    }
}

impl From<api::SamplingParams> for WarpParams {
    fn from(params: api::SamplingParams) -> Self {
        Self { temperature: params.temperature, top_k: params.top_k, top_p: params.top_p, min_p: params.min_p }
    }
}
