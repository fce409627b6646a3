//! A Hugging Face folder, one safetensors file or a GGUF file as named tensors over memory-mapped bytes.
//!
//! Neighbours: `mapping` maps the files, `gguf` reads GGUF headers, `weights` turns tensors into the kernels' matrices,
//! plugins read heads through the same views. Headers are parsed and checked by candle; this file only remembers where
//! each tensor lies, so that a `Weight` can hold the mapping itself and no copy is made. A tensor is found by the
//! file's own name or by Hugging Face's, so that callers know one naming. Tensors of a type that this build cannot name
//! stay listed and fail only when asked for: heads carry such extras.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::safetensors::SliceSafetensors;
use foretoken_kernels::SharedBytes;
use foretoken_plugin_api::DType;
use memmap2::Mmap;
use serde_json::Value;

use super::gguf::{self, Gguf, GgufError, RowOrder, gguf_name};
use super::mapping;
use super::nearest::nearest;
use super::pickle::{self, Pickled};
use super::weight_files::{INDEX, SINGLE, files_of};

#[derive(Debug, thiserror::Error)]
pub enum CheckpointError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error(
        "{folder} holds no weights: neither {SINGLE} nor {INDEX}, but {found}. Convert the model to safetensors \
        (transformers: `save_pretrained(.., safe_serialization=True)`)"
    )]
    NoWeights { folder: PathBuf, found: String },
    #[error("{path} is not a safetensors index: {reason}. Download it again")]
    BadIndex { path: PathBuf, reason: String },
    #[error("{shard} is missing, though {index} names it. The download is incomplete; fetch it again")]
    MissingShard { index: PathBuf, shard: PathBuf },
    #[error("{path} is truncated: its header promises {expected} bytes, the file has {got}. Download it again")]
    Truncated { path: PathBuf, expected: u64, got: u64 },
    #[error("{path} is not a valid safetensors file: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error(
        "{path} is not a file of tensors that PyTorch saved: {reason}. Download it again, or convert it to safetensors"
    )]
    BadPickle { path: PathBuf, reason: String },
    #[error("{path} has no tensor `{tensor}`{hint}", hint = hint(nearest))]
    MissingTensor { path: PathBuf, tensor: String, nearest: Option<String> },
    #[error("tensor `{tensor}` in {path} has dtype {got}, expected {expected}")]
    Dtype { path: PathBuf, tensor: String, got: String, expected: &'static str },
}

fn hint(nearest: &Option<String>) -> String {
    match nearest {
        Some(name) => format!("; the nearest it has is `{name}`. The config and the weights may belong to two models"),
        None => ", nor one like it. The config and the weights may belong to two models".to_owned(),
    }
}

/// Named tensors over mapped files.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    shards: Vec<Shard>,
    tensors: BTreeMap<String, Entry>,
}

#[derive(Debug)]
struct Shard {
    path: PathBuf,
    mapping: Arc<Mmap>,
    /// Whether the memory would come back from a file.
    is_file: bool,
}

#[derive(Debug)]
struct Entry {
    shard: usize,
    shape: Vec<usize>,
    dtype: Option<DType>,
    ggml: Option<GgmlDType>,
    dtype_name: String,
    range: Range<usize>,
    order: RowOrder,
}

/// One tensor where it lies: row-major, little-endian.
#[derive(Debug, Clone, Copy)]
pub struct NamedTensor<'a> {
    pub name: &'a str,
    pub shape: &'a [usize],
    /// `None`: a type that this build cannot name; `dtype_name` is then all there is.
    pub dtype: Option<DType>,
    /// The block type of a quantised GGUF tensor, which has no `dtype`.
    pub ggml: Option<GgmlDType>,
    /// As the file writes it, such as `BF16` or `Q4K`.
    pub dtype_name: &'a str,
    pub bytes: &'a [u8],
    /// How `bytes` order the rows.
    pub order: RowOrder,
    /// The file it lies in.
    pub file: &'a Path,
}

