//! A CUDA device, reached at run time: cudarc opens the driver and NVRTC, so that one binary, built without a
//! toolkit, serves machines with a GPU and without.
//!
//! An op's `cuda.rs` carries its source and launches it; here a source becomes functions, once per device and, by
//! way of a cache on disk, once per machine. An op's CUDA form takes views of device memory where the CPU form takes
//! slices, and no [`Exec`](crate::Exec): the two share no argument, and a common tensor type would only move the
//! choice of device into every op.

mod cache;
mod compile;
mod error;
mod library;

pub(crate) use compile::Source;
pub use cudarc::driver::{CudaSlice, CudaStream, CudaView, CudaViewMut, DriverError};
pub(crate) use cudarc::driver::{LaunchConfig, PushKernelArg};
pub use error::CudaError;

use cache::Cache;
use cudarc::driver::{CudaContext, CudaFunction, CudaModule};
use cudarc::nvrtc::Ptx;
use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

/// One CUDA device, its stream, and the kernels loaded so far.
pub struct Cuda {
    stream: Arc<CudaStream>,
    /// NVRTC's, for this device's architecture.
    options: Vec<String>,
    cache: Cache,
    loaded: Mutex<Loaded>,
}

#[derive(Default)]
struct Loaded {
    /// By the name of the source.
    modules: HashMap<&'static str, Arc<CudaModule>>,
    /// By the names of source and kernel.
    functions: HashMap<(&'static str, &'static str), CudaFunction>,
}

impl Cuda {
    /// Opens device `ordinal`, counted from 0 among those that the driver shows.
    ///
    /// # Errors
    /// If this machine has no driver, no such device, or a driver that is too old or fails.
    pub fn open(ordinal: usize) -> Result<Self, CudaError> {
        library::driver()?;
        let found = match CudaContext::device_count() {
            Ok(count) => count as usize,
            Err(error) if error.0 == cudarc::driver::sys::CUresult::CUDA_ERROR_NO_DEVICE => 0,
            Err(error) => return Err(CudaError::driver("count the devices", error)),
        };
        if ordinal >= found {
            return Err(CudaError::NoDevice { ordinal, found });
        }
        let failed = |error| CudaError::driver(format!("open device {ordinal}"), error);
        let context = CudaContext::new(ordinal).map_err(failed)?;
        let capability = context.compute_capability().map_err(failed)?;
        Ok(Self {
            stream: context.default_stream(),
            options: compile::options(capability),
            cache: Cache::of_user(),
            loaded: Mutex::default(),
        })
    }

    /// Where every kernel and copy is queued, in order; also how memory is allocated and copied.
    pub fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// `kernel` of `source`, compiled and loaded at its first use.
    pub(crate) fn function(&self, source: &'static Source, kernel: &'static str) -> Result<CudaFunction, CudaError> {
        // An unwound holder leaves whole entries, so a poisoned lock guards nothing broken.
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let Loaded { modules, functions } = &mut *loaded;
        if let Some(function) = functions.get(&(source.name, kernel)) {
            return Ok(function.clone());
        }
        if !modules.contains_key(source.name) {
            modules.insert(source.name, self.load(source)?);
        }
        let failed = |error| CudaError::driver(format!("find `{kernel}` in {}", source.name), error);
        let function = modules[source.name].load_function(kernel).map_err(failed)?;
        functions.insert((source.name, kernel), function.clone());
        Ok(function)
    }

    /// The module of `source`: from the cache, or compiled and cached.
    fn load(&self, source: &Source) -> Result<Arc<CudaModule>, CudaError> {
        let load = |code| self.stream.context().load_module(Ptx::from_binary(code));
        let key = cache::key(source, &self.options);
        // A whole entry that this driver refuses (made for a newer one) is compiled anew, too.
        if let Some(Ok(module)) = self.cache.get(&key).map(load) {
            return Ok(module);
        }
        let code = compile::compile(source, &self.options)?;
        self.cache.put(&key, &code);
        load(code).map_err(|error| CudaError::driver(format!("load {}", source.name), error))
    }
}

impl fmt::Debug for Cuda {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Cuda(device {}, {})", self.stream.context().ordinal(), self.options.join(" "))
    }
}
