//! What the engine runs: validated, with defaults filled in and paths made absolute. Immutable.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foretoken_kernels::WeightDtype;
use foretoken_kernels::blocks::KvDtype;
use foretoken_kernels::ops::Penalties;
use foretoken_plugin_api::{Kind, SamplingParams};

use super::ConfigError;
use super::raw::{Auto, RawConfig, RawPart, RawPlugins, RawSampling};

/// A resolved configuration.
#[derive(Debug, Clone)]
pub struct Config {
    /// Threads of the pool; `None` is the number of physical cores.
    pub threads: Option<usize>,
    /// Each thread is bound to a core of its own.
    pub pin_threads: bool,
    /// Integrity checks after every step.
    pub checks: bool,
    /// The target's folder or GGUF file.
    pub model: PathBuf,
    /// How the target's weights are held; `None` is bf16 for a folder, and as stored for a GGUF file.
    pub dtype: Option<WeightDtype>,
    /// Leading columns of the target's hidden rows that proposers see; `None` is all. A target grafted around a smaller model
    /// is served by that model's heads, which read no more.
    pub hidden_columns: Option<usize>,
    /// Proposers, tried in order; none is plain decoding.
    pub proposers: Vec<PartChoice>,
    /// The sampler.
    pub sampler: PartChoice,
    /// The scheduler.
    pub scheduler: PartChoice,
    /// The KV manager.
    pub kv: PartChoice,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
    /// Slots; `None` is automatic.
    pub num_slots: Option<usize>,
    /// Defaults of requests.
    pub sampling: Sampling,
    /// Where plugins are found.
    pub plugins: PluginDirs,
    /// The folder that relative paths in plugin options start at.
    pub folder: PathBuf,
}

/// Which plugin plays a part.
#[derive(Debug, Clone)]
pub struct PartChoice {
    /// The kind its slot in the config asks for.
    pub kind: Kind,
    /// What reports and requests call it.
    pub name: String,
    /// Where it is.
    pub source: PartSource,
    /// Its options as TOML text.
    pub options: String,
}

/// Where a part is.
#[derive(Debug, Clone)]
pub enum PartSource {
    /// A part's name, looked up in the plugin folders.
    Named(String),
    /// A library, and the part in it if named.
    Library(PathBuf, Option<String>),
}

/// Where plugins are found and what they may do.
#[derive(Debug, Clone)]
pub struct PluginDirs {
    /// Folders searched in order.
    pub dirs: Vec<PathBuf>,
    /// Pins by part or library name.
    pub sha256: BTreeMap<String, String>,
    /// Faults after which a proposer is quarantined.
    pub max_faults: u32,
}

/// What a request may ask of sampling.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Temperature and truncation.
    pub params: SamplingParams,
    /// The key of all randomness.
    pub seed: u64,
    /// Most tokens of a completion.
    pub max_tokens: usize,
    /// Completions of one prompt.
    pub n: u32,
    /// Strings that end a completion.
    pub stop: Vec<String>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: bool,
    /// Penalties on tokens already seen.
    pub penalties: Penalties,
    /// Whether to speculate at all.
    pub speculative: bool,
    /// At most this many draft nodes a step.
    pub max_draft: Option<u32>,
    /// Which of the loaded proposers.
    pub proposer: Option<String>,
    /// Larger runs first.
    pub priority: i32,
    /// Classifier-free guidance: 1 is none, 0 the negative prompt alone, anything else a pair.
    pub guidance_scale: f32,
    /// What guidance leads away from; without it, the empty prompt.
    pub negative_prompt: Option<String>,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            params: SamplingParams::GREEDY,
            seed: 0,
            max_tokens: 128,
            n: 1,
            stop: Vec::new(),
            ignore_eos: false,
            penalties: Penalties::default(),
            speculative: true,
            max_draft: None,
            proposer: None,
            priority: 0,
            guidance_scale: 1.0,
            negative_prompt: None,
        }
    }
}

fn value(key: &'static str, found: impl ToString, expected: &'static str) -> ConfigError {
    ConfigError::Value { key, found: found.to_string(), expected }
}