impl<'a> NamedTensor<'a> {
    /// The bytes of each row (along the first dimension), in Hugging Face's order; a vector that needs no reordering
    /// is one row.
    pub fn rows(&self) -> impl Iterator<Item = &'a [u8]> {
        let (bytes, order) = (self.bytes, self.order);
        let count = match (self.shape, order) {
            ([] | [_], RowOrder::Same) => 1,
            (shape, _) => shape.first().copied().unwrap_or(1),
        };
        let len = bytes.len() / count.max(1);
        (0..count).map(move |row| &bytes[order.stored(row) * len..][..len])
    }
}

impl Checkpoint {
    /// Maps a folder's `model.safetensors`, or the shards of its index, or one `.safetensors` or `.gguf` file. What is
    /// pickled (`.bin`, `.pt`, in a folder without safetensors) is read.
    pub fn open(path: &Path) -> Result<Self, CheckpointError> {
        if gguf::is_gguf(path) {
            return Self::from_gguf(&Gguf::open(path)?);
        }
        let files = if path.is_dir() { files_of(path)? } else { vec![path.to_owned()] };
        let mut checkpoint = Self { path: path.to_owned(), shards: Vec::new(), tensors: BTreeMap::new() };
        for file in files {
            if pickle::is_pickle(&file) { checkpoint.add_pickle(file)? } else { checkpoint.add(file)? }
        }
        Ok(checkpoint)
    }

    /// Whether its types were chosen for running it: a GGUF file's are.
    pub fn is_gguf(&self) -> bool {
        gguf::is_gguf(&self.path)
    }

    /// Where it was opened.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// All tensors, by name.
    pub fn tensors(&self) -> impl Iterator<Item = NamedTensor<'_>> {
        self.tensors.iter().map(|(name, entry)| self.view(name, entry))
    }

    pub fn contains(&self, name: &str) -> bool {
        self.entry(name).is_ok()
    }

    /// The tensor of this name; the error gives the nearest one.
    pub fn tensor(&self, name: &str) -> Result<NamedTensor<'_>, CheckpointError> {
        let (name, entry) = self.entry(name)?;
        Ok(self.view(name, entry))
    }

    /// The tensor's bytes as they lie, with a share in the mapping, for whoever outlives this checkpoint.
    pub fn shared_bytes(&self, name: &str) -> Result<SharedBytes, CheckpointError> {
        let (_, entry) = self.entry(name)?;
        let shard = &self.shards[entry.shard];
        Ok(SharedBytes::new(shard.mapping.clone(), entry.range.clone()).expect("ranges were taken from this mapping"))
    }

    /// Gives the memory that reading a tensor took back to the system; the tensor can be read again.
    pub fn forget(&self, name: &str) {
        if let Ok((_, entry)) = self.entry(name)
            && self.shards[entry.shard].is_file
        {
            mapping::forget(&self.shards[entry.shard].mapping, entry.range.clone());
        }
    }

    fn from_gguf(file: &Gguf) -> Result<Self, CheckpointError> {
        let mut tensors = BTreeMap::new();
        for tensor in file.tensors() {
            let (name, place) = tensor?;
            let dtype = match place.kind {
                GgmlDType::F32 => Some(DType::F32),
                GgmlDType::BF16 => Some(DType::Bf16),
                GgmlDType::F16 => Some(DType::F16),
                _ => None,
            };
            let entry = Entry {
                shard: 0,
                order: gguf::row_order(file, name, place.shape.first().copied().unwrap_or(1))?,
                shape: place.shape,
                dtype,
                ggml: dtype.is_none().then_some(place.kind),
                dtype_name: format!("{:?}", place.kind),
                range: place.range,
            };
            tensors.insert(name.to_owned(), entry);
        }
        let shard = Shard { path: file.path().to_owned(), mapping: Arc::clone(file.mapping()), is_file: true };
        Ok(Self { path: file.path().to_owned(), shards: vec![shard], tensors })
    }

    /// By the file's name, or by the one that Hugging Face's checkpoints have for it.
    fn entry(&self, name: &str) -> Result<(&String, &Entry), CheckpointError> {
        let own = gguf_name(name).filter(|_| gguf::is_gguf(&self.path));
        let own = own.as_deref().unwrap_or(name);
        let found = self.tensors.get_key_value(own).or_else(|| self.tensors.get_key_value(name));
        found.ok_or_else(|| CheckpointError::MissingTensor {
            path: self.path.clone(),
            tensor: own.to_owned(),
            nearest: nearest(own, self.tensors.keys().map(String::as_str)).map(str::to_owned),
        })
    }

    fn view<'a>(&'a self, name: &'a str, entry: &'a Entry) -> NamedTensor<'a> {
        let shard = &self.shards[entry.shard];
        let (shape, dtype_name) = (entry.shape.as_slice(), entry.dtype_name.as_str());
        let bytes = &shard.mapping[entry.range.clone()];
        let Entry { dtype, ggml, order, .. } = *entry;
        NamedTensor { name, shape, dtype, ggml, dtype_name, bytes, order, file: &shard.path }
    }

    fn add(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let mapping =
            mapping::map(&path).map_err(|source| CheckpointError::Unreadable { path: path.clone(), source })?;
        let parsed = SliceSafetensors::new(&mapping).map_err(|error| damage(&path, &mapping, &error))?;
        let start = mapping.as_ptr() as usize;
        for (name, view) in parsed.tensors() {
            let offset = view.data().as_ptr() as usize - start;
            let dtype_name = format!("{:?}", view.dtype());
            let entry = Entry {
                shard: self.shards.len(),
                shape: view.shape().to_vec(),
                dtype: dtype_of(&dtype_name),
                ggml: None,
                dtype_name,
                range: offset..offset + view.data().len(),
                order: RowOrder::Same,
            };
            self.tensors.insert(name, entry);
        }
        drop(parsed);
        self.shards.push(Shard { path, mapping, is_file: true });
        Ok(())
    }

    fn add_pickle(&mut self, path: PathBuf) -> Result<(), CheckpointError> {
        let malformed = |error: candle_core::Error| CheckpointError::BadPickle {
            path: path.clone(),
            reason: error.to_string().lines().next().unwrap_or_default().to_owned(),
        };
        let (tensors, mapping) = pickle::read(&path).map_err(malformed)?;
        if tensors.is_empty() {
            let reason = "it holds no tensors by name".to_owned();
            return Err(CheckpointError::BadPickle { path, reason });
        }
        for Pickled { name, shape, dtype_name, range } in tensors {
            let (shard, dtype_name) = (self.shards.len(), dtype_name.to_owned());
            let dtype = dtype_of(&dtype_name);
            let entry = Entry { shard, shape, dtype, ggml: None, dtype_name, range, order: RowOrder::Same };
            self.tensors.insert(name, entry);
        }
        self.shards.push(Shard { path, mapping: Arc::new(mapping), is_file: false });
        Ok(())
    }
}

