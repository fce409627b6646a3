//! Files of tensors opened by the host, across the border.

use std::ffi::c_void;
use std::sync::Arc;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RStr, RString};

use super::guard::{Crossing, catch, from_crossing, to_crossing};
use super::module::{read_json, to_json};
use crate::author::TensorsApi;
use crate::error::Result;
use crate::types::{TensorInfo, TensorView};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = TensorsVtableRef)))]
pub struct TensorsVtable {
    list: unsafe extern "C" fn(*const c_void) -> RString,
    view: for<'a> unsafe extern "C" fn(&'a c_void, RStr<'_>) -> Crossing<TensorView<'a>>,
    #[sabi(last_prefix_field)]
    drop: unsafe extern "C" fn(*const c_void),
    // Since 1.1.0: an older engine has none.
    config: unsafe extern "C" fn(*const c_void) -> RString,
}

/// A file behind its vtable: `data` is a boxed `Arc<dyn TensorsApi>` of the engine.
#[repr(C)]
#[derive(StableAbi)]
pub struct TensorsObject {
    data: *const c_void,
    vtable: TensorsVtableRef,
}

// SAFETY: `TensorsApi: Send + Sync`, and the vtable's functions take the object by shared reference.
unsafe impl Send for TensorsObject {}
// SAFETY: as above.
unsafe impl Sync for TensorsObject {}

struct Make;

impl Make {
    staticref! {const TABLE: WithMetadata<TensorsVtable> = WithMetadata::new(TensorsVtable { list, view, drop, config })}
}

impl TensorsObject {
    pub fn new(tensors: Arc<dyn TensorsApi>) -> Self {
        let data = Box::into_raw(Box::new(tensors)).cast_const().cast();
        Self { data, vtable: TensorsVtableRef(Make::TABLE.as_prefix()) }
    }
}

impl Drop for TensorsObject {
    fn drop(&mut self) {
        // SAFETY: `data` is not used again.
        unsafe { (self.vtable.drop())(self.data) }
    }
}

impl TensorsApi for TensorsObject {
    fn list(&self) -> Vec<TensorInfo> {
        // SAFETY: `data` belongs to `vtable`.
        read_json(unsafe { (self.vtable.list())(self.data) }.as_str()).unwrap_or_default()
    }

    fn config(&self) -> String {
        // SAFETY: `data` belongs to `vtable`.
        self.vtable.config().map(|config| unsafe { config(self.data) }.into()).unwrap_or_default()
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        // SAFETY: `data` belongs to `vtable` and lives as long as `self`.
        from_crossing(unsafe { (self.vtable.view())(&*self.data, name.into()) })
    }
}

unsafe extern "C" fn list(data: *const c_void) -> RString {
    // SAFETY: `data` is the box of `TensorsObject::new`.
    let tensors = unsafe { &*data.cast::<Arc<dyn TensorsApi>>() };
    catch("tensor list", || Ok(to_json(&tensors.list()))).unwrap_or_default().into()
}

unsafe extern "C" fn config(data: *const c_void) -> RString {
    // SAFETY: as in `list`.
    let tensors = unsafe { &*data.cast::<Arc<dyn TensorsApi>>() };
    catch("tensor config", || Ok(tensors.config())).unwrap_or_default().into()
}

unsafe extern "C" fn view<'a>(data: &'a c_void, name: RStr<'_>) -> Crossing<TensorView<'a>> {
    // SAFETY: as in `list`; the box outlives 'a.
    let tensors: &'a Arc<dyn TensorsApi> = unsafe { &*std::ptr::from_ref(data).cast() };
    to_crossing(catch("tensor view", || tensors.view(name.as_str())))
}

unsafe extern "C" fn drop(data: *const c_void) {
    // SAFETY: `data` is the box of `TensorsObject::new`, not used again.
    let service = unsafe { Box::from_raw(data.cast_mut().cast::<Arc<dyn TensorsApi>>()) };
    let _ = catch("drop", move || {
        std::mem::drop(service);
        Ok(())
    });
}
