//! The host across the border: the engine's side answers ([`HostObject::new`]), the plugin's side asks ([`import_host`]).
//!
//! Closures handed to the pool cross as a pointer and a trampoline; the trampoline catches their panics in the
//! plugin's own library, and the call that handed them over reports them there.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RSlice, RSliceMut, RStr, RString, RVec, Tuple2};

use super::guard::{Crossing, catch, from_crossing, to_crossing};
use super::model::ModelObject;
use super::module::{read_json, to_json};
use super::tensors::TensorsObject;
use crate::author::host::LanesApi;
use crate::author::{Host, HostApi, ModelApi, TensorsApi};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{LaneId, ModelFacts, NoiseKey, Slot, TargetFacts, Token, TokenText};

/// A closure on its way to the pool. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Task {
    data: *const c_void,
    call: unsafe extern "C" fn(*const c_void, usize),
}

// SAFETY: the closure behind it is `Sync`, and `parallel` returns before it ends.
unsafe impl Send for Task {}
// SAFETY: as above.
unsafe impl Sync for Task {}

impl Task {
    /// # Safety
    /// The `parallel` call that made the task has not returned.
    unsafe fn run(&self, index: usize) {
        // SAFETY: `call` was made for `data`, which the caller keeps alive.
        unsafe { (self.call)(self.data, index) }
    }
}

