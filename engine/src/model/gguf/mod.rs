//! A GGUF file: its metadata and where its tensors lie, over memory-mapped bytes.
//!
//! Neighbours: `metadata` reads typed values, `architecture` words them as a `config.json`, `names` maps tensors to
//! Hugging Face's names and row order, `model::checkpoint` serves the tensors, `text::gguf` builds the tokenizer. The
//! header is candle's to parse (format: ggml's docs/gguf.md). What it leaves open is checked here, before anything is
//! believed: places inside the file, whole blocks, alignment, and its panics on a damaged header. Every reader opens
//! the file anew: the header costs milliseconds, and in exchange a path is all that has to be passed around.

mod architecture;
mod metadata;
mod names;

use std::io::Cursor;
use std::ops::Range;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::{Content, TensorInfo};
use memmap2::Mmap;

pub(super) use architecture::architecture;
pub(super) use names::{RowOrder, gguf_name, row_order};

use super::mapping;

/// The tensor types that can be read, as llama.cpp names them.
pub const SUPPORTED_TYPES: &str = "F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K, Q3_K, Q4_K, Q5_K, Q6_K and Q8_K";

/// Why a GGUF file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum GgufError {
    #[error("cannot read {path}: {source}")]
    Unreadable { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a GGUF file: it begins with {got}, expected \"GGUF\". Give a .gguf file or a folder")]
    NotGguf { path: PathBuf, got: String },
    #[error("the header of {path} cannot be read: {reason}. The download may be incomplete; fetch it again")]
    Damaged { path: PathBuf, reason: String },
    #[error(
        "{path} is part of a model split over {parts} files. Join them first: `llama-gguf-split --merge FIRST.gguf \
        JOINED.gguf`"
    )]
    Split { path: PathBuf, parts: usize },
    #[error(
        "{path} has no metadata key `{key}`, expected {expected}. Convert the model again with llama.cpp's \
        convert_hf_to_gguf.py, which writes it"
    )]
    MissingKey { path: PathBuf, key: String, expected: String },
    #[error("{path}: metadata key `{key}` is {got}, expected {expected}. Convert the model again")]
    WrongValue { path: PathBuf, key: String, got: String, expected: String },
    #[error(
        "tensor `{tensor}` in {path} has type {got}, expected one of {SUPPORTED_TYPES}. Take the model in another \
        quantisation, such as Q4_K_M"
    )]
    UnsupportedType { path: PathBuf, tensor: String, got: String },
    #[error("{path} is truncated: tensor `{tensor}` ends at byte {expected}, the file has {got}. Download it again")]
    Truncated { path: PathBuf, tensor: String, expected: u64, got: u64 },
    #[error("tensor `{tensor}` in {path} {got}, expected {expected}. The file is damaged; fetch it again")]
    BadTensor { path: PathBuf, tensor: String, got: String, expected: String },
}

/// Whether `path` names a GGUF file: by its extension alone, so that a missing file is still called by its kind.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf"))
}

/// An open file. Tensors have the file's own names and row order.
#[derive(Debug)]
pub struct Gguf {
    path: PathBuf,
    mapping: Arc<Mmap>,
    content: Content,
}

/// A tensor where it lies.
pub(super) struct Place {
    /// Outermost dimension first, as everywhere else (the file writes it last).
    pub shape: Vec<usize>,
    pub kind: GgmlDType,
    /// Bytes of the file.
    pub range: Range<usize>,
}

