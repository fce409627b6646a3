//! The fake host: every service of the engine, answered from a toy model and from memory.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::lanes::FakeLanes;
use super::noise::uniform;
use super::tensors::FakeTensors;
use super::toy::{ToyModel, ToyService};
use crate::author::host::LanesApi;
use crate::author::{Host, HostApi, ModelApi, TensorsApi};
use crate::error::{Error, ErrorKind, Result};
use crate::types::{LaneId, LaneNeed, ModelFacts, NoiseKey, Slot, TargetFacts, Token, TokenText};

/// A log record a plugin sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogRecord {
    /// 1 error .. 5 trace.
    pub level: u8,
    /// The module it came from.
    pub target: String,
    /// Its text.
    pub message: String,
}

/// A host in plain Rust. The target is a [`ToyModel`]; embeddings are one-hot and the output head is the identity, so
/// `lm_head` of a hidden row gives the toy's logits back.
///
/// ```
/// use foretoken_plugin_api::HostApi;
/// use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
///
/// let fake = FakeHost::new(ToyModel::new(16, 1)).shared();
/// let host = fake.handle();
/// host.metric("hits", 2.0);
/// assert_eq!(host.target().vocab_size, 16);
/// assert_eq!(fake.metrics()["hits"], 2.0);
/// ```
pub struct FakeHost {
    toy: ToyModel,
    facts: TargetFacts,
    threads: usize,
    models: BTreeMap<String, ToyModel>,
    texts: BTreeMap<String, Vec<TokenText>>,
    tensors: BTreeMap<String, Arc<FakeTensors>>,
    lanes: Arc<FakeLanes>,
    metrics: Mutex<BTreeMap<String, f64>>,
    logs: Mutex<Vec<LogRecord>>,
}

impl FakeHost {
    /// A host whose target is `toy`.
    pub fn new(toy: ToyModel) -> Self {
        let model = toy.facts();
        let facts = TargetFacts {
            vocab_size: model.vocab_size,
            hidden_size: model.hidden_size,
            num_layers: model.num_layers,
            max_positions: model.max_positions,
            path: "toy".to_owned(),
            dtype: "f32".to_owned(),
            device: "cpu".to_owned(),
            bos: Some(0),
            eos: vec![1],
            tokenizer_digest: model.tokenizer_digest,
            max_sequences: 8,
        };
        Self {
            toy,
            facts,
            threads: 2,
            models: BTreeMap::new(),
            texts: BTreeMap::new(),
            tensors: BTreeMap::new(),
            lanes: Arc::default(),
            metrics: Mutex::default(),
            logs: Mutex::default(),
        }
    }

    /// The same with other facts.
    #[must_use]
    pub fn with_facts(mut self, change: impl FnOnce(&mut TargetFacts)) -> Self {
        change(&mut self.facts);
        self
    }

    /// The same with another number of threads.
    #[must_use]
    pub fn with_threads(self, threads: usize) -> Self {
        Self { threads, ..self }
    }

    /// The same with a model that `load_model(path)` finds.
    #[must_use]
    pub fn with_model(mut self, path: &str, toy: ToyModel) -> Self {
        self.models.insert(path.to_owned(), toy);
        self
    }

    /// The same with a tokenizer that `token_texts(path)` tells; the target's path is `toy`.
    #[must_use]
    pub fn with_token_texts(mut self, path: &str, texts: Vec<TokenText>) -> Self {
        self.texts.insert(path.to_owned(), texts);
        self
    }

    /// The same with a file that `load_tensors(path)` opens.
    #[must_use]
    pub fn with_tensors(mut self, path: &str, tensors: FakeTensors) -> Self {
        self.tensors.insert(path.to_owned(), Arc::new(tensors));
        self
    }

    /// The host, ready for [`Self::handle`].
    pub fn shared(self) -> Arc<Self> {
        Arc::new(self)
    }

    /// A handle as plugins get it.
    pub fn handle(self: &Arc<Self>) -> Host {
        Host::new(Arc::clone(self) as Arc<dyn HostApi>)
    }

    /// The target.
    pub fn toy(&self) -> &ToyModel {
        &self.toy
    }

    /// Allocates lanes of `num_slots` slots, as the engine does between a proposer's `needs` and its first call.
    pub fn allocate_lanes(&self, needs: &[LaneNeed], num_slots: usize) {
        self.lanes.allocate(needs, num_slots, self.facts.hidden_size);
    }

    /// The lanes, with the engine's side of them.
    pub fn fake_lanes(&self) -> &FakeLanes {
        &self.lanes
    }

