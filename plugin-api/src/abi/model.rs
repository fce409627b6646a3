//! Models loaded by the host, across the border.

use std::ffi::c_void;
use std::sync::Arc;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RSliceMut, RString};

use super::guard::{Crossing, catch, from_crossing, to_crossing};
use super::module::{read_json, to_json};
use crate::author::ModelApi;
use crate::error::Result;
use crate::types::{ForwardBatch, ModelFacts};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = ModelVtableRef)))]
pub struct ModelVtable {
    facts: unsafe extern "C" fn(*const c_void) -> RString,
    forward: unsafe extern "C" fn(*const c_void, ForwardBatch<'_>, RSliceMut<'_, f32>) -> Crossing<()>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*const c_void),
}

/// A model behind its vtable: `data` is a boxed `Arc<dyn ModelApi>` of the engine.
#[repr(C)]
#[derive(StableAbi)]
pub struct ModelObject {
    data: *const c_void,
    vtable: ModelVtableRef,
}

// SAFETY: `ModelApi: Send + Sync`, and the vtable's functions take the object by shared reference.
unsafe impl Send for ModelObject {}
// SAFETY: as above.
unsafe impl Sync for ModelObject {}

struct Make;

impl Make {
    staticref! {const TABLE: WithMetadata<ModelVtable> = WithMetadata::new(ModelVtable { facts, forward, drop })}
}

impl ModelObject {
    pub fn new(model: Arc<dyn ModelApi>) -> Self {
        let data = Box::into_raw(Box::new(model)).cast_const().cast();
        Self { data, vtable: ModelVtableRef(Make::TABLE.as_prefix()) }
    }
}

impl Drop for ModelObject {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.vtable.drop())(self.data) }
    }
}

impl ModelApi for ModelObject {
    fn facts(&self) -> ModelFacts {
        // SAFETY: `data` belongs to `vtable`.
        read_json(unsafe { (self.vtable.facts())(self.data) }.as_str()).unwrap_or_default()
    }

    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()> {
        // SAFETY: `data` belongs to `vtable`.
        from_crossing(unsafe { (self.vtable.forward())(self.data, *batch, RSliceMut::from_mut_slice(logits)) })
    }
}

unsafe extern "C" fn facts(data: *const c_void) -> RString {
    // SAFETY: `data` is the box of `ModelObject::new`.
    let model = unsafe { &*data.cast::<Arc<dyn ModelApi>>() };
    catch("model facts", || Ok(to_json(&model.facts()))).unwrap_or_default().into()
}

unsafe extern "C" fn forward(
    data: *const c_void,
    batch: ForwardBatch<'_>,
    mut logits: RSliceMut<'_, f32>,
) -> Crossing<()> {
    // SAFETY: as in `facts`.
    let model = unsafe { &*data.cast::<Arc<dyn ModelApi>>() };
    to_crossing(catch("model forward", || model.forward(&batch, logits.as_mut_slice())))
}

unsafe extern "C" fn drop(data: *const c_void) {
    // SAFETY: `data` is the box of `ModelObject::new`, not used again.
    let service = unsafe { Box::from_raw(data.cast_mut().cast::<Arc<dyn ModelApi>>()) };
    let _ = catch("drop", move || {
        std::mem::drop(service);
        Ok(())
    });
}
