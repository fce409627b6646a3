//! One step: one pass of the target over everything that the scheduler planned.
//!
//! The eight verbs, one file each. `schedule` decides, `propose` guesses, `reserve` holds slots (and rolls them back if
//! dropped), `forward` computes, `guide` shapes the rows, `verify` keeps and chooses, `commit` makes the kept slots the
//! sequence's, `emit` tells everyone. There is no prefill and no decode step: a prefill row is a row, and a decode
//! without a draft is a tree with only its anchor.

pub mod commit;
pub mod emit;
pub mod forward;
pub mod guide;
pub mod propose;
pub mod reserve;
pub mod schedule;
pub mod verify;

mod buffers;

pub use buffers::{Entry, StepBuffers};

use std::time::Instant;

use foretoken_plugin_api::abi::kv::LoadedKv;

use crate::engine::{Core, Engine};
use crate::request::Event;

/// Runs one step and tells `sink` what came of it. A fault ends the sequences it touches, never the step.
pub fn step(engine: &mut Engine, sink: &mut dyn FnMut(Event<'_>)) {
    let Engine { core, kv } = engine;
    core.buffers.begin(Instant::now());
    if let Err(fault) = verbs(core, kv, sink) {
        fault.end(core);
    }
    core.watch_progress(kv);
    core.deliver(kv, sink);
    if core.config.checks {
        commit::check_integrity(core, kv);
    }
}

fn verbs(core: &mut Core, kv: &mut LoadedKv, sink: &mut dyn FnMut(Event<'_>)) -> Result<(), Fault> {
    schedule::schedule(core, kv)?;
    propose::propose(core, kv);
    let reservation = reserve::reserve(core, kv);
    forward::forward(core, &reservation);
    guide::guide(core);
    verify::verify(core)?;
    commit::commit(core, reservation)?;
    emit::emit(core, kv, sink);
    Ok(())
}

/// A fault that speculation cannot absorb, and whom it ends.
#[derive(Debug)]
pub enum Fault {
    /// Every request: the scheduler or the KV's balance is broken.
    All(String),
    /// The sequences of this step.
    Step(String),
}

impl Fault {
    fn end(self, core: &mut Core) {
        match self {
            Self::All(error) => core.fail_all(&error),
            Self::Step(error) => core.fail_entries(&error),
        }
    }
}
