//! Tensors of a checkpoint as the kernels' matrices, in the dtype that the config asks for.
//!
//! Neighbours: `checkpoint` finds tensors, `assemble` asks for them by name and shape. Where the file already has the
//! dtype (and the order of rows) a `Weight` points into the mapping; otherwise the tensor is converted once, here, row
//! by row from the file's bytes, quantised ones through candle. Shapes are checked against the config before anything
//! is built, and the error names the config keys they come from, because a wrong config is the likelier fault.

use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::Arc;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use foretoken_kernels::{KernelError, SharedBytes, Weight, WeightDtype};
use foretoken_plugin_api::DType;
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::checkpoint::{Checkpoint, CheckpointError, NamedTensor};
use super::gguf::RowOrder;

/// How matrices are held where the config does not say: bf16 is what most models are published in, and half the bytes
/// of f32.
pub const DEFAULT_DTYPE: WeightDtype = WeightDtype::Bf16;

#[derive(Debug, thiserror::Error)]
pub enum WeightsError {
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    #[error(
        "tensor `{tensor}` in {path} has shape {got:?}, expected {expected:?} from {keys} in the model's config. The \
        config and the weights belong to two models"
    )]
    Shape { path: PathBuf, tensor: String, expected: Vec<usize>, got: Vec<usize>, keys: &'static str },
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Loads tensors one by one and shows how far it is.
pub struct WeightLoader<'a> {
    checkpoint: &'a Checkpoint,
    dtype: Option<WeightDtype>,
    progress: ProgressBar,
}

impl<'a> WeightLoader<'a> {
    /// Matrices will have `dtype`, `None` is [`DEFAULT_DTYPE`]. Progress is drawn on stderr, and only if that is a
    /// terminal.
    pub fn new(checkpoint: &'a Checkpoint, dtype: Option<WeightDtype>) -> Self {
        let total = checkpoint.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
        let progress = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}");
        progress.set_style(style.expect("a valid template"));
        progress.set_message(format!("loading {}", checkpoint.path().display()));
        Self { checkpoint, dtype, progress }
    }

    /// The matrix `name` of `shape`; `keys` are the config keys that the shape follows from.
    pub fn matrix(&self, name: &str, shape: [usize; 2], keys: &'static str) -> Result<Weight, WeightsError> {
        let tensor = self.checked(name, &shape, keys)?;
        self.held(&tensor, shape)
    }

    /// The one place that decides how a matrix is held: as asked, else (today) as [`DEFAULT_DTYPE`]. A quantised type
    /// that the kernels learn is held as stored from here: `tensor.ggml` says which, `tensor.rows()` gives its blocks.
    fn held(&self, tensor: &NamedTensor<'_>, shape: [usize; 2]) -> Result<Weight, WeightsError> {
        let dtype = self.dtype.unwrap_or(DEFAULT_DTYPE);
        let stored = match tensor.dtype {
            Some(DType::F32) => Some(WeightDtype::F32),
            Some(DType::Bf16) => Some(WeightDtype::Bf16),
            _ => None,
        };
        let bytes = if stored == Some(dtype) && tensor.order == RowOrder::Same {
            self.checkpoint.shared_bytes(tensor.name)?
        } else {
            converted(tensor, dtype)?
        };
        Ok(Weight::new(tensor.name, dtype, shape, bytes)?)
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
        let (path, tensor, got) = (tensor.file.to_owned(), tensor.name.to_owned(), tensor.shape.to_vec());
        Err(WeightsError::Shape { path, tensor, expected: shape.to_vec(), got, keys })
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

/// Calls `take` with every element, widened to f32, row by row in Hugging Face's order.
fn each_f32(tensor: &NamedTensor<'_>, mut take: impl FnMut(f32)) -> Result<(), CheckpointError> {
    let dtype_error = |got: String| CheckpointError::Dtype {
        path: tensor.file.to_owned(),
        tensor: tensor.name.to_owned(),
        got,
        expected: "F32, BF16, F16 or blocks of a GGUF file. Take the unquantised model",
    };
    for row in tensor.rows() {
        match (tensor.dtype, tensor.ggml) {
            (Some(DType::F32), _) => words(row).for_each(|word| take(f32::from_le_bytes(word))),
            (Some(DType::Bf16), _) => words(row).for_each(|word| take(bf16::from_le_bytes(word).to_f32())),
            (Some(DType::F16), _) => words(row).for_each(|word| take(f16::from_le_bytes(word).to_f32())),
            (_, Some(kind)) => {
                let values = dequantised(kind, row);
                let values = values.map_err(|error| dtype_error(format!("{} ({error})", tensor.dtype_name)))?;
                values.into_iter().for_each(&mut take);
            }
            _ => return Err(dtype_error(tensor.dtype_name.to_owned())),
        }
    }
    Ok(())
}

/// Whole blocks of `kind` as f32, by candle. The checkpoint has checked their length and alignment.
fn dequantised(kind: GgmlDType, blocks: &[u8]) -> candle_core::Result<Vec<f32>> {
    let count = blocks.len() / kind.type_size() * kind.block_size();
    let storage = QStorage::from_data(Cow::Borrowed(blocks), &Device::Cpu, kind)?;
    QTensor::new(storage, count)?.dequantize(&Device::Cpu)?.to_vec1()
}

fn words<const N: usize>(bytes: &[u8]) -> impl Iterator<Item = [u8; N]> + '_ {
    bytes.as_chunks::<N>().0.iter().copied()
}
