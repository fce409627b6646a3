//! [`Plan`](crate::Plan) across the border: a pointer to the engine's sink and its functions.

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;

use super::guard::catch;
use crate::author::PlanSink;
use crate::types::SeqId;

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PlanVtableRef)))]
pub struct PlanVtable {
    run: unsafe extern "C" fn(*mut c_void, SeqId, u32, u32),
    #[sabi(last_prefix_field)]
    preempt: unsafe extern "C" fn(*mut c_void, SeqId),
}

/// A sink behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct PlanObject<'a> {
    data: *mut c_void,
    vtable: PlanVtableRef,
    lifetime: PhantomData<&'a mut ()>,
}

struct Make<S>(PhantomData<S>);

impl<S: PlanSink> Make<S> {
    staticref! {const TABLE: WithMetadata<PlanVtable> = WithMetadata::new(PlanVtable {
        run: run::<S>,
        preempt: preempt::<S>,
    })}
}

impl<'a> PlanObject<'a> {
    pub fn new<S: PlanSink>(sink: &'a mut S) -> Self {
        let data = std::ptr::from_mut(sink).cast();
        Self { data, vtable: PlanVtableRef(Make::<S>::TABLE.as_prefix()), lifetime: PhantomData }
    }

    pub fn reborrow(&mut self) -> PlanObject<'_> {
        PlanObject { data: self.data, vtable: self.vtable, lifetime: PhantomData }
    }

    pub fn run(&mut self, sequence: SeqId, rows: u32, draft_budget: u32) {
        // SAFETY: `data` is the sink that `vtable` was made for, borrowed mutably for 'a.
        unsafe { (self.vtable.run())(self.data, sequence, rows, draft_budget) }
    }

    pub fn preempt(&mut self, sequence: SeqId) {
        // SAFETY: as in `run`.
        unsafe { (self.vtable.preempt())(self.data, sequence) }
    }
}

unsafe extern "C" fn run<S: PlanSink>(data: *mut c_void, sequence: SeqId, rows: u32, draft_budget: u32) {
    // SAFETY: `data` is the `S` of `PlanObject::new`.
    let sink = unsafe { &mut *data.cast::<S>() };
    // A panic of the engine's own sink leaves the entry out; it must not unwind into the plugin.
    let _ = catch("plan", || Ok(sink.run(sequence, rows, draft_budget)));
}

unsafe extern "C" fn preempt<S: PlanSink>(data: *mut c_void, sequence: SeqId) {
    // SAFETY: `data` is the `S` of `PlanObject::new`.
    let sink = unsafe { &mut *data.cast::<S>() };
    let _ = catch("plan", || Ok(sink.preempt(sequence)));
}
