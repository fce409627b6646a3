//! From a config to an engine: facts first, then the parts and their needs, weights last.
//!
//! A part that cannot serve says so before any of the target's weights are read; what it asked for is checked against
//! what this engine offers, so that a refusal is a sentence at load and not a low acceptance rate later.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock};

use foretoken_kernels::blocks::{KvShape, KvStore};
use foretoken_kernels::{Exec, ThreadPool, physical_cores};
use foretoken_plugin_api::abi::kv::LoadedKv;
use foretoken_plugin_api::abi::proposer::LoadedProposer;
use foretoken_plugin_api::abi::sampler::LoadedSampler;
use foretoken_plugin_api::abi::scheduler::LoadedScheduler;
use foretoken_plugin_api::{Guarantees, Host, KvFacts, LaneSource, Needs, TargetFacts};

use crate::config::{Config, PartChoice};
use crate::drafts::DraftStore;
use crate::engine::{Core, Engine, Target, Totals};
use crate::model::rows::Rows;
use crate::model::{Architecture, Decoder, DecoderError, is_model};
use crate::plugins::host::{EngineHost, Shared};
use crate::plugins::lanes::{HiddenFormat, Lanes};
use crate::plugins::load::LoadError;
use crate::plugins::proposers::ProposerSlot;
use crate::plugins::registry::Registry;
use crate::request::RequestError;
use crate::self_test;
use crate::step::StepBuffers;
use crate::step_costs;
use crate::text::{Tokenizer, TokenizerError};

/// Slots that `num_slots = "auto"` takes at most.
const MOST_AUTO_SLOTS: usize = 65_536;
/// The share of free memory that `num_slots = "auto"` may take.
const AUTO_MEMORY_SHARE: usize = 4;

