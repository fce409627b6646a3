//! The bridge for plugins: the same kernels on the engine's threads, reached through the host.
//!
//! A plugin links its own copy of this crate, but must not start threads of its own beside the engine's.

use std::sync::Arc;

use foretoken_plugin_api as api;

use half::{bf16, f16};

use crate::blocks::Linear;
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
            widen(view, row, values);
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

/// The tensors of a head, looked up by their published names; its errors say whose they are.
pub struct HeadTensors<'a> {
    label: String,
    tensors: &'a dyn api::TensorsApi,
    names: Vec<String>,
    dtype: Option<WeightDtype>,
    exec: &'a Exec,
}

impl<'a> HeadTensors<'a> {
    /// The tensors of an open file, weights as `dtype` or, without one, as they are stored. `label` (the part and the
    /// file) begins every error.
    pub fn new(
        label: String,
        tensors: &'a dyn api::TensorsApi,
        (dtype, exec): (Option<WeightDtype>, &'a Exec),
    ) -> Self {
        let names = tensors.list().into_iter().map(|info| info.name).collect();
        Self { label, tensors, names, dtype, exec }
    }

    /// The name of every tensor.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.iter().map(String::as_str)
    }

    /// The name as the file has it: some put `model.` before every one.
    pub fn find(&self, name: &str) -> Option<String> {
        [name.to_owned(), format!("model.{name}")].into_iter().find(|name| self.names.contains(name))
    }

    /// A refusal for this file.
    pub fn refused(&self, reason: impl std::fmt::Display) -> api::Error {
        api::Error::refused(format!("{}: {reason}", self.label))
    }

    /// The tensor called `name`.
    ///
    /// # Errors
    /// If there is none; the message names the nearest.
    pub fn view(&self, name: &str) -> api::Result<api::TensorView<'a>> {
        let found = self.find(name).unwrap_or_else(|| name.to_owned());
        self.tensors.view(&found).map_err(|error| self.refused(error.message))
    }

    /// A vector of `len`.
    ///
    /// # Errors
    /// If there is none, or one of another length or dtype.
    pub fn vector(&self, name: &str, len: usize) -> api::Result<Vec<f32>> {
        let view = self.view(name)?;
        let got = vec![view.rows() * view.columns()];
        if got != [len] {
            return Err(self.refused(KernelError::Shape { tensor: name.to_owned(), expected: vec![len], got }));
        }
        if !is_float(view.dtype()) {
            let got = format!("{:?}", view.dtype());
            return Err(self.refused(KernelError::ViewDtype { tensor: name.to_owned(), got }));
        }
        let mut out = vec![0.0; len];
        for (row, out) in out.chunks_mut(view.columns().max(1)).enumerate() {
            widen(&view, row, out);
        }
        Ok(out)
    }

    /// `prefix.weight`, `[out features, in features]`, and `prefix.bias` where there is one.
    ///
    /// # Errors
    /// If there is no such weight, or one of another shape or dtype.
    pub fn linear(&self, prefix: &str, shape: [usize; 2]) -> api::Result<Linear> {
        let name = format!("{prefix}.weight");
        let weight = Weight::from_view(&name, &self.view(&name)?, shape, (self.dtype, self.exec));
        let weight = weight.map_err(|error| self.refused(error))?;
        let bias = format!("{prefix}.bias");
        let bias = self.find(&bias).map(|name| self.vector(&name, shape[0])).transpose()?;
        Linear::new(prefix, weight, bias).map_err(|error| self.refused(error))
    }
}

fn is_float(dtype: api::DType) -> bool {
    matches!(dtype, api::DType::F32 | api::DType::F16 | api::DType::Bf16)
}

/// A row of a floating dtype as f32.
fn widen(view: &api::TensorView<'_>, row: usize, out: &mut [f32]) {
    let bytes = view.row_bytes(row);
    match view.dtype() {
        api::DType::F16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f16::from_le_bytes(*bytes).to_f32();
            }
        }
        api::DType::Bf16 => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = bf16::from_le_bytes(*bytes).to_f32();
            }
        }
        _ => {
            for (out, bytes) in out.iter_mut().zip(bytes.as_chunks().0) {
                *out = f32::from_le_bytes(*bytes);
            }
        }
    }
}
