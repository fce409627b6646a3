//! KV managers across the border: the vtable, the plugin's side ([`export`]) and the engine's ([`LoadedKv`]).

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RSlice, RStr};

use super::guard::{Crossing, Instance, drop_instance, from_crossing, to_crossing};
use super::host::{HostObject, import_host};
use super::module::{parse_options, read_json, to_json};
use crate::author::{Host, KvManager};
use crate::error::Result;
use crate::types::{KvFacts, KvStats, SeqId, Slot, Token};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = KvVtableRef)))]
pub struct KvVtable {
    admit: unsafe extern "C" fn(*mut c_void, SeqId, RSlice<'_, Token>) -> Crossing<usize>,
    reserve: unsafe extern "C" fn(*mut c_void, SeqId, usize) -> Crossing<()>,
    slots: unsafe extern "C" fn(*mut c_void, SeqId) -> Crossing<SlotList>,
    commit: unsafe extern "C" fn(*mut c_void, SeqId, RSlice<'_, u32>, RSlice<'_, Token>) -> Crossing<()>,
    rollback: unsafe extern "C" fn(*mut c_void, SeqId) -> Crossing<()>,
    fork: unsafe extern "C" fn(*mut c_void, SeqId, SeqId) -> Crossing<()>,
    free: unsafe extern "C" fn(*mut c_void, SeqId) -> Crossing<()>,
    stats: unsafe extern "C" fn(*mut c_void) -> Crossing<KvStats>,
    check: unsafe extern "C" fn(*mut c_void) -> Crossing<()>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*mut c_void),
    // Since 1.2.0: an older plugin has none.
    can_rollback: unsafe extern "C" fn(*mut c_void) -> Crossing<bool>,
}

/// A borrowed list of slots whose lifetime the engine's side restores. Frozen.
#[repr(C)]
#[derive(StableAbi)]
pub struct SlotList {
    data: *const Slot,
    len: usize,
}

/// An instance behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct KvObject {
    data: *mut c_void,
    vtable: KvVtableRef,
}

/// Makes an instance from options (TOML text), facts (JSON text) and the host.
pub type MakeKv = extern "C" fn(RStr<'_>, RStr<'_>, HostObject) -> Crossing<KvObject>;

struct Make<P>(PhantomData<P>);

impl<P: KvManager> Make<P> {
    staticref! {const TABLE: WithMetadata<KvVtable> = WithMetadata::new(KvVtable {
        admit: admit::<P>,
        reserve: reserve::<P>,
        slots: slots::<P>,
        commit: commit::<P>,
        rollback: rollback::<P>,
        fork: fork::<P>,
        free: free::<P>,
        stats: stats::<P>,
        check: check::<P>,
        drop: drop_instance::<P>,
        can_rollback: can_rollback::<P>,
    })}
}

/// The plugin's side: called by the code that `export_plugin!` generates.
pub extern "C" fn export<P: KvManager>(options: RStr<'_>, facts: RStr<'_>, host: HostObject) -> Crossing<KvObject> {
    to_crossing(super::guard::catch("new", || {
        let facts: KvFacts = read_json(facts.as_str())?;
        let instance = Instance::new(P::new(parse_options(options.as_str())?, facts, import_host(host))?);
        let data = Box::into_raw(Box::new(instance)).cast();
        Ok(KvObject { data, vtable: KvVtableRef(Make::<P>::TABLE.as_prefix()) })
    }))
}

/// # Safety
/// `data` is the instance that `export::<P>` boxed, called from one thread at a time.
unsafe fn call<P, T>(data: *mut c_void, what: &str, call: impl FnOnce(&mut P) -> Result<T>) -> Crossing<T> {
    // SAFETY: passed on from the caller.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call(what, call))
}

unsafe extern "C" fn admit<P: KvManager>(
    data: *mut c_void,
    sequence: SeqId,
    tokens: RSlice<'_, Token>,
) -> Crossing<usize> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "admit", |part| part.admit(sequence, tokens.as_slice())) }
}

unsafe extern "C" fn reserve<P: KvManager>(data: *mut c_void, sequence: SeqId, count: usize) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "reserve", |part| part.reserve(sequence, count)) }
}

