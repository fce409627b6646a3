//! PyTorch's pickled files (`pytorch_model.bin`, `.pt`), which some draft heads are published as.
//!
//! candle-core reads them; nothing in a file is executed. The tensors are copied into memory of their own, since a pickle
//! may stride them, and then treated like those of a mapped file.

use std::path::Path;

use candle_core::pickle::PthTensors;
use candle_core::{DType, Tensor};
use memmap2::{Mmap, MmapMut};

/// One tensor in the bytes beside it.
pub(super) struct Pickled {
    pub name: String,
    pub shape: Vec<usize>,
    /// As safetensors writes it.
    pub dtype_name: &'static str,
    pub range: std::ops::Range<usize>,
}

/// Whether the name is that of a pickled file.
pub(super) fn is_pickle(path: &Path) -> bool {
    path.extension().is_some_and(|extension| ["bin", "pt", "pth"].iter().any(|known| extension == *known))
}

/// The tensors of `path`, and their bytes.
pub(super) fn read(path: &Path) -> candle_core::Result<(Vec<Pickled>, Mmap)> {
    let file = PthTensors::new(path, None)?;
    let mut names: Vec<&String> = file.tensor_infos().keys().collect();
    names.sort();
    let (mut tensors, mut bytes): (Vec<Pickled>, Vec<u8>) = Default::default();
    for name in names {
        let Some(tensor) = file.get(name)? else { continue };
        let start = bytes.len();
        let dtype_name = append(&tensor.flatten_all()?, &mut bytes)?;
        let range = start..bytes.len();
        tensors.push(Pickled { name: name.clone(), shape: tensor.dims().to_vec(), dtype_name, range });
        // As aligned as an element of any type wants.
        bytes.resize(bytes.len().next_multiple_of(64), 0);
    }
    let mut memory = MmapMut::map_anon(bytes.len().max(1))?;
    memory[..bytes.len()].copy_from_slice(&bytes);
    Ok((tensors, memory.make_read_only()?))
}

/// Appends the elements of a flat tensor, little-endian; returns the name of their type.
fn append(flat: &Tensor, bytes: &mut Vec<u8>) -> candle_core::Result<&'static str> {
    match flat.dtype() {
        DType::F16 => bytes.extend(flat.to_vec1::<half::f16>()?.into_iter().flat_map(half::f16::to_le_bytes)),
        DType::BF16 => bytes.extend(flat.to_vec1::<half::bf16>()?.into_iter().flat_map(half::bf16::to_le_bytes)),
        DType::I64 => bytes.extend(flat.to_vec1::<i64>()?.into_iter().flat_map(i64::to_le_bytes)),
        DType::U8 => bytes.extend(flat.to_vec1::<u8>()?),
        // f64 and whatever else rounds to f32.
        _ => bytes.extend(flat.to_dtype(DType::F32)?.to_vec1::<f32>()?.into_iter().flat_map(f32::to_le_bytes)),
    }
    Ok(match flat.dtype() {
        DType::F16 => "F16",
        DType::BF16 => "BF16",
        DType::I64 => "I64",
        DType::U8 => "U8",
        _ => "F32",
    })
}
