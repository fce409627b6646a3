//! Tensors of a head's file, by their published names.

use foretoken_plugin_api as api;
use half::{bf16, f16};

use crate::blocks::Linear;
use crate::{Exec, KernelError, Weight, WeightDtype};

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

    /// A norm's weights, `[len]`, with `offset` added.
    ///
    /// # Errors
    /// As [`HeadTensors::vector`].
    pub fn norm(&self, name: &str, len: usize, offset: f32) -> api::Result<Vec<f32>> {
        let mut weights = self.vector(name, len)?;
        weights.iter_mut().for_each(|weight| *weight += offset);
        Ok(weights)
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
pub(super) fn widen(view: &api::TensorView<'_>, row: usize, out: &mut [f32]) {
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
