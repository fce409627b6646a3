//! Tensors of a checkpoint as the kernels' matrices, in the dtype that the config asks for.
//!
//! Neighbours: `checkpoint` finds tensors, `decoder` asks for them by name and shape. Where the file already has the
//! dtype a `Weight` points into the mapping; otherwise the tensor is converted once, here, straight from the file's
//! bytes. Shapes are checked against the config before anything is built, and the error names the config keys they
//! come from, because a wrong config is the likelier fault.

use std::path::PathBuf;
use std::sync::Arc;

use foretoken_kernels::{KernelError, SharedBytes, Weight, WeightDtype};
use foretoken_plugin_api::DType;
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::checkpoint::{Checkpoint, CheckpointError, NamedTensor};

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "tensor `{tensor}` in {path} has shape {got:?}, expected {expected:?} from {keys} in config.json. The config \
        and the weights belong to two models"
    )]
    Shape { path: PathBuf, tensor: String, expected: Vec<usize>, got: Vec<usize>, keys: &'static str },
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Loads tensors one by one and shows how far it is.
pub struct WeightLoader<'a> {
    checkpoint: &'a Checkpoint,
    dtype: WeightDtype,
    progress: ProgressBar,
}

impl<'a> WeightLoader<'a> {
    /// Matrices will have `dtype`. Progress is drawn on stderr, and only if that is a terminal.
    pub fn new(checkpoint: &'a Checkpoint, dtype: WeightDtype) -> Self {
        let total = checkpoint.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
        let progress = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}");
        progress.set_style(style.expect("a valid template"));
        progress.set_message(format!("loading {} as {dtype}", checkpoint.path().display()));
        Self { checkpoint, dtype, progress }
    }

    /// The matrix `name` of `shape`; `keys` are the config keys that the shape follows from.
    pub fn matrix(&self, name: &str, shape: [usize; 2], keys: &'static str) -> Result<Weight, WeightsError> {
        let tensor = self.checked(name, &shape, keys)?;
        let stored = match tensor.dtype {
            Some(DType::F32) => Some(WeightDtype::F32),
            Some(DType::Bf16) => Some(WeightDtype::Bf16),
            _ => None,
        };
        let bytes = if stored == Some(self.dtype) {
            self.checkpoint.shared_bytes(name)?
        } else {
            converted(&tensor, self.dtype)?
        };
        Ok(Weight::new(name, self.dtype, shape, bytes)?)
    }

    /// The vector `name` of `len` values, always as f32 (norms and biases are applied to f32 sums).
    pub fn vector(&self, name: &str, len: usize, keys: &'static str) -> Result<Vec<f32>, WeightsError> {
        let tensor = self.checked(name, &[len], keys)?;
        let mut values = Vec::with_capacity(len);
        each_f32(&tensor, |value| values.push(value))?;
        Ok(values)
    }

    fn checked(&self, name: &str, shape: &[usize], keys: &'static str) -> Result<NamedTensor<'a>, WeightsError> {
        let tensor = self.checkpoint.tensor(name)?;
        self.progress.inc(tensor.bytes.len() as u64);
        if tensor.shape == shape {
            return Ok(tensor);
        }
        let (expected, got) = (shape.to_vec(), tensor.shape.to_vec());
        Err(WeightsError::Shape { path: tensor.file.to_owned(), tensor: name.to_owned(), expected, got, keys })
    }
}

impl Drop for WeightLoader<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

fn converted(tensor: &NamedTensor<'_>, dtype: WeightDtype) -> Result<SharedBytes, WeightsError> {
    let count: usize = tensor.shape.iter().product();
    let mut bytes: Vec<u8> = Vec::with_capacity(count * dtype.size());
    match dtype {
        WeightDtype::Bf16 => {
            each_f32(tensor, |value| bytes.extend_from_slice(&bf16::from_f32(value).to_ne_bytes()))?;
        }
        _ => each_f32(tensor, |value| bytes.extend_from_slice(&value.to_ne_bytes()))?,
    }
    let range = 0..bytes.len();
    Ok(SharedBytes::new(Arc::new(bytes), range)?)
}

/// Calls `take` with every element, widened to f32.
fn each_f32(tensor: &NamedTensor<'_>, mut take: impl FnMut(f32)) -> Result<(), CheckpointError> {
    match tensor.dtype {
        Some(DType::F32) => words(tensor.bytes).for_each(|word| take(f32::from_le_bytes(word))),
        Some(DType::Bf16) => words(tensor.bytes).for_each(|word| take(bf16::from_le_bytes(word).to_f32())),
        Some(DType::F16) => words(tensor.bytes).for_each(|word| take(f16::from_le_bytes(word).to_f32())),
        _ => {
            return Err(CheckpointError::Dtype {
                path: tensor.file.to_owned(),
                tensor: tensor.name.to_owned(),
                got: tensor.dtype_name.to_owned(),
                expected: "F32, BF16 or F16. Take the unquantised model",
            });
        }
    }
    Ok(())
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}
