//! The bridge for plugins: the same kernels on the engine's threads, reached through the host.
//!
//! A plugin links its own copy of this crate, but must not start threads of its own beside the engine's. Heads read their
//! files with [`HeadTensors`] and [`DecoderConfig`]: names, sizes and rotary settings as published files write them.

mod config;
mod layer;
mod tensors;

pub use config::DecoderConfig;
pub use layer::LayerForm;
pub use tensors::HeadTensors;

use std::sync::Arc;

use foretoken_plugin_api as api;

use crate::bytes::AlignedBytes;
use crate::ops::warp::WarpParams;
use crate::{Exec, KernelError, NoiseKey, Parallel, SharedBytes, Weight, WeightDtype};

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

impl Weight {
    /// The matrix that a host's file shows, as `dtype` or, without one, as it is stored; arranged for the level of `exec`.
    /// `tensor` names it in the error.
    ///
    /// # Errors
    /// If it is not `[rows, cols]`, or of no floating dtype.
    pub fn from_view(
        tensor: &str,
        view: &api::TensorView<'_>,
        [rows, cols]: [usize; 2],
        (dtype, exec): (Option<WeightDtype>, &Exec),
    ) -> Result<Self, KernelError> {
        let got = vec![view.rows(), view.columns()];
        if got != [rows, cols] {
            return Err(KernelError::Shape { tensor: tensor.to_owned(), expected: vec![rows, cols], got });
        }
        let stored = match view.dtype() {
            api::DType::F32 => WeightDtype::F32,
            api::DType::F16 => WeightDtype::F16,
            api::DType::Bf16 => WeightDtype::Bf16,
            other => return Err(KernelError::ViewDtype { tensor: tensor.to_owned(), got: format!("{other:?}") }),
        };
        if dtype.is_none_or(|dtype| dtype == stored) {
            let mut bytes = AlignedBytes::zeroed(stored.byte_len([rows, cols]));
            for (row, bytes) in bytes.as_mut().chunks_exact_mut(stored.byte_len([1, cols]).max(1)).enumerate() {
                bytes.copy_from_slice(view.row_bytes(row));
            }
            return Ok(Self::new(tensor, stored, [rows, cols], SharedBytes::from(bytes))?.arranged(exec));
        }
        let mut values = vec![0.0; rows * cols];
        for (row, values) in values.chunks_mut(cols.max(1)).enumerate() {
            tensors::widen(view, row, values);
        }
        Ok(Self::from_f32(dtype.unwrap_or(stored), [rows, cols], &values).arranged(exec))
    }
}

/// The dtype that an option calls `name`; `part` is whose option it is.
///
/// # Errors
/// If there is none of that name that a head's weights can have.
pub fn dtype_named(part: &str, name: &str) -> api::Result<WeightDtype> {
    match name {
        "f32" => Ok(WeightDtype::F32),
        "f16" => Ok(WeightDtype::F16),
        "bf16" => Ok(WeightDtype::Bf16),
        "q8_0" => Ok(WeightDtype::Q8_0),
        other => Err(api::Error::options(format!("{part}: dtype = {other:?}: expected f32, f16, bf16 or q8_0"))),
    }
}