/// Why an engine cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// There is no model where the config points.
    #[error(
        "there is no model at {path}\n  fix: set model.path to a Hugging Face folder (config.json, *.safetensors, tokenizer.json) or to a .gguf file"
    )]
    NoModel {
        /// Where it was looked for.
        path: std::path::PathBuf,
    },
    /// The model cannot be read.
    #[error(transparent)]
    Model(#[from] DecoderError),
    /// Its tokenizer cannot be read.
    #[error(transparent)]
    Tokenizer(#[from] TokenizerError),
    /// A plugin cannot be used.
    #[error(transparent)]
    Plugin(#[from] LoadError),
    /// The kernels cannot run as asked.
    #[error(transparent)]
    Kernel(#[from] foretoken_kernels::KernelError),
    /// Proposers cannot see so many columns.
    #[error("model.hidden_columns is {columns}, expected 1 to {width}, the width of the model's hidden rows")]
    HiddenColumns {
        /// What the config says.
        columns: usize,
        /// What there is.
        width: usize,
    },
    /// The config's own sampling could not run.
    #[error("sampling: {0}")]
    Sampling(#[from] RequestError),
    /// Rejected drafts could not be taken back.
    #[error(
        "kv manager `{kv}` cannot roll back, so what proposer `{proposer}` drafts could not be taken back\n  fix: a kv.plugin that can, such as \"paged\", or no proposer"
    )]
    OnlyForward {
        /// The KV manager.
        kv: String,
        /// The first proposer.
        proposer: String,
    },
    /// A proposer asks for what this engine does not have.
    #[error("proposer `{name}` cannot be served: {reason}")]
    Needs {
        /// The proposer.
        name: String,
        /// What is missing.
        reason: String,
    },
}

impl Engine {
    /// Builds an engine.
    ///
    /// # Errors
    /// The first thing that does not fit; see [`BuildError`].
    pub fn new(config: Config) -> Result<Self, BuildError> {
        if !is_model(&config.model) {
            return Err(BuildError::NoModel { path: config.model });
        }
        let exec = exec(&config)?;
        let architecture = Architecture::open(&config.model).map_err(DecoderError::from)?;
        let tokenizer = Arc::new(Tokenizer::open(&config.model, &architecture)?);
        let kv_shape = architecture.kv_shape(config.kv_dtype);
        let num_slots = config.num_slots.unwrap_or_else(|| auto_slots(kv_shape, architecture.max_positions));
        let width = architecture.hidden_size;
        if let Some(columns) = config.hidden_columns.filter(|columns| !(1..=width).contains(columns)) {
            return Err(BuildError::HiddenColumns { columns, width });
        }
        let shared = shared(&config, &architecture, &tokenizer, &exec);
        let mut parts = Parts { registry: Registry::new(config.plugins.clone()), shared: Arc::clone(&shared) };
        let (scheduler, plans_pairs) = parts.scheduler(&config.scheduler)?;
        if config.sampling.runs_pairs() && !plans_pairs {
            return Err(RequestError::no_pairs(&config.sampling, &config.scheduler.name).into());
        }
        let mut kv = parts.kv(&config.kv, num_slots)?;
        let rolls_back = kv.can_rollback().map_err(refused(&config.kv))?;
        if let Some(proposer) = config.proposers.first().filter(|_| !rolls_back) {
            return Err(BuildError::OnlyForward { kv: config.kv.name.clone(), proposer: proposer.name.clone() });
        }
        let (sampler, guarantees) = parts.sampler(&config.sampler)?;
        let proposers = config.proposers.iter().map(|choice| parts.proposer(choice, config.plugins.max_faults));
        let proposers = proposers.collect::<Result<Vec<_>, _>>()?;
        proposers.iter().try_for_each(|proposer| check_needs(proposer, &architecture))?;

        let decoder = Arc::new(Decoder::load(&config.model, config.dtype, exec)?);
        let (columns, exec) = (shared.facts.hidden_size, decoder.exec().clone());
        let format = HiddenFormat { columns, dtype: config.kv_dtype, exec };
        proposers.iter().for_each(|proposer| proposer.lanes.allocate(&proposer.needs.lanes, num_slots, &format));
        let _ = shared.target.set(Arc::clone(&decoder));
        let buffers = StepBuffers::default();
        let target = Target { decoder, kv: KvStore::new(kv_shape, num_slots), rows: Rows::default() };
        let drafts = DraftStore::new(architecture.vocab_size, guarantees.needs_draft_prob);
        let mut core = Core {
            config,
            tokenizer,
            shared,
            target,
            proposers,
            sampler,
            scheduler,
            plans_pairs,
            drafts,
            queue: Vec::new(),
            templates: Vec::new(),
            buffers,
            next_id: 0,
            num_slots,
            idle_steps: 0,
            totals: Totals::default(),
            first_guesses: Vec::new(),
            step_costs: Vec::new(),
        };
        core.first_guesses = self_test::look(&mut core);
        core.step_costs = step_costs::tell(&mut core);
        Ok(Self { core, kv })
    }
}

/// The threads that a config asks for.
///
/// # Errors
/// If `FORETOKEN_SIMD` names a level that this machine lacks.
pub fn exec(config: &Config) -> Result<Exec, foretoken_kernels::KernelError> {
    let threads = config.threads.unwrap_or_else(physical_cores);
    Exec::new(Arc::new(if config.pin_threads { ThreadPool::pinned(threads) } else { ThreadPool::new(threads) }))
}

fn shared(config: &Config, architecture: &Architecture, tokenizer: &Tokenizer, exec: &Exec) -> Arc<Shared> {
    let facts = TargetFacts {
        vocab_size: architecture.vocab_size,
        hidden_size: config.hidden_columns.unwrap_or(architecture.hidden_size),
        num_layers: architecture.layers,
        max_positions: architecture.max_positions,
        path: config.model.to_string_lossy().into_owned(),
        dtype: config.dtype.map_or_else(|| "default".to_owned(), |dtype| dtype.to_string()),
        device: "cpu".to_owned(),
        bos: tokenizer.bos(),
        eos: tokenizer.eos().to_vec(),
        tokenizer_digest: tokenizer.vocabulary_digest(),
        max_sequences: 0,
    };
    Arc::new(Shared {
        facts,
        exec: exec.clone(),
        folder: config.folder.clone(),
        dtype: config.dtype,
        kv_dtype: config.kv_dtype,
        target: OnceLock::new(),
        counters: Mutex::new(BTreeMap::new()),
    })
}

/// As many slots as a quarter of the free memory holds, up to a cap; never fewer than one context.
fn auto_slots(shape: KvShape, max_positions: usize) -> usize {
    let budget = free_memory().unwrap_or(1 << 30) / AUTO_MEMORY_SHARE;
    (budget / shape.bytes_per_slot().max(1)).clamp(max_positions, MOST_AUTO_SLOTS.max(max_positions))
}

fn free_memory() -> Option<usize> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("MemAvailable:"))?;
    let kilobytes: usize = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Makes parts and gives each a host of its own.
struct Parts {
    registry: Registry,
    shared: Arc<Shared>,
}

impl Parts {
    fn host(&self, name: &str, lanes: &Arc<Lanes>) -> Host {
        Host::new(Arc::new(EngineHost::new(Arc::clone(&self.shared), name, Arc::clone(lanes))))
    }

    /// The scheduler, and whether it plans pairs.
    fn scheduler(&mut self, choice: &PartChoice) -> Result<(LoadedScheduler, bool), LoadError> {
        let make = self.registry.find(choice)?.scheduler().expect("find checks the kind");
        let host = self.host(&choice.name, &Arc::default());
        let mut scheduler = LoadedScheduler::new(make, &choice.options, &host).map_err(refused(choice))?;
        let plans_pairs = scheduler.supports_pairs().map_err(refused(choice))?;
        Ok((scheduler, plans_pairs))
    }

    fn kv(&mut self, choice: &PartChoice, num_slots: usize) -> Result<LoadedKv, LoadError> {
        let make = self.registry.find(choice)?.kv().expect("find checks the kind");
        let host = self.host(&choice.name, &Arc::default());
        LoadedKv::new(make, &choice.options, &KvFacts { num_slots }, &host).map_err(refused(choice))
    }

    fn sampler(&mut self, choice: &PartChoice) -> Result<(LoadedSampler, Guarantees), LoadError> {
        let make = self.registry.find(choice)?.sampler().expect("find checks the kind");
        let host = self.host(&choice.name, &Arc::default());
        let mut sampler = LoadedSampler::new(make, &choice.options, &host).map_err(refused(choice))?;
        let guarantees = sampler.guarantees().map_err(refused(choice))?;
        if !guarantees.lossless {
            tracing::warn!("sampler `{}` is not lossless: the output is not the model's own distribution", choice.name);
        }
        Ok((sampler, guarantees))
    }

    fn proposer(&mut self, choice: &PartChoice, max_faults: u32) -> Result<ProposerSlot, LoadError> {
        let make = self.registry.find(choice)?.proposer().expect("find checks the kind");
        let lanes = Arc::default();
        let host = self.host(&choice.name, &lanes);
        let mut part = LoadedProposer::new(make, &choice.options, &host).map_err(refused(choice))?;
        let needs = part.needs().map_err(refused(choice))?;
        Ok(ProposerSlot::new(choice.name.clone(), part, needs, lanes, max_faults))
    }
}

fn refused(choice: &PartChoice) -> impl Fn(foretoken_plugin_api::Error) -> LoadError + '_ {
    |source| LoadError::Refused { kind: choice.kind, name: choice.name.clone(), source }
}

fn check_needs(proposer: &ProposerSlot, architecture: &Architecture) -> Result<(), BuildError> {
    let refuse = |reason: String| Err(BuildError::Needs { name: proposer.name.clone(), reason });
    let Needs { max_draft, lanes, .. } = &proposer.needs;
    if *max_draft >= architecture.max_positions {
        return refuse(format!("it drafts up to {max_draft} tokens, the context is {}", architecture.max_positions));
    }
    let layers = architecture.layers;
    let wanted = lanes.iter().filter_map(|lane| match &lane.source {
        LaneSource::Hidden(layers) => Some(layers),
        LaneSource::Plugin => None,
    });
    match wanted.flatten().find(|layer| **layer > layers) {
        Some(layer) => refuse(format!(
            "it wants hidden rows of layer {layer}; the model has {layers} (0-based, {layers} is the final norm)"
        )),
        None => Ok(()),
    }
}