/// What is to be done with lent memory, on its way to the lanes. Frozen.
#[repr(C)]
#[derive(StableAbi, Clone, Copy)]
pub struct Loan {
    data: *mut c_void,
    call: unsafe extern "C" fn(*mut c_void, RSliceMut<'_, u8>),
}

type Topk = Tuple2<Token, f32>;
/// Bytes of a token, and whether it is special.
type Text = Tuple2<RVec<u8>, bool>;

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = HostVtableRef)))]
pub struct HostVtable {
    target: unsafe extern "C" fn(*const c_void) -> RString,
    threads: unsafe extern "C" fn(*const c_void) -> usize,
    parallel: unsafe extern "C" fn(*const c_void, usize, Task) -> Crossing<()>,
    noise: unsafe extern "C" fn(*const c_void, NoiseKey, u32, RSliceMut<'_, f64>),
    model_facts: unsafe extern "C" fn(*const c_void, RStr<'_>) -> Crossing<RString>,
    load_model: unsafe extern "C" fn(*const c_void, RStr<'_>, RStr<'_>) -> Crossing<ModelObject>,
    load_tensors: unsafe extern "C" fn(*const c_void, RStr<'_>) -> Crossing<TensorsObject>,
    embed: unsafe extern "C" fn(*const c_void, RSlice<'_, Token>, RSliceMut<'_, f32>) -> Crossing<()>,
    lm_head: unsafe extern "C" fn(*const c_void, RSlice<'_, f32>, RSliceMut<'_, f32>) -> Crossing<()>,
    lm_head_topk: unsafe extern "C" fn(*const c_void, RSlice<'_, f32>, usize, RSliceMut<'_, Topk>) -> Crossing<()>,
    lane_rows: unsafe extern "C" fn(*const c_void, LaneId) -> usize,
    lane_read: unsafe extern "C" fn(*const c_void, LaneId, RSlice<'_, Slot>, RSliceMut<'_, u8>) -> Crossing<()>,
    lane_write: unsafe extern "C" fn(*const c_void, LaneId, RSlice<'_, Slot>, RSlice<'_, u8>) -> Crossing<()>,
    lane_copy: unsafe extern "C" fn(*const c_void, LaneId, RSlice<'_, Slot>, RSlice<'_, Slot>) -> Crossing<()>,
    lane_mark: unsafe extern "C" fn(*const c_void, LaneId, RSlice<'_, Slot>) -> Crossing<()>,
    metric: unsafe extern "C" fn(*const c_void, RStr<'_>, f64),
    log: unsafe extern "C" fn(*const c_void, u8, RStr<'_>, RStr<'_>),
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*const c_void),
    // Since 1.1.0: an older engine has none.
    lane_lend: unsafe extern "C" fn(*const c_void, LaneId, Loan) -> Crossing<()>,
    token_texts: unsafe extern "C" fn(*const c_void, RStr<'_>) -> Crossing<RVec<Text>>,
}

/// The engine behind its vtable: `data` is a boxed [`Host`] of the engine.
#[repr(C)]
#[derive(StableAbi)]
pub struct HostObject {
    data: *const c_void,
    vtable: HostVtableRef,
}

// SAFETY: `HostApi: Send + Sync`, and the vtable's functions take the object by shared reference.
unsafe impl Send for HostObject {}
// SAFETY: as above.
unsafe impl Sync for HostObject {}

struct Make;

impl Make {
    staticref! {const TABLE: WithMetadata<HostVtable> = WithMetadata::new(HostVtable {
        target,
        threads,
        parallel,
        noise,
        model_facts,
        load_model,
        load_tensors,
        embed,
        lm_head,
        lm_head_topk,
        lane_rows,
        lane_read,
        lane_write,
        lane_copy,
        lane_mark,
        metric,
        log,
        drop,
        lane_lend,
        token_texts,
    })}
}

impl HostObject {
    pub fn new(host: Host) -> Self {
        let data = Box::into_raw(Box::new(host)).cast_const().cast();
        Self { data, vtable: HostVtableRef(Make::TABLE.as_prefix()) }
    }
}

impl Drop for HostObject {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.vtable.drop())(self.data) }
    }
}

/// The plugin's side: a host handle, with the library's log records forwarded to it.
pub fn import_host(object: HostObject) -> Host {
    let host = Host::new(Arc::new(object));
    super::trace::install(&host);
    host
}

struct Closure<'a> {
    task: &'a (dyn Fn(usize) + Sync),
    panicked: AtomicBool,
}

unsafe extern "C" fn trampoline(data: *const c_void, index: usize) {
    // SAFETY: `data` is the `Closure` on the stack of `parallel`, which waits for all calls.
    let closure = unsafe { &*data.cast::<Closure<'_>>() };
    let run = || {
        (closure.task)(index);
        Ok(())
    };
    if catch("a task on the pool", run).is_err() {
        closure.panicked.store(true, Ordering::Relaxed);
    }
}

struct Work<'a> {
    work: &'a mut dyn FnMut(&mut [u8]),
    panicked: bool,
}

unsafe extern "C" fn work_on(data: *mut c_void, mut memory: RSliceMut<'_, u8>) {
    // SAFETY: `data` is the `Work` on the stack of `lend`, which waits for the one call.
    let work = unsafe { &mut *data.cast::<Work<'_>>() };
    let run = || {
        (work.work)(memory.as_mut_slice());
        Ok(())
    };
    work.panicked = catch("work on a lane", run).is_err();
}

// In both impls each call passes the object's `data` to its own `vtable`; the `unsafe` blocks rely on nothing more.
impl HostApi for HostObject {
    fn target(&self) -> TargetFacts {
        // SAFETY: see above.
        read_json(unsafe { (self.vtable.target())(self.data) }.as_str()).unwrap_or_default()
    }

    fn threads(&self) -> usize {
        // SAFETY: see above.
        unsafe { (self.vtable.threads())(self.data) }
    }

    fn parallel(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<()> {
        let closure = Closure { task, panicked: AtomicBool::new(false) };
        let crossing = Task { data: std::ptr::from_ref(&closure).cast(), call: trampoline };
        // SAFETY: see above; `closure` outlives the call.
        from_crossing(unsafe { (self.vtable.parallel())(self.data, tasks, crossing) })?;
        if closure.panicked.into_inner() {
            return Err(Error::new(ErrorKind::Panicked, "a task on the pool panicked"));
        }
        Ok(())
    }

    fn noise(&self, key: NoiseKey, first: u32, out: &mut [f64]) {
        // SAFETY: see above.
        unsafe { (self.vtable.noise())(self.data, key, first, RSliceMut::from_mut_slice(out)) }
    }

    fn model_facts(&self, path: &str) -> Result<ModelFacts> {
        // SAFETY: see above.
        read_json(&from_crossing(unsafe { (self.vtable.model_facts())(self.data, path.into()) })?)
    }

    fn token_texts(&self, path: &str) -> Result<Vec<TokenText>> {
        let older =
            || Error::failed("this engine tells no tokens' texts; it is older than 1.1.0 of the plugin interface");
        let call = self.vtable.token_texts().ok_or_else(older)?;
        // SAFETY: see above.
        let texts = from_crossing(unsafe { call(self.data, path.into()) })?;
        Ok(texts.into_iter().map(|Tuple2(bytes, is_special)| TokenText { bytes: bytes.into(), is_special }).collect())
    }

    fn load_model(&self, path: &str, dtype: Option<&str>) -> Result<Arc<dyn ModelApi>> {
        let dtype = dtype.unwrap_or_default();
        // SAFETY: see above.
        let model = from_crossing(unsafe { (self.vtable.load_model())(self.data, path.into(), dtype.into()) })?;
        Ok(Arc::new(model))
    }

    fn load_tensors(&self, path: &str) -> Result<Arc<dyn TensorsApi>> {
        // SAFETY: see above.
        let tensors = from_crossing(unsafe { (self.vtable.load_tensors())(self.data, path.into()) })?;
        Ok(Arc::new(tensors))
    }

    fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.embed())(self.data, tokens.into(), out.into()) })
    }

    fn lm_head(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lm_head())(self.data, rows.into(), out.into()) })
    }

    fn lm_head_topk(&self, rows: &[f32], k: usize, out: &mut [(Token, f32)]) -> Result<()> {
        let mut top = vec![Tuple2(0, 0.0); out.len()];
        let view = RSliceMut::from_mut_slice(&mut top);
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lm_head_topk())(self.data, rows.into(), k, view) })?;
        for (to, Tuple2(token, logit)) in out.iter_mut().zip(top) {
            *to = (token, logit);
        }
        Ok(())
    }

    fn lanes(&self) -> &dyn LanesApi {
        self
    }

    fn metric(&self, name: &str, value: f64) {
        // SAFETY: see above.
        unsafe { (self.vtable.metric())(self.data, name.into(), value) }
    }

    fn log(&self, level: u8, target: &str, message: &str) {
        // SAFETY: see above.
        unsafe { (self.vtable.log())(self.data, level, target.into(), message.into()) }
    }
}