unsafe extern "C" fn slots<P: KvManager>(data: *mut c_void, sequence: SeqId) -> Crossing<SlotList> {
    let list = |part: &mut P| {
        let slots = part.slots(sequence);
        Ok(SlotList { data: slots.as_ptr(), len: slots.len() })
    };
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "slots", list) }
}

unsafe extern "C" fn commit<P: KvManager>(
    data: *mut c_void,
    sequence: SeqId,
    keep: RSlice<'_, u32>,
    tokens: RSlice<'_, Token>,
) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "commit", |part| part.commit(sequence, keep.as_slice(), tokens.as_slice())) }
}

unsafe extern "C" fn rollback<P: KvManager>(data: *mut c_void, sequence: SeqId) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "rollback", |part| Ok(part.rollback(sequence))) }
}

unsafe extern "C" fn fork<P: KvManager>(data: *mut c_void, parent: SeqId, child: SeqId) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "fork", |part| part.fork(parent, child)) }
}

unsafe extern "C" fn free<P: KvManager>(data: *mut c_void, sequence: SeqId) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "free", |part| Ok(part.free(sequence))) }
}

unsafe extern "C" fn stats<P: KvManager>(data: *mut c_void) -> Crossing<KvStats> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "stats", |part| Ok(part.stats())) }
}

unsafe extern "C" fn check<P: KvManager>(data: *mut c_void) -> Crossing<()> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "check", |part| part.check()) }
}

unsafe extern "C" fn can_rollback<P: KvManager>(data: *mut c_void) -> Crossing<bool> {
    // SAFETY: the vtable's contract.
    unsafe { call::<P, _>(data, "can_rollback", |part| Ok(part.can_rollback())) }
}

/// The engine's side: a KV manager in a library. Its methods mirror [`KvManager`]'s and return the plugin's errors.
pub struct LoadedKv {
    object: KvObject,
}

// SAFETY: `KvManager: Send`, and the object is the only handle to its instance.
unsafe impl Send for LoadedKv {}

// Each method passes the object's own `data` to its own `vtable`, borrowed mutably (or, in `slots`, shared with nothing
// else able to call it), which is the vtable's contract; the `unsafe` blocks rely on nothing more.
#[allow(missing_docs, clippy::missing_errors_doc)]
impl LoadedKv {
    pub fn new(make: MakeKv, options: &str, facts: &KvFacts, host: &Host) -> Result<Self> {
        let facts = to_json(facts);
        let object = from_crossing(make(options.into(), facts.as_str().into(), HostObject::new(host.clone())))?;
        Ok(Self { object })
    }

    pub fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.admit())(self.object.data, sequence, tokens.into()) })
    }

    pub fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.reserve())(self.object.data, sequence, count) })
    }

    pub fn slots(&self, sequence: SeqId) -> Result<&[Slot]> {
        // SAFETY: see above.
        let list = from_crossing(unsafe { (self.object.vtable.slots())(self.object.data, sequence) })?;
        // SAFETY: the instance's own slice, unchanged while `self` is borrowed: every change needs `&mut self`.
        Ok(unsafe { std::slice::from_raw_parts(list.data, list.len) })
    }

    pub fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.commit())(self.object.data, sequence, keep.into(), tokens.into()) })
    }

    pub fn rollback(&mut self, sequence: SeqId) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.rollback())(self.object.data, sequence) })
    }

    pub fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.fork())(self.object.data, parent, child) })
    }

    pub fn free(&mut self, sequence: SeqId) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.free())(self.object.data, sequence) })
    }

    pub fn stats(&mut self) -> Result<KvStats> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.stats())(self.object.data) })
    }

    pub fn can_rollback(&mut self) -> Result<bool> {
        // Plugins older than 1.2.0 all can.
        let Some(can_rollback) = self.object.vtable.can_rollback() else { return Ok(true) };
        // SAFETY: see above.
        from_crossing(unsafe { can_rollback(self.object.data) })
    }

    pub fn check(&mut self) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.object.vtable.check())(self.object.data) })
    }
}

impl Drop for LoadedKv {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.object.vtable.drop())(self.object.data) }
    }
}
