//! Schedulers across the border: the vtable, the plugin's side ([`export`]) and the engine's ([`LoadedScheduler`]).

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::RStr;

use super::guard::{Crossing, Instance, drop_instance, from_crossing, to_crossing};
use super::host::{HostObject, import_host};
use super::module::parse_options;
use super::plan::PlanObject;
use crate::author::{Host, Plan, Scheduler};
use crate::error::Result;
use crate::types::{QueueView, StepReport};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = SchedulerVtableRef)))]
pub struct SchedulerVtable {
    schedule: unsafe extern "C" fn(*mut c_void, QueueView<'_>, PlanObject<'_>) -> Crossing<()>,
    observe: unsafe extern "C" fn(*mut c_void, StepReport<'_>) -> Crossing<()>,
    supports_pairs: unsafe extern "C" fn(*mut c_void) -> Crossing<bool>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*mut c_void),
}

/// An instance behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct SchedulerObject {
    data: *mut c_void,
    vtable: SchedulerVtableRef,
}

/// Makes an instance from options (TOML text) and the host.
pub type MakeScheduler = extern "C" fn(RStr<'_>, HostObject) -> Crossing<SchedulerObject>;

struct Make<P>(PhantomData<P>);

impl<P: Scheduler> Make<P> {
    staticref! {const TABLE: WithMetadata<SchedulerVtable> = WithMetadata::new(SchedulerVtable {
        schedule: schedule::<P>,
        observe: observe::<P>,
        supports_pairs: supports_pairs::<P>,
        drop: drop_instance::<P>,
    })}
}

/// The plugin's side: called by the code that `export_plugin!` generates.
pub extern "C" fn export<P: Scheduler>(options: RStr<'_>, host: HostObject) -> Crossing<SchedulerObject> {
    to_crossing(super::guard::catch("new", || {
        let instance = Instance::new(P::new(parse_options(options.as_str())?, import_host(host))?);
        let data = Box::into_raw(Box::new(instance)).cast();
        Ok(SchedulerObject { data, vtable: SchedulerVtableRef(Make::<P>::TABLE.as_prefix()) })
    }))
}

unsafe extern "C" fn schedule<P: Scheduler>(
    data: *mut c_void,
    queue: QueueView<'_>,
    plan: PlanObject<'_>,
) -> Crossing<()> {
    // SAFETY: `data` is the instance that `export` boxed; the engine calls from one thread at a time.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    let mut plan = Plan::from_object(plan);
    to_crossing(instance.call("schedule", |part| part.schedule(&queue, &mut plan)))
}

unsafe extern "C" fn observe<P: Scheduler>(data: *mut c_void, report: StepReport<'_>) -> Crossing<()> {
    // SAFETY: as in `schedule`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("observe", |part| {
        part.observe(&report);
        Ok(())
    }))
}

unsafe extern "C" fn supports_pairs<P: Scheduler>(data: *mut c_void) -> Crossing<bool> {
    // SAFETY: as in `schedule`.
    let instance = unsafe { &mut *data.cast::<Instance<P>>() };
    to_crossing(instance.call("supports_pairs", |part| Ok(part.supports_pairs())))
}

/// The engine's side: a scheduler in a library.
pub struct LoadedScheduler {
    object: SchedulerObject,
}

// SAFETY: `Scheduler: Send`, and the object is the only handle to its instance.
unsafe impl Send for LoadedScheduler {}

impl LoadedScheduler {
    /// Makes an instance.
    ///
    /// # Errors
    /// What the plugin's `new` returned.
    pub fn new(make: MakeScheduler, options: &str, host: &Host) -> Result<Self> {
        let object = from_crossing(make(options.into(), HostObject::new(host.clone())))?;
        Ok(Self { object })
    }

    /// See [`Scheduler::schedule`].
    ///
    /// # Errors
    /// The plugin's.
    pub fn schedule(&mut self, queue: QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        // SAFETY: `data` belongs to `vtable` and is borrowed mutably.
        from_crossing(unsafe { (self.object.vtable.schedule())(self.object.data, queue, plan.object()) })
    }

    /// See [`Scheduler::observe`].
    ///
    /// # Errors
    /// If the plugin panicked.
    pub fn observe(&mut self, report: StepReport<'_>) -> Result<()> {
        // SAFETY: as in `schedule`.
        from_crossing(unsafe { (self.object.vtable.observe())(self.object.data, report) })
    }

    /// See [`Scheduler::supports_pairs`].
    ///
    /// # Errors
    /// If the plugin panicked.
    pub fn supports_pairs(&mut self) -> Result<bool> {
        // SAFETY: as in `schedule`.
        from_crossing(unsafe { (self.object.vtable.supports_pairs())(self.object.data) })
    }
}

impl Drop for LoadedScheduler {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.object.vtable.drop())(self.object.data) }
    }
}
