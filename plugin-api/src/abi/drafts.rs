//! [`Drafts`](crate::Drafts) across the border: a pointer to the engine's sink and its functions. A push returns a
//! number (node id, or a negative [`DraftError`]), so that the hot path builds no result objects.

use std::ffi::c_void;
use std::marker::PhantomData;

use abi_stable::StableAbi;
use abi_stable::prefix_type::WithMetadata;
use abi_stable::staticref;
use abi_stable::std_types::{RSlice, RSliceMut, Tuple2};

use super::guard::catch;
use crate::author::DraftSink;
use crate::error::DraftError;
use crate::types::{NO_PARENT, NodeId, Token};

#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = DraftsVtableRef)))]
pub struct DraftsVtable {
    push: unsafe extern "C" fn(*mut c_void, usize, NodeId, Token) -> i64,
    draw: unsafe extern "C" fn(*mut c_void, usize, NodeId, RSlice<'_, f32>, &mut Token) -> i64,
    draw_n: unsafe extern "C" fn(*mut c_void, usize, NodeId, RSlice<'_, f32>, DrawnMut<'_>) -> i64,
    #[sabi(last_prefix_field)]
    remaining: unsafe extern "C" fn(*mut c_void, usize) -> usize,
}

type DrawnMut<'a> = RSliceMut<'a, Tuple2<NodeId, Token>>;

/// A sink behind its vtable.
#[repr(C)]
#[derive(StableAbi)]
pub struct DraftsObject<'a> {
    data: *mut c_void,
    vtable: DraftsVtableRef,
    lifetime: PhantomData<&'a mut ()>,
}

struct Make<S>(PhantomData<S>);

impl<S: DraftSink> Make<S> {
    staticref! {const TABLE: WithMetadata<DraftsVtable> = WithMetadata::new(DraftsVtable {
        push: push::<S>,
        draw: draw::<S>,
        draw_n: draw_n::<S>,
        remaining: remaining::<S>,
    })}
}

impl<'a> DraftsObject<'a> {
    pub fn new<S: DraftSink>(sink: &'a mut S) -> Self {
        let data = std::ptr::from_mut(sink).cast();
        Self { data, vtable: DraftsVtableRef(Make::<S>::TABLE.as_prefix()), lifetime: PhantomData }
    }

    pub fn reborrow(&mut self) -> DraftsObject<'_> {
        DraftsObject { data: self.data, vtable: self.vtable, lifetime: PhantomData }
    }

    pub fn push(&mut self, sequence: usize, parent: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        // SAFETY: `data` is the sink that `vtable` was made for, borrowed mutably for 'a.
        node(unsafe { (self.vtable.push())(self.data, sequence, parent.unwrap_or(NO_PARENT), token) })
    }

    pub fn draw(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
    ) -> Result<(NodeId, Token), DraftError> {
        let mut token = 0;
        let (parent, logits) = (parent.unwrap_or(NO_PARENT), RSlice::from_slice(logits));
        // SAFETY: as in `push`.
        let code = unsafe { (self.vtable.draw())(self.data, sequence, parent, logits, &mut token) };
        Ok((node(code)?, token))
    }

    pub fn draw_n(
        &mut self,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
        out: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        let mut drawn = vec![Tuple2(0, 0); out.len()];
        let (parent, logits) = (parent.unwrap_or(NO_PARENT), RSlice::from_slice(logits));
        let view = RSliceMut::from_mut_slice(&mut drawn);
        // SAFETY: as in `push`.
        let count = node(unsafe { (self.vtable.draw_n())(self.data, sequence, parent, logits, view) })? as usize;
        for (to, Tuple2(node, token)) in out.iter_mut().zip(&drawn[..count]) {
            *to = (*node, *token);
        }
        Ok(count)
    }

    pub fn remaining(&self, sequence: usize) -> usize {
        // SAFETY: as in `push`; the sink is only read.
        unsafe { (self.vtable.remaining())(self.data, sequence) }
    }
}

fn node(code: i64) -> Result<NodeId, DraftError> {
    u32::try_from(code).map_err(|_| DraftError::from_code(code))
}

fn parent_of(parent: NodeId) -> Option<NodeId> {
    (parent != NO_PARENT).then_some(parent)
}

/// Runs the sink's code; a panic there is the engine's own and must not unwind into the plugin.
fn guarded(call: impl FnOnce() -> Result<i64, DraftError>) -> i64 {
    let result = catch("drafts", || Ok(call())).unwrap_or(Err(DraftError::NoSuchSequence));
    result.unwrap_or_else(|error| error as i64)
}

unsafe extern "C" fn push<S: DraftSink>(data: *mut c_void, sequence: usize, parent: NodeId, token: Token) -> i64 {
    // SAFETY: `data` is the `S` of `DraftsObject::new`.
    let sink = unsafe { &mut *data.cast::<S>() };
    guarded(|| sink.push(sequence, parent_of(parent), token).map(i64::from))
}

unsafe extern "C" fn draw<S: DraftSink>(
    data: *mut c_void,
    sequence: usize,
    parent: NodeId,
    logits: RSlice<'_, f32>,
    out: &mut Token,
) -> i64 {
    // SAFETY: `data` is the `S` of `DraftsObject::new`.
    let sink = unsafe { &mut *data.cast::<S>() };
    guarded(|| {
        let (node, token) = sink.draw(sequence, parent_of(parent), logits.as_slice())?;
        *out = token;
        Ok(i64::from(node))
    })
}

unsafe extern "C" fn draw_n<S: DraftSink>(
    data: *mut c_void,
    sequence: usize,
    parent: NodeId,
    logits: RSlice<'_, f32>,
    mut out: DrawnMut<'_>,
) -> i64 {
    // SAFETY: `data` is the `S` of `DraftsObject::new`.
    let sink = unsafe { &mut *data.cast::<S>() };
    guarded(|| {
        let mut drawn = vec![(0, 0); out.len()];
        let count = sink.draw_n(sequence, parent_of(parent), logits.as_slice(), &mut drawn)?;
        for (to, (node, token)) in out.as_mut_slice().iter_mut().zip(&drawn[..count]) {
            *to = Tuple2(*node, *token);
        }
        Ok(count as i64)
    })
}

unsafe extern "C" fn remaining<S: DraftSink>(data: *mut c_void, sequence: usize) -> usize {
    // SAFETY: `data` is the `S` of `DraftsObject::new`.
    let sink = unsafe { &*data.cast::<S>() };
    catch("drafts", || Ok(sink.remaining(sequence))).unwrap_or(0)
}
