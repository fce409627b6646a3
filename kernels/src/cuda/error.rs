//! What can go wrong between a machine that may have no CUDA and a kernel that runs.
//!
//! Apart from [`KernelError`](crate::KernelError), whose causes are data: here the cause is the machine, and the fix
//! is an installation or another device.

use cudarc::driver::DriverError;

/// A library, device or kernel that is not to be had, with what was tried and the fix.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CudaError {
    /// None of the names of a CUDA library can be opened.
    #[error("{library} not found\n  tried: {}\n  fix: {fix}", tried.join(", "))]
    LibraryMissing {
        /// The library in words.
        library: &'static str,
        /// File names given to the system's loader, in order.
        tried: Vec<String>,
        /// What a user can do.
        fix: &'static str,
    },
    /// A CUDA library is older than the functions that are needed from it.
    #[error("{library} is too old\n  expected: {expected:?} or newer\n  found: {found:?}\n  fix: {fix}")]
    LibraryTooOld {
        /// The library in words.
        library: &'static str,
        /// Least CUDA version, as (major, minor).
        expected: (i32, i32),
        /// CUDA version found, as (major, minor).
        found: (i32, i32),
        /// What a user can do.
        fix: &'static str,
    },
    /// The driver has no device of this number.
    #[error(
        "no CUDA device {ordinal}: this machine shows {found} of them, counted from 0\n  fix: choose another, see CUDA_VISIBLE_DEVICES, or run with device = \"cpu\""
    )]
    NoDevice {
        /// The number asked for.
        ordinal: usize,
        /// Devices that the driver shows.
        found: usize,
    },
    /// NVRTC refuses a kernel.
    #[error("NVRTC could not compile {file} with {options:?}: {log}")]
    Compile {
        /// The `.cu`.
        file: &'static str,
        /// Options it was compiled with.
        options: Vec<String>,
        /// The compiler's error code and log.
        log: String,
    },
    /// A call of the driver failed.
    #[error("CUDA driver: could not {what}: {code}")]
    Driver {
        /// What was attempted.
        what: String,
        /// The driver's error code and its meaning.
        code: String,
    },
}

impl CudaError {
    /// A failed call of the driver, made in order to `what`.
    pub(crate) fn driver(what: impl Into<String>, error: DriverError) -> Self {
        Self::Driver { what: what.into(), code: error.to_string() }
    }
}
