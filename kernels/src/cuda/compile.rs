//! A `.cu` to machine code, by NVRTC.
//!
//! The result is a CUBIN for the one architecture at hand, not PTX: the driver need not compile it again, and a newer
//! NVRTC may serve an older driver, which refuses newer PTX. Shared headers are handed over by name, so that a kernel
//! includes them here as under `g++`, and no toolkit's headers are needed.

use super::{CudaError, library};
use cudarc::nvrtc::{result, sys};
use std::ffi::{CStr, CString, c_char};
use std::ptr;

/// A file of CUDA C++, carried in the program.
pub(crate) struct Source {
    /// File name, as shown in errors and written in `#include`.
    pub name: &'static str,
    /// All of it.
    pub text: &'static str,
}

/// What any kernel may include.
pub(super) const HEADERS: [Source; 1] = [Source { name: "narrow.cuh", text: include_str!("narrow.cuh") }];

/// NVRTC's options for devices of the given compute capability. Contraction is off, as it is in Rust: a fused
/// multiply-add is written `fmaf` where it is meant.
pub(super) fn options((major, minor): (i32, i32)) -> Vec<String> {
    vec![format!("--gpu-architecture=sm_{major}{minor}"), "--fmad=false".into(), "--std=c++17".into()]
}

/// Machine code of all kernels in `source`.
pub(super) fn compile(source: &Source, options: &[String]) -> Result<Vec<u8>, CudaError> {
    library::nvrtc()?;
    let failed = |log| CudaError::Compile { file: source.name, options: options.to_vec(), log };
    let program = Program::new(source).map_err(|error| failed(error.to_string()))?;
    // SAFETY: `program` owns a live NVRTC program.
    if let Err(error) = unsafe { result::compile_program(program.0, options) } {
        return Err(failed(format!("{error}\n{}", program.log())));
    }
    program.cubin().map_err(|error| failed(error.to_string()))
}

/// Owns an NVRTC program.
struct Program(sys::nvrtcProgram);

impl Program {
    fn new(source: &Source) -> Result<Self, result::NvrtcError> {
        let c_string = |text: &str| CString::new(text).expect("source text has no NUL");
        let (text, name) = (c_string(source.text), c_string(source.name));
        let headers = HEADERS.map(|header| (c_string(header.text), c_string(header.name)));
        let header_texts = headers.each_ref().map(|(text, _)| text.as_ptr());
        let header_names = headers.each_ref().map(|(_, name)| name.as_ptr());
        let (count, mut program) = (HEADERS.len() as i32, ptr::null_mut());
        // SAFETY: all are NUL-terminated strings that outlive the call, the arrays have `count` elements, and NVRTC
        // keeps copies.
        unsafe {
            let texts = (header_texts.as_ptr(), header_names.as_ptr());
            sys::nvrtcCreateProgram(&mut program, text.as_ptr(), name.as_ptr(), count, texts.0, texts.1).result()?;
        }
        Ok(Self(program))
    }

    fn log(&self) -> String {
        // SAFETY: the program is live.
        let log = unsafe { result::get_program_log(self.0) }.unwrap_or_default();
        let bytes: Vec<u8> = log.into_iter().map(|c| c as u8).collect();
        let text = CStr::from_bytes_until_nul(&bytes).unwrap_or_default();
        text.to_string_lossy().trim().to_owned()
    }

    fn cubin(&self) -> Result<Vec<u8>, result::NvrtcError> {
        let mut size = 0;
        // SAFETY: the program is live, and the size is written to the address.
        unsafe { sys::nvrtcGetCUBINSize(self.0, &mut size) }.result()?;
        let mut code = vec![0u8; size];
        // SAFETY: `code` has the bytes that NVRTC said it will write.
        unsafe { sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast::<c_char>()) }.result()?;
        Ok(code)
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // A failure would leave a compiler's scratch memory behind, nothing else.
        // SAFETY: the program is live, and nothing uses it after this.
        let _ = unsafe { result::destroy_program(self.0) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Needs NVRTC, but no device: none if it is missing.
    fn compiled(text: &'static str) -> Option<Result<Vec<u8>, CudaError>> {
        let result = compile(&Source { name: "test.cu", text }, &options((8, 0)));
        if let Err(CudaError::LibraryMissing { .. }) = result {
            println!("skipped: this machine has no NVRTC");
            return None;
        }
        Some(result)
    }

    #[test]
    fn every_kernel_becomes_an_elf_image() {
        let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
        let ops = std::fs::read_dir(root.join("src/ops")).expect("src/ops").flatten();
        let of_op = |op: std::fs::DirEntry| op.path().join(op.file_name()).with_extension("cu");
        for path in ops.map(of_op).filter(|path| path.is_file()).chain([root.join("tests/ops/cuda/selftest.cu")]) {
            let text = std::fs::read_to_string(&path).expect("the kernel").leak();
            let Some(code) = compiled(text) else { return };
            let code = code.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(code.starts_with(b"\x7fELF"), "{}", path.display());
        }
    }

    #[test]
    fn a_compile_error_carries_the_log() {
        if let Some(code) = compiled("extern \"C\" __global__ void k() { nonsense; }") {
            let text = code.unwrap_err().to_string();
            assert!(text.contains("test.cu") && text.contains("nonsense") && text.contains("sm_80"), "{text}");
        }
    }
}