impl Gguf {
    /// Maps the file and reads its header.
    pub fn open(path: &Path) -> Result<Self, GgufError> {
        let mapping = mapping::map(path).map_err(|source| GgufError::Unreadable { path: path.to_owned(), source })?;
        let content = header(path, &mapping)?;
        let file = Self { path: path.to_owned(), mapping, content };
        match file.get::<usize>("split.count")? {
            Some(parts) if parts > 1 => Err(GgufError::Split { path: file.path, parts }),
            _ => Ok(file),
        }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn mapping(&self) -> &Arc<Mmap> {
        &self.mapping
    }

    pub(super) fn has_tensor(&self, name: &str) -> bool {
        self.content.tensor_infos.contains_key(name)
    }

    /// All tensors, in no order; each is checked to lie inside the file and to be made of whole blocks.
    pub(super) fn tensors(&self) -> impl Iterator<Item = Result<(&str, Place), GgufError>> {
        self.content.tensor_infos.iter().map(|(name, info)| Ok((name.as_str(), self.place(name, info)?)))
    }

    /// The values of an f32 vector, if the file has it.
    pub(super) fn f32_vector(&self, name: &str) -> Result<Option<Vec<f32>>, GgufError> {
        let Some(info) = self.content.tensor_infos.get(name) else { return Ok(None) };
        let place = self.place(name, info)?;
        if place.kind != GgmlDType::F32 {
            return Err(self.bad(name, format!("has type {:?}", place.kind), "F32"));
        }
        let words = self.mapping[place.range].as_chunks::<4>().0.iter();
        Ok(Some(words.map(|word| f32::from_le_bytes(*word)).collect()))
    }

    fn place(&self, name: &str, info: &TensorInfo) -> Result<Place, GgufError> {
        let (kind, shape) = (info.ggml_dtype, info.shape.dims().to_vec());
        if kind == GgmlDType::Q8_1 {
            return Err(self.unsupported(name, "Q8_1"));
        }
        let columns = shape.last().copied().unwrap_or(1);
        if !columns.is_multiple_of(kind.block_size()) {
            let expected = format!("rows of whole {kind:?} blocks of {} values", kind.block_size());
            return Err(self.bad(name, format!("has shape {shape:?}"), &expected));
        }
        let (count, start) = (
            shape.iter().try_fold(1_usize, |count, size| count.checked_mul(*size)),
            self.content.tensor_data_offset.checked_add(info.offset),
        );
        let len = count.and_then(|count| (count / kind.block_size()).checked_mul(kind.type_size()));
        let end = start.zip(len).and_then(|(start, len)| start.checked_add(len as u64)).unwrap_or(u64::MAX);
        let (start, got) = (start.unwrap_or(u64::MAX), self.mapping.len() as u64);
        if end > got {
            let (path, tensor) = (self.path.clone(), name.to_owned());
            return Err(GgufError::Truncated { path, tensor, expected: end, got });
        }
        // Blocks are read through typed views; the format promises at least 8.
        if !start.is_multiple_of(4) {
            return Err(self.bad(name, format!("begins at byte {start}"), "a multiple of the file's alignment"));
        }
        Ok(Place { shape, kind, range: start as usize..end as usize })
    }

    fn bad(&self, tensor: &str, got: String, expected: &str) -> GgufError {
        let (path, tensor, expected) = (self.path.clone(), tensor.to_owned(), expected.to_owned());
        GgufError::BadTensor { path, tensor, got, expected }
    }

    fn unsupported(&self, tensor: &str, got: &str) -> GgufError {
        GgufError::UnsupportedType { path: self.path.clone(), tensor: tensor.to_owned(), got: got.to_owned() }
    }
}

fn header(path: &Path, bytes: &[u8]) -> Result<Content, GgufError> {
    let magic = &bytes[..bytes.len().min(4)];
    if magic != b"GGUF" {
        return Err(GgufError::NotGguf { path: path.to_owned(), got: format!("{:?}", String::from_utf8_lossy(magic)) });
    }
    // candle divides by the alignment that the file states.
    let read = catch_unwind(|| {
        let mut cursor = Cursor::new(bytes);
        Content::read(&mut cursor).map_err(|error| (error.to_string(), cursor.position() as usize))
    });
    let (reason, at) = match read {
        Ok(Ok(content)) => return Ok(content),
        Ok(Err(failure)) => failure,
        Err(_) => ("a value in it makes no sense (such as an alignment of 0)".to_owned(), 0),
    };
    match unknown_type(&bytes[..at.min(bytes.len())]) {
        Some((tensor, got)) if reason.contains("unknown dtype") => {
            Err(GgufError::UnsupportedType { path: path.to_owned(), tensor, got })
        }
        _ => Err(GgufError::Damaged { path: path.to_owned(), reason }),
    }
}

/// The name and type of the tensor whose entry `read` ends in. candle stops after a type it does not know and tells its
/// number only; before it lie the dimensions (u64 each), their count (u32), the name and the name's length (u64).
fn unknown_type(read: &[u8]) -> Option<(String, String)> {
    let (rest, kind) = read.split_last_chunk::<4>()?;
    let named = (1..=4).find_map(|count: usize| {
        let (rest, got) = rest.get(..rest.len().checked_sub(8 * count)?)?.split_last_chunk::<4>()?;
        (u32::from_le_bytes(*got) as usize == count).then_some(rest)
    })?;
    let name = (1..=256.min(named.len())).find_map(|len: usize| {
        let (rest, name) = named.split_at(named.len() - len);
        (u64::from_le_bytes(*rest.last_chunk()?) == len as u64).then_some(name)
    })?;
    Some((String::from_utf8_lossy(name).into_owned(), type_name(u32::from_le_bytes(*kind))))
}

/// ggml's names of the types that candle does not read (ggml.h, `enum ggml_type`).
fn type_name(kind: u32) -> String {
    let name = match kind {
        16 => "IQ2_XXS",
        17 => "IQ2_XS",
        18 => "IQ3_XXS",
        19 => "IQ1_S",
        20 => "IQ4_NL",
        21 => "IQ3_S",
        22 => "IQ2_S",
        23 => "IQ4_XS",
        24 => "I8",
        25 => "I16",
        26 => "I32",
        27 => "I64",
        28 => "F64",
        29 => "IQ1_M",
        34 => "TQ1_0",
        35 => "TQ2_0",
        39 => "MXFP4",
        _ => return format!("number {kind}"),
    };
    name.to_owned()
}
