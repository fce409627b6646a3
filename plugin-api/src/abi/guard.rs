//! Panics and errors at the border: caught by the library that panicked, turned into a plain error, and the instance
//! poisoned so that no call meets half-changed state.

use std::panic::{AssertUnwindSafe, catch_unwind};

use abi_stable::StableAbi;
use abi_stable::std_types::{RErr, ROk, RResult, RString};

use crate::error::{Error, ErrorKind, Result};

/// [`Error`] as it crosses. Frozen.
#[repr(C)]
#[derive(StableAbi)]
pub struct RError {
    kind: u32,
    message: RString,
}

impl From<Error> for RError {
    fn from(error: Error) -> Self {
        Self { kind: error.kind as u32, message: error.message.into() }
    }
}

impl From<RError> for Error {
    fn from(error: RError) -> Self {
        Self::new(ErrorKind::from_code(error.kind), error.message.into_string())
    }
}

/// A fallible result as it crosses.
pub type Crossing<T> = RResult<T, RError>;

pub fn to_crossing<T>(result: Result<T>) -> Crossing<T> {
    match result {
        Ok(value) => ROk(value),
        Err(error) => RErr(error.into()),
    }
}

pub fn from_crossing<T>(result: Crossing<T>) -> Result<T> {
    result.into_result().map_err(Error::from)
}

/// Runs `call`, turning a panic into [`ErrorKind::Panicked`].
pub fn catch<T>(what: &str, call: impl FnOnce() -> Result<T>) -> Result<T> {
    // Unwind safety is the caller's: `Instance` poisons itself, host services keep no state across the call.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|payload| {
        let text = payload
            .downcast_ref::<&str>()
            .map(ToString::to_string)
            .or_else(|| payload.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "no message".to_owned());
        // A payload whose own drop panics must not unwind across the border either.
        std::mem::forget(payload);
        Err(Error::new(ErrorKind::Panicked, format!("panicked in {what}: {text}")))
    })
}

/// A plugin's part and whether it may still be called.
pub struct Instance<P> {
    part: P,
    poisoned: bool,
}

impl<P> Instance<P> {
    pub fn new(part: P) -> Self {
        Self { part, poisoned: false }
    }

    /// Calls the part unless it is poisoned; a panic poisons it.
    pub fn call<T>(&mut self, what: &str, call: impl FnOnce(&mut P) -> Result<T>) -> Result<T> {
        if self.poisoned {
            return Err(Error::new(ErrorKind::Poisoned, format!("{what}: not called, the instance panicked earlier")));
        }
        let part = &mut self.part;
        let result = catch(what, || call(part));
        self.poisoned = matches!(&result, Err(error) if error.kind == ErrorKind::Panicked);
        result
    }
}

/// Drops a boxed instance, swallowing a panic of its destructor.
///
/// # Safety
/// `data` came from `Box::into_raw` of a `Box<Instance<P>>` of this library and is not used again.
pub unsafe extern "C" fn drop_instance<P>(data: *mut std::ffi::c_void) {
    // SAFETY: passed on from the caller.
    let instance = unsafe { Box::from_raw(data.cast::<Instance<P>>()) };
    let _ = catch("drop", move || {
        drop(instance);
        Ok(())
    });
}