    /// Writes the target's hidden rows of `tokens` to `slots`, as the engine has by commit for a hidden lane of
    /// `layers` layers: row `i` follows `context` and `tokens[..=i]`.
    ///
    /// # Errors
    /// If the lane or a slot does not exist.
    pub fn write_hidden(&self, lane: LaneId, layers: usize, tokens: &[Token], slots: &[Slot]) -> Result<()> {
        let first = tokens.len() - slots.len();
        for (row, slot) in slots.iter().enumerate() {
            let hidden = self.toy.logits(&tokens[..=first + row]);
            let bytes: Vec<u8> = hidden.iter().flat_map(|value| value.to_le_bytes()).collect();
            self.lanes.write(lane, &[*slot], &bytes.repeat(layers))?;
        }
        self.lanes.mark(lane, slots)
    }

    /// The counters so far.
    pub fn metrics(&self) -> BTreeMap<String, f64> {
        self.metrics.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The log records so far.
    pub fn logs(&self) -> Vec<LogRecord> {
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn model(&self, path: &str) -> Result<&ToyModel> {
        let missing = || Error::failed(format!("no model at {path:?}; the fake host has {:?}", self.models.keys()));
        self.models.get(path).ok_or_else(missing)
    }
}

fn check_len(what: &str, expected: usize, got: usize) -> Result<()> {
    if expected == got { Ok(()) } else { Err(Error::failed(format!("{what}: expected {expected} values, got {got}"))) }
}

impl HostApi for FakeHost {
    fn target(&self) -> TargetFacts {
        self.facts.clone()
    }

    fn threads(&self) -> usize {
        self.threads
    }

    fn parallel(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<()> {
        let (next, panicked) = (AtomicUsize::new(0), AtomicBool::new(false));
        let work = || {
            while let Some(index) = Some(next.fetch_add(1, Ordering::Relaxed)).filter(|&index| index < tasks) {
                if catch_unwind(AssertUnwindSafe(|| task(index))).is_err() {
                    panicked.store(true, Ordering::Relaxed);
                }
            }
        };
        std::thread::scope(|scope| {
            (1..self.threads).for_each(|_| drop(scope.spawn(work)));
            work();
        });
        if panicked.into_inner() {
            return Err(Error::new(ErrorKind::Panicked, "a task on the pool panicked"));
        }
        Ok(())
    }

    fn noise(&self, key: NoiseKey, first: u32, out: &mut [f64]) {
        (first..).zip(out).for_each(|(index, to)| *to = uniform(key, index));
    }

    fn model_facts(&self, path: &str) -> Result<ModelFacts> {
        Ok(self.model(path)?.facts())
    }

    fn token_texts(&self, path: &str) -> Result<Vec<TokenText>> {
        let missing = || Error::failed(format!("no tokenizer of {path:?}; the fake host has {:?}", self.texts.keys()));
        self.texts.get(path).cloned().ok_or_else(missing)
    }

    fn load_model(&self, path: &str, _dtype: Option<&str>) -> Result<Arc<dyn ModelApi>> {
        Ok(Arc::new(ToyService { toy: self.model(path)?.clone(), lanes: Arc::clone(&self.lanes) }))
    }

    fn load_tensors(&self, path: &str) -> Result<Arc<dyn TensorsApi>> {
        let missing = || Error::failed(format!("no tensors at {path:?}; there are {:?}", self.tensors.keys()));
        Ok(Arc::clone(self.tensors.get(path).ok_or_else(missing)?) as Arc<dyn TensorsApi>)
    }

    fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<()> {
        check_len("embed", tokens.len() * self.facts.hidden_size, out.len())?;
        out.fill(0.0);
        for (row, &token) in out.chunks_exact_mut(self.facts.hidden_size).zip(tokens) {
            *row.get_mut(token as usize).ok_or_else(|| Error::failed(format!("embed: no token {token}")))? = 1.0;
        }
        Ok(())
    }

    fn lm_head(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        check_len("lm_head", rows.len(), out.len())?;
        out.copy_from_slice(rows);
        Ok(())
    }

    fn lm_head_topk(&self, rows: &[f32], k: usize, out: &mut [(Token, f32)]) -> Result<()> {
        let width = self.facts.vocab_size;
        check_len("lm_head_topk", rows.len() / width * k, out.len())?;
        for (row, top) in rows.chunks_exact(width).zip(out.chunks_exact_mut(k.max(1))) {
            let mut order: Vec<usize> = (0..width).collect();
            order.sort_by(|&a, &b| row[b].total_cmp(&row[a]).then(a.cmp(&b)));
            top.iter_mut().zip(order).for_each(|(to, token)| *to = (token as Token, row[token]));
        }
        Ok(())
    }

    fn lanes(&self) -> &dyn LanesApi {
        &*self.lanes
    }

    fn metric(&self, name: &str, value: f64) {
        *self.metrics.lock().unwrap_or_else(PoisonError::into_inner).entry(name.to_owned()).or_default() += value;
    }

    fn log(&self, level: u8, target: &str, message: &str) {
        let record = LogRecord { level, target: target.to_owned(), message: message.to_owned() };
        self.logs.lock().unwrap_or_else(PoisonError::into_inner).push(record);
    }
}
