//! A file of tensors in memory.

use std::collections::BTreeMap;

use crate::author::TensorsApi;
use crate::error::{Error, Result};
use crate::types::{TensorInfo, TensorView};

/// Named f32 tensors, as [`HostApi::load_tensors`](crate::HostApi::load_tensors) would give them.
#[derive(Debug, Clone, Default)]
pub struct FakeTensors {
    config: String,
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl FakeTensors {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// The same with this `config.json` beside it.
    #[must_use]
    pub fn with_config(self, config: &str) -> Self {
        Self { config: config.to_owned(), ..self }
    }

    /// The same with one more tensor.
    ///
    /// # Panics
    /// If `data` does not fill `shape`.
    #[must_use]
    pub fn with(mut self, name: &str, shape: &[usize], data: Vec<f32>) -> Self {
        assert_eq!(shape.iter().product::<usize>(), data.len(), "FakeTensors: {name} {shape:?}");
        self.tensors.insert(name.to_owned(), (shape.to_vec(), data));
        self
    }
}

impl TensorsApi for FakeTensors {
    fn list(&self) -> Vec<TensorInfo> {
        let info = |(name, (shape, _)): (&String, &(Vec<usize>, Vec<f32>))| TensorInfo {
            name: name.clone(),
            shape: shape.clone(),
            dtype: "f32".to_owned(),
        };
        self.tensors.iter().map(info).collect()
    }

    fn config(&self) -> String {
        self.config.clone()
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let missing = || Error::failed(format!("no tensor {name:?}; there are {:?}", self.tensors.keys()));
        let (shape, data) = self.tensors.get(name).ok_or_else(missing)?;
        let columns = shape.last().copied().unwrap_or(1);
        let rows = data.len().checked_div(columns).unwrap_or(0);
        Ok(TensorView::from_f32(data, rows, columns))
    }
}
