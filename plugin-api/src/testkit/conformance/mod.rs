//! A conformance suite per kind: what the engine relies on, asked of any part.
//!
//! A suite returns a [`Report`] and does not panic, so that `plugins check` prints it and a test asserts it. Each check
//! starts from a fresh host and a fresh instance. The suites cannot judge quality (a proposer that guesses badly
//! passes), only the promises that hold for every part of a kind.
//!
//! ```
//! # use foretoken_plugin_api as api;
//! # use api::{Drafts, Host, NoOptions, ProposeBatch, Proposer, Result};
//! use foretoken_plugin_api::testkit::conformance::{self, Fixture};
//!
//! struct Nothing;
//!
//! impl Proposer for Nothing {
//!     type Options = NoOptions;
//!     fn new(_: NoOptions, _: Host) -> Result<Self> {
//!         Ok(Self)
//!     }
//!     fn propose(&mut self, _: &ProposeBatch<'_>, _: &mut Drafts<'_>) -> Result<()> {
//!         Ok(())
//!     }
//! }
//!
//! conformance::proposer::<Nothing>(&Fixture::new("")).assert_passed();
//! ```

mod kv;
mod kv_oracle;
mod proposer;
mod sampler;
mod sampler_law;
mod scheduler;
mod scheduler_world;

use std::sync::Arc;

use super::host::FakeHost;
use super::report::Report;
use super::subject::{KvSubject, ProposerSubject, SamplerSubject, SchedulerSubject};
use super::toy::ToyModel;
use crate::abi::kv::LoadedKv;
use crate::abi::module::{Kind, LoadedPart, PartEntry, PartName, PluginModule};
use crate::abi::proposer::LoadedProposer;
use crate::abi::sampler::LoadedSampler;
use crate::abi::scheduler::LoadedScheduler;
use crate::author::{KvManager, PartOptions, Proposer, Sampler, Scheduler};
use crate::error::{Error, Result};
use crate::types::KvFacts;

/// What a suite gives to a part: its options and its host.
pub struct Fixture {
    options: String,
    host: Box<dyn Fn() -> FakeHost>,
}

impl Fixture {
    /// Options as TOML text, and a host whose target is a toy of 16 tokens.
    pub fn new(options: &str) -> Self {
        Self { options: options.to_owned(), host: Box::new(|| FakeHost::new(ToyModel::new(16, 5))) }
    }

    /// The same with another host: one that has the models or tensors the part loads. Called once per instance.
    #[must_use]
    pub fn with_host(self, host: impl Fn() -> FakeHost + 'static) -> Self {
        Self { host: Box::new(host), ..self }
    }

    fn fresh_host(&self) -> Arc<FakeHost> {
        (self.host)().shared()
    }

    fn parse<O: PartOptions>(&self) -> Result<O> {
        toml::from_str(&self.options).map_err(|error| Error::options(error.message().to_owned()))
    }
}

type MakeOn<'a, S> = &'a dyn Fn(&Arc<FakeHost>) -> Result<Box<S>>;
type MakeKvOn<'a> = &'a dyn Fn(&Arc<FakeHost>, KvFacts) -> Result<Box<dyn KvSubject>>;

const NAME: PartName = PartName { name: "part", version: "0", about: "" };

fn through_abi(entry: PartEntry, fixture: &Fixture) -> Report {
    let loaded = PluginModule::leak(vec![entry]).list().next();
    loaded.map(|loaded| part(&loaded, fixture)).unwrap_or_default()
}

/// Checks a proposer: called directly, and through the ABI.
pub fn proposer<P: Proposer>(fixture: &Fixture) -> Report {
    let make = |host: &Arc<FakeHost>| -> Result<Box<dyn ProposerSubject>> {
        Ok(Box::new(P::new(fixture.parse()?, host.handle())?))
    };
    let mut report = Report::default();
    report.absorb("direct", proposer::suite(fixture, &make));
    report.absorb("abi", through_abi(PartEntry::proposer::<P>(NAME), fixture));
    report
}

/// Checks a sampler: called directly, and through the ABI. The suite brings its own host, with a vocabulary small enough
/// to enumerate.
pub fn sampler<P: Sampler>(fixture: &Fixture) -> Report {
    let make = |host: &Arc<FakeHost>| -> Result<Box<dyn SamplerSubject>> {
        Ok(Box::new(P::new(fixture.parse()?, host.handle())?))
    };
    let mut report = Report::default();
    report.absorb("direct", sampler::suite(&make));
    report.absorb("abi", through_abi(PartEntry::sampler::<P>(NAME), fixture));
    report
}

/// Checks a scheduler: called directly, and through the ABI.
pub fn scheduler<P: Scheduler>(fixture: &Fixture) -> Report {
    let make = |host: &Arc<FakeHost>| -> Result<Box<dyn SchedulerSubject>> {
        Ok(Box::new(P::new(fixture.parse()?, host.handle())?))
    };
    let mut report = Report::default();
    report.absorb("direct", scheduler::suite(fixture, &make));
    report.absorb("abi", through_abi(PartEntry::scheduler::<P>(NAME), fixture));
    report
}

/// Checks a KV manager: called directly, and through the ABI.
pub fn kv<P: KvManager>(fixture: &Fixture) -> Report {
    let make = |host: &Arc<FakeHost>, facts: KvFacts| -> Result<Box<dyn KvSubject>> {
        Ok(Box::new(P::new(fixture.parse()?, facts, host.handle())?))
    };
    let mut report = Report::default();
    report.absorb("direct", kv::suite(fixture, &make));
    report.absorb("abi", through_abi(PartEntry::kv::<P>(NAME), fixture));
    report
}

/// Checks one part of a loaded library.
pub fn part(part: &LoadedPart, fixture: &Fixture) -> Report {
    let options = fixture.options.as_str();
    match part.kind() {
        Some(Kind::Proposer) => {
            let make = part.proposer().expect("its kind says so");
            proposer::suite(fixture, &|host| Ok(Box::new(LoadedProposer::new(make, options, &host.handle())?)))
        }
        Some(Kind::Sampler) => {
            let make = part.sampler().expect("its kind says so");
            sampler::suite(&|host| Ok(Box::new(LoadedSampler::new(make, options, &host.handle())?)))
        }
        Some(Kind::Scheduler) => {
            let make = part.scheduler().expect("its kind says so");
            scheduler::suite(fixture, &|host| Ok(Box::new(LoadedScheduler::new(make, options, &host.handle())?)))
        }
        Some(Kind::Kv) => {
            let make = part.kv().expect("its kind says so");
            kv::suite(fixture, &|host, facts| Ok(Box::new(LoadedKv::new(make, options, &facts, &host.handle())?)))
        }
        None => {
            let mut report = Report::default();
            report.skip("kind", "a kind of a later API level");
            report
        }
    }
}

fn text(error: Error) -> String {
    format!("{:?}: {error}", error.kind)
}
