//! Kernels on the CPU: `g++` compiles a `.cu` with `shim.h`, and `shim.cpp` runs its grid.
//!
//! The kernel is called through a closure, once per CUDA thread, so that its arguments need no second description.
//! Each launch is run under one [`Order`] of threads; a kernel whose result depends on it lacks a barrier. On a
//! machine with a GPU the same tests launch for real; see [`device`].

mod selftest;

use foretoken_kernels::cuda::{Cuda, CudaError};
use std::ffi::{CStr, c_char, c_void};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A `.cu`, compiled by `g++` into a library.
pub struct Shim {
    library: libloading::Library,
}

/// Which thread of a block runs first, and which block of a grid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    FirstFirst,
    LastFirst,
}

impl Order {
    pub const ALL: [Self; 2] = [Self::FirstFirst, Self::LastFirst];
}

/// Blocks of a grid or threads of a block.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct Dim3(pub u32, pub u32, pub u32);

/// Shape of a launch: grid and block, and bytes of dynamic shared memory.
#[derive(Clone, Copy)]
pub struct Launch {
    pub grid: Dim3,
    pub block: Dim3,
    pub shared: usize,
}

impl Launch {
    /// One dimension, no dynamic shared memory.
    pub fn flat(blocks: usize, threads: usize) -> Self {
        Self { grid: Dim3(blocks as u32, 1, 1), block: Dim3(threads as u32, 1, 1), shared: 0 }
    }
}

type ShimLaunch = unsafe extern "C" fn(
    extern "C" fn(*mut c_void),
    *const c_void,
    Dim3,
    Dim3,
    usize,
    bool,
    *mut c_char,
    usize,
) -> bool;

impl Shim {
    /// Compiles `src/ops/<op>/<op>.cu`.
    pub fn of_op(op: &str) -> Self {
        Self::compile(&root().join(format!("src/ops/{op}/{op}.cu")))
    }

    /// Compiles a `.cu`, failing the test if `g++` is missing or refuses it.
    pub fn compile(source: &Path) -> Self {
        let (folder, here) = (tempfile::tempdir().expect("a folder"), root().join("tests/ops/cuda"));
        let path = folder.path().join("kernel.so");
        let mut command = Command::new("g++");
        command.args(["-std=c++17", "-O1", "-fPIC", "-shared", "-ffp-contract=off"]);
        command.args(["-Wall", "-Werror", "-Wno-unknown-pragmas"]);
        command.arg("-I").arg(root().join("src/cuda")).arg("-include").arg(here.join("shim.h"));
        command.arg("-o").arg(&path).args(["-x", "c++"]).arg(source).arg(here.join("shim.cpp"));
        let output = command.output().unwrap_or_else(|error| {
            panic!("this test compiles {} with g++, which did not start: {error}; install g++", source.display())
        });
        let log = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "g++ refuses {}:\n{log}", source.display());
        // SAFETY: just made of this repository's sources, whose initialisers set up nothing but shim.cpp's globals. An
        // open library does not need its file, so the folder goes here.
        let library = unsafe { libloading::Library::new(&path) }.expect("g++ made a library");
        Self { library }
    }

    /// The kernel's function; `F` is its `unsafe extern "C" fn` type.
    pub fn kernel<F: Copy>(&self, name: &str) -> F {
        // SAFETY: the caller states the type; it calls the kernel inside `launch`, while the library is open.
        *unsafe { self.library.get::<F>(name) }.unwrap_or_else(|error| panic!("no kernel `{name}`: {error}"))
    }

    /// Runs the grid, calling `kernel` as each of its threads; an error says what a device would leave undefined.
    pub fn launch<K: Fn()>(&self, launch: Launch, order: Order, kernel: K) -> Result<(), String> {
        extern "C" fn thread<K: Fn()>(kernel: *mut c_void) {
            // SAFETY: the pointer that `launch` gave, to a closure that it keeps.
            unsafe { (*kernel.cast::<K>())() }
        }
        let run: ShimLaunch = self.kernel("shim_launch");
        let (mut message, context) = ([0; 512], (&raw const kernel).cast());
        let Launch { grid, block, shared } = launch;
        let last_first = order == Order::LastFirst;
        // SAFETY: `thread` and `context` belong together; the message is as long as said.
        let done =
            unsafe { run(thread::<K>, context, grid, block, shared, last_first, message.as_mut_ptr(), message.len()) };
        // SAFETY: shim.cpp ends the text with a NUL.
        let text = unsafe { CStr::from_ptr(message.as_ptr()) };
        if done { Ok(()) } else { Err(text.to_string_lossy().into_owned()) }
    }
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The first CUDA device; none, which is printed, if this machine has no GPU.
pub fn device() -> Option<Cuda> {
    match Cuda::open(0) {
        Ok(cuda) => Some(cuda),
        Err(error @ (CudaError::LibraryMissing { .. } | CudaError::NoDevice { .. })) => {
            println!("skipped on a device: {error}");
            None
        }
        Err(error) => panic!("this machine has a CUDA device that cannot be used: {error}"),
    }
}
