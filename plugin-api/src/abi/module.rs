//! A library's parts: the root of what the layout check walks.

use abi_stable::StableAbi;
use abi_stable::library::RootModule;
use abi_stable::package_version_strings;
use abi_stable::prefix_type::PrefixTypeTrait;
use abi_stable::sabi_types::VersionStrings;
use abi_stable::std_types::{RNone, ROption, RSlice, RSome, RStr, RString};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::guard::Crossing;
use super::host::HostObject;
use super::kv::{KvObject, MakeKv};
use super::proposer::{MakeProposer, ProposerObject};
use super::sampler::{MakeSampler, SamplerObject};
use super::scheduler::{MakeScheduler, SchedulerObject};
use crate::author::{KvManager, PartOptions, Proposer, Sampler, Scheduler};
use crate::error::{Error, Result};

/// What a library exports.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PluginModuleRef)))]
#[sabi(missing_field(panic))]
pub struct PluginModule {
    #[sabi(last_prefix_field)]
    parts: RSlice<'static, PartRef>,
}

impl RootModule for PluginModuleRef {
    abi_stable::declare_root_module_statics! {PluginModuleRef}
    const BASE_NAME: &'static str = "foretoken_plugin";
    const NAME: &'static str = "foretoken_plugin";
    const VERSION_STRINGS: VersionStrings = package_version_strings!();
}

/// One part: exactly one of its constructors is there. A later level of engines may know more kinds.
#[repr(C)]
#[derive(StableAbi)]
#[sabi(kind(Prefix(prefix_ref = PartRef)))]
pub struct Part {
    name: RStr<'static>,
    version: RStr<'static>,
    about: RStr<'static>,
    schema: extern "C" fn() -> RString,
    // The aliases `MakeProposer` .. written out: the derive reads function types from the text of the field.
    proposer: ROption<extern "C" fn(RStr<'_>, HostObject) -> Crossing<ProposerObject>>,
    sampler: ROption<extern "C" fn(RStr<'_>, HostObject) -> Crossing<SamplerObject>>,
    scheduler: ROption<extern "C" fn(RStr<'_>, HostObject) -> Crossing<SchedulerObject>>,
    #[sabi(last_prefix_field)]
    kv: ROption<extern "C" fn(RStr<'_>, RStr<'_>, HostObject) -> Crossing<KvObject>>,
}

/// The four kinds of parts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// What to guess.
    Proposer,
    /// What to keep.
    Sampler,
    /// Who runs.
    Scheduler,
    /// Where keys and values live.
    Kv,
}

impl Kind {
    /// The kind's name, which is its table's name in a config.
    pub fn name(self) -> &'static str {
        match self {
            Self::Proposer => "proposer",
            Self::Sampler => "sampler",
            Self::Scheduler => "scheduler",
            Self::Kv => "kv",
        }
    }
}

impl std::fmt::Display for Kind {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(self.name())
    }
}

/// The names under which a part is exported.
#[derive(Clone, Copy)]
pub struct PartName {
    /// The part's name in configs.
    pub name: &'static str,
    /// The library's version.
    pub version: &'static str,
    /// One line on what it does.
    pub about: &'static str,
}

/// One part on its way into a module; made by `export_plugin!`.
pub struct PartEntry {
    part: Part,
}

impl PartEntry {
    fn part<O: PartOptions>(name: PartName) -> Part {
        Part {
            name: RStr::from_str(name.name),
            version: RStr::from_str(name.version),
            about: RStr::from_str(name.about),
            schema: schema::<O>,
            proposer: RNone,
            sampler: RNone,
            scheduler: RNone,
            kv: RNone,
        }
    }

    /// Exports a proposer.
    pub fn proposer<P: Proposer>(name: PartName) -> Self {
        let part = Part { proposer: RSome(super::proposer::export::<P>), ..Self::part::<P::Options>(name) };
        Self { part }
    }

    /// Exports a sampler.
    pub fn sampler<P: Sampler>(name: PartName) -> Self {
        let part = Part { sampler: RSome(super::sampler::export::<P>), ..Self::part::<P::Options>(name) };
        Self { part }
    }

    /// Exports a scheduler.
    pub fn scheduler<P: Scheduler>(name: PartName) -> Self {
        let part = Part { scheduler: RSome(super::scheduler::export::<P>), ..Self::part::<P::Options>(name) };
        Self { part }
    }

    /// Exports a KV manager.
    pub fn kv<P: KvManager>(name: PartName) -> Self {
        let part = Part { kv: RSome(super::kv::export::<P>), ..Self::part::<P::Options>(name) };
        Self { part }
    }
}

extern "C" fn schema<O: PartOptions>() -> RString {
    let schema = super::guard::catch("schema", || Ok(to_json(&schemars::schema_for!(O))));
    schema.unwrap_or_else(|error| to_json(&error.to_string())).into()
}

impl PluginModule {
    /// Builds the module of a library; it lives as long as the process, as the library does.
    pub fn leak(parts: Vec<PartEntry>) -> PluginModuleRef {
        let leak_part = |entry: PartEntry| entry.part.leak_into_prefix();
        let parts: &'static [PartRef] = parts.into_iter().map(leak_part).collect::<Vec<_>>().leak();
        let module = PluginModule { parts: RSlice::from_slice(parts) };
        module.leak_into_prefix()
    }
}

impl PluginModuleRef {
    /// The parts, in the order of the export lines.
    pub fn list(self) -> impl Iterator<Item = LoadedPart> {
        self.parts().into_iter().map(|part| LoadedPart { part: *part })
    }
}

/// One part of a loaded library.
#[derive(Clone, Copy)]
pub struct LoadedPart {
    part: PartRef,
}

impl LoadedPart {
    /// Its name in configs.
    pub fn name(&self) -> &'static str {
        self.part.name().as_str()
    }

    /// Its library's version.
    pub fn version(&self) -> &'static str {
        self.part.version().as_str()
    }

    /// One line on what it does.
    pub fn about(&self) -> &'static str {
        self.part.about().as_str()
    }

    /// The JSON schema of its options.
    pub fn schema(&self) -> String {
        (self.part.schema())().into_string()
    }

    /// Its kind; `None` for a kind of a later level.
    pub fn kind(&self) -> Option<Kind> {
        let found = [
            (self.proposer().is_some(), Kind::Proposer),
            (self.sampler().is_some(), Kind::Sampler),
            (self.scheduler().is_some(), Kind::Scheduler),
            (self.kv().is_some(), Kind::Kv),
        ];
        found.into_iter().find_map(|(there, kind)| there.then_some(kind))
    }

    /// Its constructor, if it is a proposer.
    pub fn proposer(&self) -> Option<MakeProposer> {
        self.part.proposer().into_option()
    }

    /// Its constructor, if it is a sampler.
    pub fn sampler(&self) -> Option<MakeSampler> {
        self.part.sampler().into_option()
    }

    /// Its constructor, if it is a scheduler.
    pub fn scheduler(&self) -> Option<MakeScheduler> {
        self.part.scheduler().into_option()
    }

    /// Its constructor, if it is a KV manager.
    pub fn kv(&self) -> Option<MakeKv> {
        self.part.kv().into_option()
    }
}

pub(super) fn parse_options<O: DeserializeOwned>(text: &str) -> Result<O> {
    toml::from_str(text).map_err(|error| Error::options(error.message().to_owned()))
}

pub(super) fn to_json<T: Serialize>(value: &T) -> String {
    serde_json::to_string(value).expect("facts are plain data")
}

pub(super) fn read_json<T: DeserializeOwned>(text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|error| Error::failed(format!("facts that crossed cannot be read: {error}")))
}
