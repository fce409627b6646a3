//! Whether the CUDA libraries are there, asked before anything is called.
//!
//! cudarc opens a library at the first call into it, and panics if that fails or if a function is missing. So each is
//! probed under the names that cudarc will try, and its version compared with the functions that are used. Catching
//! the panic instead would print it to a user whose machine simply has no GPU.

use super::CudaError;
use cudarc::{driver, nvrtc};
use std::ffi::c_int;

/// Least CUDA version: 11.1 brought `nvrtcGetCUBIN`, 11.2 brought `cuMemAllocAsync`.
const OLDEST: (c_int, c_int) = (11, 2);

struct Library {
    words: &'static str,
    stem: &'static str,
    fix: &'static str,
}

const DRIVER: Library = Library {
    words: "the CUDA driver",
    stem: "cuda",
    fix: "install or update NVIDIA's driver, add its folder to LD_LIBRARY_PATH, or run with device = \"cpu\"",
};

const NVRTC: Library = Library {
    words: "NVRTC, the compiler of CUDA kernels,",
    stem: "nvrtc",
    fix: "install or update libnvrtc (part of the CUDA toolkit; \"pip install nvidia-cuda-nvrtc-cu12\" is enough), and add its folder to LD_LIBRARY_PATH",
};

impl Library {
    fn check(&self, present: bool, version: impl FnOnce() -> Option<(c_int, c_int)>) -> Result<(), CudaError> {
        if !present {
            let tried = cudarc::get_lib_name_candidates(self.stem);
            return Err(CudaError::LibraryMissing { library: self.words, tried, fix: self.fix });
        }
        let found = version().unwrap_or((0, 0));
        if found < OLDEST {
            return Err(CudaError::LibraryTooOld { library: self.words, expected: OLDEST, found, fix: self.fix });
        }
        Ok(())
    }
}

/// Checks that the driver can be called.
pub(super) fn driver() -> Result<(), CudaError> {
    // SAFETY: opens and closes the system's library of that name; its initialisers ask nothing of the caller.
    let present = unsafe { driver::sys::is_culib_present() };
    DRIVER.check(present, || {
        let mut version = 0;
        // SAFETY: the library is there, has this function since CUDA 2.2, and writes one int to the address.
        let result = unsafe { driver::sys::cuDriverGetVersion(&mut version) };
        result.result().ok().map(|()| (version / 1000, version % 1000 / 10))
    })
}

/// Checks that NVRTC can be called.
pub(super) fn nvrtc() -> Result<(), CudaError> {
    // SAFETY: opens and closes the system's library of that name; its initialisers ask nothing of the caller.
    let present = unsafe { nvrtc::sys::is_culib_present() };
    NVRTC.check(present, || {
        let (mut major, mut minor) = (0, 0);
        // SAFETY: the library is there, has had this function from the start, and writes an int to each address.
        let result = unsafe { nvrtc::sys::nvrtcVersion(&mut major, &mut minor) };
        result.result().ok().map(|()| (major, minor))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_library_is_named_with_what_was_tried_and_the_fix() {
        let error = DRIVER.check(false, || unreachable!("no version without a library")).unwrap_err();
        let text = error.to_string();
        for part in ["the CUDA driver not found", "libcuda.so.1", "LD_LIBRARY_PATH", "device = \"cpu\""] {
            assert!(text.contains(part), "{part:?} is not in: {text}");
        }
    }

    #[test]
    fn an_old_library_is_refused_with_both_versions() {
        assert_eq!(NVRTC.check(true, || Some(OLDEST)), Ok(()));
        let text = NVRTC.check(true, || Some((11, 1))).unwrap_err().to_string();
        assert!(text.contains("(11, 2)") && text.contains("(11, 1)"), "{text}");
    }
}
