//! Tensors of a checkpoint as the kernels' matrices, in the dtype that the config asks for.
//!
//! Neighbours: `checkpoint` finds tensors, `assemble` asks for them by name and shape. Where the file already has the
//! dtype (and the order of rows) a `Weight` points into the mapping, blocks that the kernels know are interleaved as they
//! are, and anything else is converted once, here, row by row from the file's bytes, blocks through candle. Shapes are checked against the config before anything
//! is built, and the error names the config keys they come from, because a wrong config is the likelier fault.

use std::borrow::Cow;
use std::path::PathBuf;

use candle_core::Device;
use candle_core::quantized::{GgmlDType, QStorage, QTensor};
use foretoken_kernels::{Arrangement, Exec, KernelError, Weight, WeightDtype};
use foretoken_plugin_api::DType;
use half::{bf16, f16};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::checkpoint::{Checkpoint, CheckpointError, NamedTensor};
use super::gguf::RowOrder;

/// How matrices are held where neither the config nor a GGUF file says: bf16 is what most models are published in, and
/// half the bytes of f32.
const DEFAULT_DTYPE: WeightDtype = WeightDtype::Bf16;

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

/// Where tensors come from.
enum Source<'a> {
    Checkpoint(&'a Checkpoint),
    /// Numbers of about the size that training leaves, for measuring without files.
    Random,
}

/// Loads tensors one by one and shows how far it is.
pub struct WeightLoader<'a> {
    source: Source<'a>,
    dtype: Option<WeightDtype>,
    /// What will multiply by the matrices.
    exec: &'a Exec,
    progress: ProgressBar,
}

impl<'a> WeightLoader<'a> {
    /// Matrices will have `dtype`. `None` keeps the types of a GGUF file as far as the kernels know them, and is bf16 for
    /// everything else. Progress is drawn on stderr, and only if that is a terminal.
    pub fn new(checkpoint: &'a Checkpoint, dtype: Option<WeightDtype>, exec: &'a Exec) -> Self {
        let total = checkpoint.tensors().map(|tensor| tensor.bytes.len() as u64).sum();
        let progress = ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {bytes}/{total_bytes} {elapsed}");
        progress.set_style(style.expect("a valid template"));
        progress.set_message(format!("loading {}", checkpoint.path().display()));
        Self { source: Source::Checkpoint(checkpoint), dtype, exec, progress }
    }

    /// Makes every tensor up, the same each time: matrices random, vectors all 1.
    pub fn random(dtype: WeightDtype, exec: &'a Exec) -> Self {
        Self { source: Source::Random, dtype: Some(dtype), exec, progress: ProgressBar::hidden() }
    }

    /// The matrix `name` of `shape`, to multiply by; `keys` are the config keys that the shape follows from.
    pub fn matrix(&self, name: &str, shape: [usize; 2], keys: &'static str) -> Result<Weight, WeightsError> {
        self.matrix_as(self.dtype, name, shape, keys).map(|weight| self.arranged(name, weight))
    }

    /// The matrix of a vocabulary: where others are made q4_K it is q6_K, as is usual, since every token's rank is in it.
    /// `is_multiplied`: and not only looked up.
    pub fn table(
        &self,
        name: &str,
        shape: [usize; 2],
        keys: &'static str,
        is_multiplied: bool,
    ) -> Result<Weight, WeightsError> {
        let dtype = if self.dtype == Some(WeightDtype::Q4K) { Some(WeightDtype::Q6K) } else { self.dtype };
        let table = self.matrix_as(dtype, name, shape, keys)?;
        Ok(if is_multiplied { self.arranged(name, table) } else { table })
    }

    /// The weight as it multiplies fastest. Where that is a copy, the mapped bytes are given back.
    fn arranged(&self, name: &str, weight: Weight) -> Weight {
        let weight = weight.arranged(self.exec);
        if let (Source::Checkpoint(checkpoint), true) = (&self.source, weight.arrangement() != Arrangement::Rows) {
            checkpoint.forget(name);
        }
        weight
    }