impl LanesApi for HostObject {
    fn rows(&self, lane: LaneId) -> usize {
        // SAFETY: see above.
        unsafe { (self.vtable.lane_rows())(self.data, lane) }
    }

    fn read(&self, lane: LaneId, slots: &[Slot], out: &mut [u8]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lane_read())(self.data, lane, slots.into(), out.into()) })
    }

    fn write(&self, lane: LaneId, slots: &[Slot], data: &[u8]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lane_write())(self.data, lane, slots.into(), data.into()) })
    }

    fn copy(&self, lane: LaneId, from: &[Slot], to: &[Slot]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lane_copy())(self.data, lane, from.into(), to.into()) })
    }

    fn lend(&self, lane: LaneId, work: &mut dyn FnMut(&mut [u8])) -> Result<()> {
        let older = || Error::failed("this engine cannot lend a lane; it is older than 1.1.0 of the plugin interface");
        let call = self.vtable.lane_lend().ok_or_else(older)?;
        let mut work = Work { work, panicked: false };
        let loan = Loan { data: std::ptr::from_mut(&mut work).cast(), call: work_on };
        // SAFETY: see above; `work` outlives the call.
        from_crossing(unsafe { call(self.data, lane, loan) })?;
        if work.panicked {
            return Err(Error::new(ErrorKind::Panicked, "work on a lane panicked"));
        }
        Ok(())
    }

    fn mark(&self, lane: LaneId, slots: &[Slot]) -> Result<()> {
        // SAFETY: see above.
        from_crossing(unsafe { (self.vtable.lane_mark())(self.data, lane, slots.into()) })
    }
}