fn auto(key: &'static str, given: Option<Auto<usize>>, least: usize) -> Result<Option<usize>, ConfigError> {
    match given {
        None => Ok(None),
        Some(Auto::Word(word)) if word == "auto" => Ok(None),
        Some(Auto::Value(number)) if number >= least => Ok(Some(number)),
        Some(Auto::Value(number)) => Err(value(key, number, "\"auto\" or a positive whole number")),
        Some(Auto::Word(word)) => Err(value(key, format!("{word:?}"), "\"auto\" or a positive whole number")),
    }
}

impl Config {
    pub(super) fn resolve(raw: RawConfig, folder: &Path) -> Result<Self, ConfigError> {
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let kv = raw.kv.unwrap_or_default();
        let kv_part = RawPart { plugin: kv.plugin, path: kv.path, name: kv.name, options: kv.options };
        let model =
            raw.model.path.ok_or_else(|| value("model.path", "nothing", "the folder or .gguf file of a model"))?;
        check_device(raw.model.device.as_deref())?;
        let proposers = raw.proposer.map(|list| list.0).unwrap_or_default();
        let proposers = proposers.into_iter().map(|part| choice(Kind::Proposer, part, None, &folder));
        Ok(Self {
            threads: auto("threads", raw.threads, 1)?,
            pin_threads: raw.pin_threads,
            checks: raw.checks,
            model: folder.join(model),
            dtype: weight_dtype(raw.model.dtype.as_deref())?,
            hidden_columns: raw.model.hidden_columns,
            proposers: distinct(proposers.collect::<Result<_, _>>()?)?,
            sampler: choice(Kind::Sampler, raw.sampler.unwrap_or_default(), Some("gumbel"), &folder)?,
            scheduler: choice(Kind::Scheduler, raw.scheduler.unwrap_or_default(), Some("fcfs"), &folder)?,
            kv: choice(Kind::Kv, kv_part, Some("paged"), &folder)?,
            kv_dtype: kv_dtype(kv.dtype.as_deref())?,
            num_slots: auto("kv.num_slots", kv.num_slots, 1)?,
            sampling: Sampling::default().with(raw.sampling)?,
            plugins: plugin_dirs(raw.plugins, &folder),
            folder,
        })
    }
}

fn check_device(device: Option<&str>) -> Result<(), ConfigError> {
    match device {
        None | Some("auto" | "cpu") => Ok(()),
        Some(other) => {
            Err(value("model.device", format!("{other:?}"), "\"auto\" or \"cpu\" (this build has no other)"))
        }
    }
}

fn weight_dtype(dtype: Option<&str>) -> Result<Option<WeightDtype>, ConfigError> {
    let Some(name) = dtype else { return Ok(None) };
    dtype_named(name).map(Some).ok_or_else(|| value("model.dtype", format!("{name:?}"), DTYPE_NAMES))
}

/// What [`dtype_named`] knows, as an error says it.
pub(crate) const DTYPE_NAMES: &str = "\"f32\", \"f16\", \"bf16\", \"q8_0\" or \"q4\"";

/// The weights' dtype that a config means. `q4` is q4_K, and q6_K for the embedding and the output projection.
pub(crate) fn dtype_named(name: &str) -> Option<WeightDtype> {
    match name {
        "f32" => Some(WeightDtype::F32),
        "f16" => Some(WeightDtype::F16),
        "bf16" => Some(WeightDtype::Bf16),
        "q8_0" => Some(WeightDtype::Q8_0),
        "q4" => Some(WeightDtype::Q4K),
        _ => None,
    }
}

fn kv_dtype(dtype: Option<&str>) -> Result<KvDtype, ConfigError> {
    match dtype {
        None | Some("bf16") => Ok(KvDtype::Bf16),
        Some("f32") => Ok(KvDtype::F32),
        Some("q8_0") => Ok(KvDtype::Q8_0),
        Some(other) => Err(value("kv.dtype", format!("{other:?}"), "\"f32\", \"bf16\" or \"q8_0\"")),
    }
}

fn choice(kind: Kind, part: RawPart, default: Option<&str>, folder: &Path) -> Result<PartChoice, ConfigError> {
    let named = part.plugin.or_else(|| default.filter(|_| part.path.is_none()).map(str::to_owned));
    let source = match (named, part.path) {
        (plugin, Some(path)) => PartSource::Library(folder.join(path), plugin),
        (Some(plugin), None) => PartSource::Named(plugin),
        (None, None) => return Err(value("proposer.plugin", "nothing", "a part's name, or `path` of a library")),
    };
    let name = part.name.unwrap_or_else(|| match &source {
        PartSource::Named(name) | PartSource::Library(_, Some(name)) => name.clone(),
        PartSource::Library(path, None) => path.file_stem().unwrap_or_default().to_string_lossy().into_owned(),
    });
    let options = toml::to_string(&part.options).expect("a table that was TOML is TOML");
    Ok(PartChoice { kind, name, source, options })
}

