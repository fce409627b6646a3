//! Samplers across the border: the vtable, the plugin's side ([`export`]) and the engine's ([`LoadedSampler`]).

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RStr, RString};

use super::guard::{Crossing, Instance, drop_instance, from_crossing, to_crossing};
use super::host::{HostObject, import_host};
use super::module::{parse_options, read_json, to_json};
use crate::author::{Host, Sampler};
use crate::error::Result;
use crate::types::{Guarantees, Verdicts, VerifyBatch};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = SamplerVtableRef)))]
pub struct SamplerVtable {
    verify: unsafe extern "C" fn(*mut c_void, VerifyBatch<'_>, &mut Verdicts<'_>) -> Crossing<()>,
    guarantees: unsafe extern "C" fn(*mut c_void) -> Crossing<RString>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*mut c_void),
}

/// An instance behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct SamplerObject {
    data: *mut c_void,
    vtable: SamplerVtableRef,
}

/// Makes an instance from options (TOML text) and the host.
pub type MakeSampler = extern "C" fn(RStr<'_>, HostObject) -> Crossing<SamplerObject>;

struct Make<P>(PhantomData<P>);

impl<P: Sampler> Make<P> {
    staticref! {const TABLE: WithMetadata<SamplerVtable> = WithMetadata::new(SamplerVtable {
        verify: verify::<P>,
        guarantees: guarantees::<P>,
        drop: drop_instance::<P>,
    })}
}

/// The plugin's side: called by the code that `export_plugin!` generates.
pub extern "C" fn export<P: Sampler>(options: RStr<'_>, host: HostObject) -> Crossing<SamplerObject> {
    to_crossing(super::guard::catch("new", || {
        let instance = Instance::new(P::new(parse_options(options.as_str())?, import_host(host))?);
        let data = Box::into_raw(Box::new(instance)).cast();
        Ok(SamplerObject { data, vtable: SamplerVtableRef(Make::<P>::TABLE.as_prefix()) })
    }))
}

unsafe extern "C" fn verify<P: Sampler>(
    data: *mut c_void,
    batch: VerifyBatch<'_>,
    verdicts: &mut Verdicts<'_>,
) -> Crossing<()> {
    // SAFETY: `data` is the instance that `export` boxed; the engine calls from one thread at a time.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("verify", |part| part.verify(&batch, verdicts)))
}

unsafe extern "C" fn guarantees<P: Sampler>(data: *mut c_void) -> Crossing<RString> {
    // SAFETY: as in `verify`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("guarantees", |part| Ok(to_json(&part.guarantees()).into())))
}

/// The engine's side: a sampler in a library.
pub struct LoadedSampler {
    object: SamplerObject,
}

// SAFETY: `Sampler: Send`, and the object is the only handle to its instance.
unsafe impl Send for LoadedSampler {}

impl LoadedSampler {
    /// Makes an instance.
    ///
    /// # Errors
    /// What the plugin's `new` returned.
    pub fn new(make: MakeSampler, options: &str, host: &Host) -> Result<Self> {
        let object = from_crossing(make(options.into(), HostObject::new(host.clone())))?;
        Ok(Self { object })
    }

    /// See [`Sampler::verify`].
    ///
    /// # Errors
    /// The plugin's.
    pub fn verify(&mut self, batch: VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        // SAFETY: `data` belongs to `vtable` and is borrowed mutably.
        from_crossing(unsafe { (self.object.vtable.verify())(self.object.data, batch, verdicts) })
    }

    /// See [`Sampler::guarantees`].
    ///
    /// # Errors
    /// The plugin's, or that its answer cannot be read.
    pub fn guarantees(&mut self) -> Result<Guarantees> {
        // SAFETY: as in `verify`.
        read_json(&from_crossing(unsafe { (self.object.vtable.guarantees())(self.object.data) })?)
    }
}

impl Drop for LoadedSampler {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.object.vtable.drop())(self.object.data) }
    }
}
