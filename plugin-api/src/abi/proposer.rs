//! Proposers across the border: the vtable, the plugin's side ([`export`]) and the engine's ([`LoadedProposer`]).

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RStr, RString};

use super::drafts::DraftsObject;
use super::guard::{Crossing, Instance, drop_instance, from_crossing, to_crossing};
use super::host::{HostObject, import_host};
use super::module::{parse_options, read_json, to_json};
use crate::author::{Drafts, Host, Proposer};
use crate::error::Result;
use crate::types::{CommitBatch, Needs, ProposeBatch, SeqId};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ProposerVtableRef)))]
pub struct ProposerVtable {
    propose: unsafe extern "C" fn(*mut c_void, ProposeBatch<'_>, DraftsObject<'_>) -> Crossing<()>,
    commit: unsafe extern "C" fn(*mut c_void, CommitBatch<'_>) -> Crossing<()>,
    finish: unsafe extern "C" fn(*mut c_void, SeqId) -> Crossing<()>,
    needs: unsafe extern "C" fn(*mut c_void) -> Crossing<RString>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*mut c_void),
}

/// An instance behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct ProposerObject {
    data: *mut c_void,
    vtable: ProposerVtableRef,
}

/// Makes an instance from options (TOML text) and the host.
pub type MakeProposer = extern "C" fn(RStr<'_>, HostObject) -> Crossing<ProposerObject>;

struct Make<P>(PhantomData<P>);

impl<P: Proposer> Make<P> {
    staticref! {const TABLE: WithMetadata<ProposerVtable> = WithMetadata::new(ProposerVtable {
        propose: propose::<P>,
        commit: commit::<P>,
        finish: finish::<P>,
        needs: needs::<P>,
        drop: drop_instance::<P>,
    })}
}

/// The plugin's side: called by the code that `export_plugin!` generates.
pub extern "C" fn export<P: Proposer>(options: RStr<'_>, host: HostObject) -> Crossing<ProposerObject> {
    to_crossing(super::guard::catch("new", || {
        let instance = Instance::new(P::new(parse_options(options.as_str())?, import_host(host))?);
        let data = Box::into_raw(Box::new(instance)).cast();
        Ok(ProposerObject { data, vtable: ProposerVtableRef(Make::<P>::TABLE.as_prefix()) })
    }))
}

unsafe extern "C" fn propose<P: Proposer>(
    data: *mut c_void,
    batch: ProposeBatch<'_>,
    drafts: DraftsObject<'_>,
) -> Crossing<()> {
    // SAFETY: `data` is the instance that `export` boxed; the engine calls from one thread at a time.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    let mut drafts = Drafts::from_object(drafts);
    to_crossing(instance.call("propose", |part| part.propose(&batch, &mut drafts)))
}

unsafe extern "C" fn commit<P: Proposer>(data: *mut c_void, batch: CommitBatch<'_>) -> Crossing<()> {
    // SAFETY: as in `propose`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("commit", |part| part.commit(&batch)))
}

unsafe extern "C" fn finish<P: Proposer>(data: *mut c_void, sequence: SeqId) -> Crossing<()> {
    // SAFETY: as in `propose`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("finish", |part| {
        part.finish(sequence);
        Ok(())
    }))
}

unsafe extern "C" fn needs<P: Proposer>(data: *mut c_void) -> Crossing<RString> {
    // SAFETY: as in `propose`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("needs", |part| Ok(to_json(&part.needs()).into())))
}

/// The engine's side: a proposer in a library.
pub struct LoadedProposer {
    object: ProposerObject,
}

// SAFETY: `Proposer: Send`, and the object is the only handle to its instance.
unsafe impl Send for LoadedProposer {}

impl LoadedProposer {
    /// Makes an instance.
    ///
    /// # Errors
    /// What the plugin's `new` returned.
    pub fn new(make: MakeProposer, options: &str, host: &Host) -> Result<Self> {
        let object = from_crossing(make(options.into(), HostObject::new(host.clone())))?;
        Ok(Self { object })
    }

    /// See [`Proposer::propose`].
    ///
    /// # Errors
    /// The plugin's.
    pub fn propose(&mut self, batch: ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        // SAFETY: `data` belongs to `vtable` and is borrowed mutably.
        from_crossing(unsafe { (self.object.vtable.propose())(self.object.data, batch, drafts.object()) })
    }

    /// See [`Proposer::commit`].
    ///
    /// # Errors
    /// The plugin's.
    pub fn commit(&mut self, batch: CommitBatch<'_>) -> Result<()> {
        // SAFETY: as in `propose`.
        from_crossing(unsafe { (self.object.vtable.commit())(self.object.data, batch) })
    }

    /// See [`Proposer::finish`].
    ///
    /// # Errors
    /// If the plugin panicked.
    pub fn finish(&mut self, sequence: SeqId) -> Result<()> {
        // SAFETY: as in `propose`.
        from_crossing(unsafe { (self.object.vtable.finish())(self.object.data, sequence) })
    }

    /// See [`Proposer::needs`].
    ///
    /// # Errors
    /// The plugin's, or that its answer cannot be read.
    pub fn needs(&mut self) -> Result<Needs> {
        // SAFETY: as in `propose`.
        read_json(&from_crossing(unsafe { (self.object.vtable.needs())(self.object.data) })?)
    }
}

impl Drop for LoadedProposer {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.object.vtable.drop())(self.object.data) }
    }
}