/// # Safety
/// `data` is the box of `HostObject::new`.
unsafe fn host<'a>(data: *const c_void) -> &'a Host {
    // SAFETY: passed on from the caller.
    unsafe { &*data.cast::<Host>() }
}

/// Calls the engine's host, catching the engine's panics on its own side.
///
/// # Safety
/// As [`host`].
unsafe fn ask<T>(data: *const c_void, what: &str, call: impl FnOnce(&Host) -> Result<T>) -> Crossing<T> {
    // SAFETY: passed on from the caller.
    let host = unsafe { host(data) };
    // Not `Panicked`: that would poison the plugin's instance for a fault that is the engine's.
    let ours = |error: Error| Err(Error::failed(format!("the host {}", error.message)));
    to_crossing(catch(what, || Ok(call(host))).unwrap_or_else(ours))
}

unsafe extern "C" fn target(data: *const c_void) -> RString {
    // SAFETY: the vtable's contract, here and in all functions below.
    let host = unsafe { host(data) };
    catch("target", || Ok(to_json(&host.target()))).unwrap_or_default().into()
}

unsafe extern "C" fn threads(data: *const c_void) -> usize {
    // SAFETY: as above.
    let host = unsafe { host(data) };
    catch("threads", || Ok(host.threads())).unwrap_or(1)
}

unsafe extern "C" fn parallel(data: *const c_void, tasks: usize, task: Task) -> Crossing<()> {
    // SAFETY: as above; the trampoline catches the plugin's panics, and the plugin's frame outlives the call.
    unsafe { ask(data, "parallel", |host| host.parallel(tasks, &|index| task.run(index))) }
}

unsafe extern "C" fn noise(data: *const c_void, key: NoiseKey, first: u32, mut out: RSliceMut<'_, f64>) {
    // SAFETY: as above.
    let host = unsafe { host(data) };
    let _ = catch("noise", || {
        host.noise(key, first, out.as_mut_slice());
        Ok(())
    });
}

unsafe extern "C" fn model_facts(data: *const c_void, path: RStr<'_>) -> Crossing<RString> {
    // SAFETY: as above.
    unsafe { ask(data, "model_facts", |host| Ok(to_json(&host.model_facts(path.as_str())?).into())) }
}

unsafe extern "C" fn token_texts(data: *const c_void, path: RStr<'_>) -> Crossing<RVec<Text>> {
    let crossed = |text: TokenText| Tuple2(text.bytes.into(), text.is_special);
    // SAFETY: as above.
    unsafe { ask(data, "token_texts", |host| Ok(host.token_texts(path.as_str())?.into_iter().map(crossed).collect())) }
}

unsafe extern "C" fn load_model(data: *const c_void, path: RStr<'_>, dtype: RStr<'_>) -> Crossing<ModelObject> {
    let dtype = (!dtype.is_empty()).then(|| dtype.as_str());
    // SAFETY: as above.
    unsafe { ask(data, "load_model", |host| Ok(ModelObject::new(host.load_model(path.as_str(), dtype)?))) }
}

unsafe extern "C" fn load_tensors(data: *const c_void, path: RStr<'_>) -> Crossing<TensorsObject> {
    // SAFETY: as above.
    unsafe { ask(data, "load_tensors", |host| Ok(TensorsObject::new(host.load_tensors(path.as_str())?))) }
}

