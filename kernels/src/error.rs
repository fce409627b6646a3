//! What can be wrong with data that comes from files or from another library.
//!
//! Only such borders return [`KernelError`]. Inside a pass the shapes were checked when the blocks were built, so the
//! ops assert instead, and their messages name the dimension: a violated assert is a bug of the caller.

use crate::simd::SimdLevel;
use crate::weight::WeightDtype;

/// A tensor, buffer or setting that does not fit, with what was expected, what was found, and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KernelError {
    /// The tensor has other dimensions than the block that takes it.
    #[error("tensor `{tensor}`: expected shape {expected:?}, got {got:?}")]
    Shape {
        /// Name of the tensor, as the block's field path.
        tensor: String,
        /// Dimensions the block needs.
        expected: Vec<usize>,
        /// Dimensions it was given.
        got: Vec<usize>,
    },
    /// The bytes of a tensor do not match its shape and dtype.
    #[error("tensor `{tensor}`: expected {expected} bytes, got {got}")]
    ByteLen {
        /// Name of the tensor.
        tensor: String,
        /// rows * cols * size of an element.
        expected: usize,
        /// Bytes found.
        got: usize,
    },
    /// A row does not divide into the blocks of its format.
    #[error(
        "tensor `{tensor}`: {dtype} stores blocks of {multiple} weights, and a row of {got} is no multiple of that"
    )]
    BlockCols {
        /// Name of the tensor.
        tensor: String,
        /// Its format.
        dtype: WeightDtype,
        /// Weights of a block.
        multiple: usize,
        /// Weights of a row.
        got: usize,
    },
    /// A tensor of a host's file that holds no floats.
    #[error("tensor `{tensor}` is {got}, expected F32, F16 or Bf16")]
    ViewDtype {
        /// Name of the tensor.
        tensor: String,
        /// What it holds.
        got: String,
    },
    /// A byte range that ends outside of its owner.
    #[error("byte range {start}..{end} is outside of its owner's {owner_len} bytes")]
    Range {
        /// First byte.
        start: usize,
        /// One past the last byte.
        end: usize,
        /// Bytes the owner has.
        owner_len: usize,
    },
    /// Memory lent for keys and values does not fit its layout.
    #[error("KV memory: expected {what} {expected}, got {got}")]
    KvMemory {
        /// The quantity that does not fit.
        what: &'static str,
        /// What the layout needs.
        expected: usize,
        /// What was given.
        got: usize,
    },
    /// The head layout is one that the attention kernel cannot serve.
    #[error("attention: {what} must be {rule}, got {got}")]
    HeadLayout {
        /// The quantity at fault.
        what: &'static str,
        /// The rule it breaks.
        rule: &'static str,
        /// What was given.
        got: usize,
    },
    /// A SIMD level that this machine does not have.
    #[error("SIMD level `{requested}` is not available here; the best this machine has is `{best}`")]
    SimdUnsupported {
        /// Level asked for.
        requested: SimdLevel,
        /// Best level detected.
        best: SimdLevel,
    },
    /// A value of `FORETOKEN_SIMD` that names no level.
    #[error("FORETOKEN_SIMD=`{got}` names no SIMD level; use one of {}", SimdLevel::ALL.map(|it| it.to_string()).join(", "))]
    SimdUnknown {
        /// The value found.
        got: String,
    },
}