fn dtype_of(name: &str) -> Option<DType> {
    match name {
        "F32" => Some(DType::F32),
        "BF16" => Some(DType::Bf16),
        "F16" => Some(DType::F16),
        "U32" => Some(DType::U32),
        "I64" => Some(DType::I64),
        "U8" | "BOOL" => Some(DType::U8),
        _ => None,
    }
}

/// Tells a truncated file from a malformed one, since the first is what interrupted downloads leave.
fn damage(path: &Path, bytes: &[u8], error: &candle_core::Error) -> CheckpointError {
    let got = bytes.len() as u64;
    match promised_len(bytes) {
        Some(expected) if expected > got => CheckpointError::Truncated { path: path.to_owned(), expected, got },
        _ => CheckpointError::Malformed { path: path.to_owned(), reason: error.to_string() },
    }
}

/// The length that a safetensors header promises: 8 bytes, the header, and the last tensor's end.
fn promised_len(bytes: &[u8]) -> Option<u64> {
    let header_len = u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?);
    let data_start = header_len.checked_add(8)?;
    let Some(header) = bytes.get(8..usize::try_from(data_start).ok()?) else {
        // A first word that is no plausible length means another format, not a truncated file.
        return (header_len < 100_000_000).then_some(data_start);
    };
    let header: Value = serde_json::from_slice(header).ok()?;
    let ends = header.as_object()?.values().filter_map(|tensor| tensor["data_offsets"][1].as_u64());
    data_start.checked_add(ends.max().unwrap_or(0))
}