fn distinct(parts: Vec<PartChoice>) -> Result<Vec<PartChoice>, ConfigError> {
    let twice = parts.iter().enumerate().find(|(index, part)| parts[..*index].iter().any(|one| one.name == part.name));
    match twice {
        None => Ok(parts),
        Some((_, part)) => Err(value("proposer.name", &part.name, "a different `name` for each proposer of the list")),
    }
}

fn plugin_dirs(raw: RawPlugins, folder: &Path) -> PluginDirs {
    let dirs = raw.dirs.map(|dirs| dirs.iter().map(|dir| folder.join(dir)).collect());
    PluginDirs {
        dirs: dirs.unwrap_or_else(crate::plugins::registry::default_dirs),
        sha256: raw.sha256,
        max_faults: raw.max_faults.unwrap_or(3),
    }
}

impl Sampling {
    /// These values with those given in `raw`.
    ///
    /// # Errors
    /// [`ConfigError::Value`] if one is out of its range.
    pub fn with(mut self, raw: RawSampling) -> Result<Self, ConfigError> {
        set(&mut self.params.temperature, raw.temperature);
        set(&mut self.params.top_k, raw.top_k);
        set(&mut self.params.top_p, raw.top_p);
        set(&mut self.params.min_p, raw.min_p);
        set(&mut self.seed, raw.seed);
        set(&mut self.max_tokens, raw.max_tokens);
        set(&mut self.n, raw.n);
        set(&mut self.stop, raw.stop);
        set(&mut self.ignore_eos, raw.ignore_eos);
        set(&mut self.penalties.repetition, raw.repetition_penalty);
        set(&mut self.penalties.presence, raw.presence_penalty);
        set(&mut self.penalties.frequency, raw.frequency_penalty);
        set(&mut self.speculative, raw.speculative);
        set(&mut self.priority, raw.priority);
        self.max_draft = raw.num_speculative_tokens.or(self.max_draft);
        self.proposer = raw.proposer.or(self.proposer);
        set(&mut self.guidance_scale, raw.guidance_scale);
        self.negative_prompt = raw.negative_prompt.or(self.negative_prompt);
        self.validate()
    }

    /// Whether each completion is a pair of sequences.
    pub fn runs_pairs(&self) -> bool {
        self.guidance_scale != 1.0 && self.guidance_scale != 0.0
    }

    fn validate(self) -> Result<Self, ConfigError> {
        let SamplingParams { temperature, top_p, min_p, .. } = self.params;
        let checks = [
            (temperature.is_finite() && temperature >= 0.0, "sampling.temperature", temperature, "0 or more"),
            (top_p > 0.0 && top_p <= 1.0, "sampling.top_p", top_p, "more than 0, at most 1"),
            ((0.0..=1.0).contains(&min_p), "sampling.min_p", min_p, "between 0 and 1"),
            (self.penalties.repetition > 0.0, "sampling.repetition_penalty", self.penalties.repetition, "more than 0"),
            (self.penalties.presence.is_finite(), "sampling.presence_penalty", self.penalties.presence, "a number"),
            (self.penalties.frequency.is_finite(), "sampling.frequency_penalty", self.penalties.frequency, "a number"),
            (
                self.guidance_scale.is_finite(),
                "sampling.guidance_scale",
                self.guidance_scale,
                "a number; 1 is no guidance",
            ),
        ];
        if let Some((_, key, found, expected)) = checks.into_iter().find(|(good, ..)| !good) {
            return Err(value(key, found, expected));
        }
        if self.n == 0 {
            return Err(value("sampling.n", 0, "1 or more"));
        }
        if self.max_tokens == 0 {
            return Err(value("sampling.max_tokens", 0, "1 or more"));
        }
        if self.stop.iter().any(String::is_empty) {
            return Err(value("sampling.stop", "\"\"", "strings that are not empty"));
        }
        Ok(self)
    }
}

fn set<T>(to: &mut T, given: Option<T>) {
    if let Some(given) = given {
        *to = given;
    }
}
