//! Tensors of a checkpoint as the kernels' matrices, in the dtype that the config asks for.
//!
//! Neighbours: `checkpoint` finds tensors, `decoder` asks for them by name and shape. Where the file already has the
//! dtype a `Weight` points into the mapping; otherwise the tensor is converted once, here, straight from the file's
//! bytes. Shapes are checked against the config before anything is built, and the error names the config keys they
//! come from, because a wrong config is the likelier fault.

use std::path::PathBuf;

use foretoken_kernels::{KernelError, Weight, WeightDtype};
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

/// Where tensors come from.
enum Source<'a> {
    Checkpoint(&'a Checkpoint),
    /// Numbers of about the size that training leaves, for measuring without files.
    Random,
}

/// Loads tensors one by one and shows how far it is.
pub struct WeightLoader<'a> {
    source: Source<'a>,
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
        Self { source: Source::Checkpoint(checkpoint), dtype, progress }
    }

    /// Makes every tensor up, the same each time: matrices random, vectors all 1.
    pub fn random(dtype: WeightDtype) -> WeightLoader<'static> {
        WeightLoader { source: Source::Random, dtype, progress: ProgressBar::hidden() }
    }

    /// The matrix `name` of `shape`; `keys` are the config keys that the shape follows from.
    pub fn matrix(&self, name: &str, shape: [usize; 2], keys: &'static str) -> Result<Weight, WeightsError> {
        self.matrix_as(self.dtype, name, shape, keys)
    }

    /// The matrix of a vocabulary: where others are q4_K it is q6_K, as is usual, since every token's rank is in it.
    pub fn table(&self, name: &str, shape: [usize; 2], keys: &'static str) -> Result<Weight, WeightsError> {
        let dtype = if self.dtype == WeightDtype::Q4K { WeightDtype::Q6K } else { self.dtype };
        self.matrix_as(dtype, name, shape, keys)
    }

    fn matrix_as(
        &self,
        dtype: WeightDtype,
        name: &str,
        shape: [usize; 2],
        keys: &'static str,
    ) -> Result<Weight, WeightsError> {
        let Source::Checkpoint(checkpoint) = self.source else { return Ok(random(dtype, shape)) };
        let tensor = checked(&self.progress, checkpoint, name, &shape, keys)?;
        let stored = match tensor.dtype {
            Some(DType::F32) => Some(WeightDtype::F32),
            Some(DType::F16) => Some(WeightDtype::F16),
            Some(DType::Bf16) => Some(WeightDtype::Bf16),
            _ => None,
        };
        if stored == Some(dtype) {
            return Ok(Weight::new(name, dtype, shape, checkpoint.shared_bytes(name)?)?);
        }
        let read = reader(&tensor)?;
        let row_bytes = tensor.bytes.len() / shape[0].max(1);
        Ok(Weight::from_rows(dtype, shape, |row, out| read(&tensor.bytes[row * row_bytes..][..row_bytes], out)))
    }

    /// The vector `name` of `len` values, always as f32 (norms and biases are applied to f32 sums).
    pub fn vector(&self, name: &str, len: usize, keys: &'static str) -> Result<Vec<f32>, WeightsError> {
        let mut values = vec![1.0; len];
        if let Source::Checkpoint(checkpoint) = self.source {
            let tensor = checked(&self.progress, checkpoint, name, &[len], keys)?;
            reader(&tensor)?(tensor.bytes, &mut values);
        }
        Ok(values)
    }
}

fn checked<'a>(
    progress: &ProgressBar,
    checkpoint: &'a Checkpoint,
    name: &str,
    shape: &[usize],
    keys: &'static str,
) -> Result<NamedTensor<'a>, WeightsError> {
    let tensor = checkpoint.tensor(name)?;
    progress.inc(tensor.bytes.len() as u64);
    if tensor.shape == shape {
        return Ok(tensor);
    }
    let (expected, got) = (shape.to_vec(), tensor.shape.to_vec());
    Err(WeightsError::Shape { path: tensor.file.to_owned(), tensor: name.to_owned(), expected, got, keys })
}

impl Drop for WeightLoader<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// Widens a part of a tensor's bytes to f32.
type Reader = fn(&[u8], &mut [f32]);

fn reader(tensor: &NamedTensor<'_>) -> Result<Reader, CheckpointError> {
    match tensor.dtype {
        Some(DType::F32) => Ok(|bytes, out| widen(bytes, out, f32::from_le_bytes)),
        Some(DType::Bf16) => Ok(|bytes, out| widen(bytes, out, |word| bf16::from_le_bytes(word).to_f32())),
        Some(DType::F16) => Ok(|bytes, out| widen(bytes, out, |word| f16::from_le_bytes(word).to_f32())),
        _ => Err(CheckpointError::Dtype {
            path: tensor.file.to_owned(),
            tensor: tensor.name.to_owned(),
            got: tensor.dtype_name.to_owned(),
            expected: "F32, BF16 or F16. Take the unquantised model",
        }),
    }
}

fn widen<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (word, out) in bytes.as_chunks::<N>().0.iter().zip(out) {
        *out = value(*word);
    }
}

/// Uniform numbers that keep the size of what they multiply (variance 1 / cols).
fn random(dtype: WeightDtype, shape: [usize; 2]) -> Weight {
    let scale = (3.0 / shape[1] as f32).sqrt();
    Weight::from_rows(dtype, shape, |row, out| {
        let mut state = (row as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        for out in out {
            // xorshift64 (Marsaglia 2003): the numbers need to be ordinary, not good.
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            *out = ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * scale;
        }
    })
}