    fn matrix_as(
        &self,
        dtype: Option<WeightDtype>,
        name: &str,
        shape: [usize; 2],
        keys: &'static str,
    ) -> Result<Weight, WeightsError> {
        let Source::Checkpoint(checkpoint) = self.source else {
            return Ok(random(dtype.unwrap_or(DEFAULT_DTYPE), shape));
        };
        let tensor = checked(&self.progress, checkpoint, name, &shape, keys)?;
        let stored = stored_dtype(&tensor);
        let dtype = dtype.or(stored.filter(|_| checkpoint.is_gguf())).unwrap_or(DEFAULT_DTYPE);
        if stored == Some(dtype) && !dtype.is_quantised() && tensor.order == RowOrder::Same {
            return Ok(Weight::new(tensor.name, dtype, shape, checkpoint.shared_bytes(tensor.name)?)?);
        }
        let rows: Vec<&[u8]> = tensor.rows().collect();
        let weight = if stored == Some(dtype) && dtype.is_quantised() {
            Weight::from_blocks(tensor.name, dtype, shape, &rows)?
        } else {
            let read = reader(&tensor)?;
            Weight::from_rows(dtype, shape, |row, out| read(rows[row], out))
        };
        // Or the model would be in memory twice until the last tensor is loaded.
        checkpoint.forget(tensor.name);
        Ok(weight)
    }

    /// The vector `name` of `len` values, always as f32 (norms and biases are applied to f32 sums).
    pub fn vector(&self, name: &str, len: usize, keys: &'static str) -> Result<Vec<f32>, WeightsError> {
        let mut values = vec![1.0; len];
        if let Source::Checkpoint(checkpoint) = self.source {
            let tensor = checked(&self.progress, checkpoint, name, &[len], keys)?;
            let (read, rows) = (reader(&tensor)?, tensor.rows().count().max(1));
            tensor.rows().zip(values.chunks_mut((len / rows).max(1))).for_each(|(row, values)| read(row, values));
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
    let (path, tensor, got) = (tensor.file.to_owned(), tensor.name.to_owned(), tensor.shape.to_vec());
    Err(WeightsError::Shape { path, tensor, expected: shape.to_vec(), got, keys })
}

impl Drop for WeightLoader<'_> {
    fn drop(&mut self) {
        self.progress.finish_and_clear();
    }
}

/// The dtype of the kernels that a tensor is stored in, if there is one.
fn stored_dtype(tensor: &NamedTensor<'_>) -> Option<WeightDtype> {
    match (tensor.dtype, tensor.ggml) {
        (Some(DType::F32), _) => Some(WeightDtype::F32),
        (Some(DType::F16), _) => Some(WeightDtype::F16),
        (Some(DType::Bf16), _) => Some(WeightDtype::Bf16),
        (_, Some(GgmlDType::Q8_0)) => Some(WeightDtype::Q8_0),
        (_, Some(GgmlDType::Q4_0)) => Some(WeightDtype::Q4_0),
        (_, Some(GgmlDType::Q4K)) => Some(WeightDtype::Q4K),
        (_, Some(GgmlDType::Q6K)) => Some(WeightDtype::Q6K),
        _ => None,
    }
}

/// Widens a row's bytes to f32.
type Reader = Box<dyn Fn(&[u8], &mut [f32]) + Sync>;

fn reader(tensor: &NamedTensor<'_>) -> Result<Reader, CheckpointError> {
    match (tensor.dtype, tensor.ggml) {
        (Some(DType::F32), _) => Ok(Box::new(|bytes, out| widen(bytes, out, f32::from_le_bytes))),
        (Some(DType::Bf16), _) => {
            Ok(Box::new(|bytes, out| widen(bytes, out, |word| bf16::from_le_bytes(word).to_f32())))
        }
        (Some(DType::F16), _) => Ok(Box::new(|bytes, out| widen(bytes, out, |word| f16::from_le_bytes(word).to_f32()))),
        (_, Some(kind)) => {
            // Once here, so that a kind that candle cannot read is an error and not a panic on some thread.
            let first = tensor.rows().next().unwrap_or_default();
            dequantised(kind, first)
                .map_err(|error| dtype_error(tensor, format!("{} ({error})", tensor.dtype_name)))?;
            Ok(Box::new(move |blocks, out| {
                let values = dequantised(kind, blocks).expect("candle read this kind before");
                out.copy_from_slice(&values);
            }))
        }
        _ => Err(dtype_error(tensor, tensor.dtype_name.to_owned())),
    }
}

fn dtype_error(tensor: &NamedTensor<'_>, got: String) -> CheckpointError {
    CheckpointError::Dtype {
        path: tensor.file.to_owned(),
        tensor: tensor.name.to_owned(),
        got,
        expected: "F32, BF16, F16 or blocks of a GGUF file. Take the unquantised model",
    }
}

/// Whole blocks of `kind` as f32, by candle. The checkpoint has checked their length and alignment.
fn dequantised(kind: GgmlDType, blocks: &[u8]) -> candle_core::Result<Vec<f32>> {
    let count = blocks.len() / kind.type_size() * kind.block_size();
    let storage = QStorage::from_data(Cow::Borrowed(blocks), &Device::Cpu, kind)?;
    QTensor::new(storage, count)?.dequantize(&Device::Cpu)?.to_vec1()
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