unsafe extern "C" fn embed(
    data: *const c_void,
    tokens: RSlice<'_, Token>,
    mut out: RSliceMut<'_, f32>,
) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "embed", |host| host.embed(tokens.as_slice(), out.as_mut_slice())) }
}

unsafe extern "C" fn lm_head(data: *const c_void, rows: RSlice<'_, f32>, mut out: RSliceMut<'_, f32>) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "lm_head", |host| host.lm_head(rows.as_slice(), out.as_mut_slice())) }
}

unsafe extern "C" fn lm_head_topk(
    data: *const c_void,
    rows: RSlice<'_, f32>,
    k: usize,
    mut out: RSliceMut<'_, Topk>,
) -> Crossing<()> {
    let call = |host: &Host| {
        let mut top = vec![(0, 0.0); out.len()];
        host.lm_head_topk(rows.as_slice(), k, &mut top)?;
        for (to, (token, logit)) in out.as_mut_slice().iter_mut().zip(top) {
            *to = Tuple2(token, logit);
        }
        Ok(())
    };
    // SAFETY: as above.
    unsafe { ask(data, "lm_head_topk", call) }
}

unsafe extern "C" fn lane_rows(data: *const c_void, lane: LaneId) -> usize {
    // SAFETY: as above.
    let host = unsafe { host(data) };
    catch("lane rows", || Ok(host.lanes().rows(lane))).unwrap_or(0)
}

unsafe extern "C" fn lane_read(
    data: *const c_void,
    lane: LaneId,
    slots: RSlice<'_, Slot>,
    mut out: RSliceMut<'_, u8>,
) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "lane read", |host| host.lanes().read(lane, slots.as_slice(), out.as_mut_slice())) }
}

unsafe extern "C" fn lane_write(
    data: *const c_void,
    lane: LaneId,
    slots: RSlice<'_, Slot>,
    bytes: RSlice<'_, u8>,
) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "lane write", |host| host.lanes().write(lane, slots.as_slice(), bytes.as_slice())) }
}

unsafe extern "C" fn lane_copy(
    data: *const c_void,
    lane: LaneId,
    from: RSlice<'_, Slot>,
    to: RSlice<'_, Slot>,
) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "lane copy", |host| host.lanes().copy(lane, from.as_slice(), to.as_slice())) }
}

unsafe extern "C" fn lane_lend(data: *const c_void, lane: LaneId, loan: Loan) -> Crossing<()> {
    // SAFETY: as above; the plugin's function catches its panics, and the plugin's frame outlives the call.
    let mut work = |memory: &mut [u8]| unsafe { (loan.call)(loan.data, memory.into()) };
    // SAFETY: as above.
    unsafe { ask(data, "lane lend", |host| host.lanes().lend(lane, &mut work)) }
}

unsafe extern "C" fn lane_mark(data: *const c_void, lane: LaneId, slots: RSlice<'_, Slot>) -> Crossing<()> {
    // SAFETY: as above.
    unsafe { ask(data, "lane mark", |host| host.lanes().mark(lane, slots.as_slice())) }
}

unsafe extern "C" fn metric(data: *const c_void, name: RStr<'_>, value: f64) {
    // SAFETY: as above.
    let host = unsafe { host(data) };
    let _ = catch("metric", || {
        host.metric(name.as_str(), value);
        Ok(())
    });
}

unsafe extern "C" fn log(data: *const c_void, level: u8, target: RStr<'_>, message: RStr<'_>) {
    // SAFETY: as above.
    let host = unsafe { host(data) };
    let _ = catch("log", || {
        host.log(level, target.as_str(), message.as_str());
        Ok(())
    });
}

unsafe extern "C" fn drop(data: *const c_void) {
    // SAFETY: `data` is the box of `HostObject::new`, not used again.
    let host = unsafe { Box::from_raw(data.cast_mut().cast::<Host>()) };
    let _ = catch("drop", move || {
        std::mem::drop(host);
        Ok(())
    });
}
