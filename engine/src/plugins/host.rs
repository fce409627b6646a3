//! What the engine offers to one plugin instance: facts, the pool, noise, models, tensors, lanes, metrics, logs.
//!
//! Every instance has a host of its own, so that lanes, metrics and log records carry its name; what is shared stands
//! behind one `Arc`. The target's operations answer only once the target is loaded, which is after every part has been
//! made and its needs checked: a part that refuses does so before gigabytes are read.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use foretoken_kernels::blocks::KvDtype;
use foretoken_kernels::ops::PackedRows;
use foretoken_kernels::{Exec, WeightDtype, noise};
use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::{
    DType, Error, HostApi, ModelApi, ModelFacts, NoiseKey, Result, TargetFacts, TensorInfo, TensorView, TensorsApi,
    Token, TokenText,
};

use super::lanes::Lanes;
use super::model::{self, HostModel};
use crate::config::{DTYPE_NAMES, dtype_named};
use crate::drafts::kernel_key;
use crate::model::{Checkpoint, Decoder};

/// Counters that plugins keep: by plugin, then by counter.
pub type Counters = BTreeMap<String, BTreeMap<String, f64>>;

/// What all instances share.
pub struct Shared {
    /// Facts of the target.
    pub facts: TargetFacts,
    /// Where everything runs.
    pub exec: Exec,
    /// Where relative paths in options start.
    pub folder: PathBuf,
    /// How weights are held if a plugin does not say.
    pub dtype: Option<WeightDtype>,
    /// How keys and values of the plugins' models are stored.
    pub kv_dtype: KvDtype,
    /// The target, once loaded.
    pub target: OnceLock<Arc<Decoder>>,
    /// The plugins' counters.
    pub counters: Mutex<Counters>,
}

/// The host of one instance.
pub struct EngineHost {
    shared: Arc<Shared>,
    name: String,
    lanes: Arc<Lanes>,
}

impl EngineHost {
    /// A host for the instance that reports call `name`.
    pub fn new(shared: Arc<Shared>, name: &str, lanes: Arc<Lanes>) -> Self {
        Self { shared, name: name.to_owned(), lanes }
    }

    fn path(&self, path: &str) -> PathBuf {
        self.shared.folder.join(path)
    }

    fn target_decoder(&self) -> Result<&Decoder> {
        let target = self.shared.target.get().map(|target| &**target);
        target.ok_or_else(|| Error::failed("the target is not loaded yet: ask for this in propose, not in new"))
    }
}

fn expect_len(what: &str, found: usize, expected: usize) -> Result<()> {
    if found == expected {
        return Ok(());
    }
    Err(Error::failed(format!("{what}: expected {expected} values, got {found}")))
}

impl HostApi for EngineHost {
    fn target(&self) -> TargetFacts {
        self.shared.facts.clone()
    }

    fn threads(&self) -> usize {
        self.shared.exec.threads()
    }

    fn parallel(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.shared.exec.pool().run(tasks, task);
        Ok(())
    }

    fn noise(&self, key: NoiseKey, first: u32, out: &mut [f64]) {
        noise::fill_uniform(kernel_key(key), first, out);
    }

    fn model_facts(&self, path: &str) -> Result<ModelFacts> {
        model::facts(&self.path(path), self.shared.kv_dtype)
    }

    fn token_texts(&self, path: &str) -> Result<Vec<TokenText>> {
        model::token_texts(&self.path(path))
    }

    fn load_model(&self, path: &str, dtype: Option<&str>) -> Result<Arc<dyn ModelApi>> {
        let dtype = match dtype {
            None => self.shared.dtype,
            Some(name) => Some(
                dtype_named(name).ok_or_else(|| Error::options(format!("dtype = {name:?}: expected {DTYPE_NAMES}")))?,
            ),
        };
        let path = self.path(path);
        let decoder = Decoder::load(&path, dtype, self.shared.exec.clone());
        let decoder = decoder.map_err(|error| Error::refused(error.to_string()))?;
        let facts = model::facts(&path, self.shared.kv_dtype)?;
        Ok(Arc::new(HostModel::new(decoder, facts, self.shared.kv_dtype, Arc::clone(&self.lanes))))
    }

    fn load_tensors(&self, path: &str) -> Result<Arc<dyn TensorsApi>> {
        let checkpoint = Checkpoint::open(&self.path(path)).map_err(|error| Error::refused(error.to_string()))?;
        Ok(Arc::new(HostTensors { checkpoint }))
    }

    fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<()> {
        let target = self.target_decoder()?;
        expect_len("embed", out.len(), tokens.len() * self.shared.facts.hidden_size)?;
        if let Some(token) = tokens.iter().find(|token| **token as usize >= self.shared.facts.vocab_size) {
            return Err(Error::failed(format!("embed: token {token} is not in the vocabulary")));
        }
        let (width, columns) = (target.architecture().hidden_size, self.shared.facts.hidden_size);
        if columns == width {
            target.embed(tokens, out);
            return Ok(());
        }
        let mut rows = vec![0.0; tokens.len() * width];
        target.embed(tokens, &mut rows);
        for (row, out) in rows.chunks_exact(width).zip(out.chunks_exact_mut(columns)) {
            out.copy_from_slice(&row[..columns]);
        }
        Ok(())
    }

    fn lm_head(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        let target = self.target_decoder()?;
        let TargetFacts { hidden_size, vocab_size, .. } = self.shared.facts;
        expect_len("lm_head rows", rows.len(), rows.len() / hidden_size * hidden_size)?;
        expect_len("lm_head logits", out.len(), rows.len() / hidden_size * vocab_size)?;
        let width = target.architecture().hidden_size;
        if hidden_size == width {
            target.lm_head(rows, &mut PackedRows::default(), out);
            return Ok(());
        }
        // Columns that proposers do not see count as zero.
        let mut wide = vec![0.0; rows.len() / hidden_size * width];
        for (row, wide) in rows.chunks_exact(hidden_size).zip(wide.chunks_exact_mut(width)) {
            wide[..hidden_size].copy_from_slice(row);
        }
        target.lm_head(&wide, &mut PackedRows::default(), out);
        Ok(())
    }

    fn lm_head_topk(&self, rows: &[f32], k: usize, out: &mut [(Token, f32)]) -> Result<()> {
        let TargetFacts { hidden_size, vocab_size, .. } = self.shared.facts;
        let count = rows.len() / hidden_size;
        let k = k.min(vocab_size);
        expect_len("lm_head_topk", out.len(), count * k)?;
        let mut logits = vec![0.0; count * vocab_size];
        self.lm_head(rows, &mut logits)?;
        for (row, out) in logits.chunks_exact(vocab_size).zip(out.chunks_exact_mut(k.max(1))) {
            let mut order: Vec<(Token, f32)> = (0..).zip(row.iter().copied()).collect();
            let by_rank = |a: &(Token, f32), b: &(Token, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
            order.select_nth_unstable_by(k.saturating_sub(1), by_rank);
            order[..k].sort_unstable_by(by_rank);
            out.copy_from_slice(&order[..k]);
        }
        Ok(())
    }

    fn lanes(&self) -> &dyn LanesApi {
        &*self.lanes
    }

    fn metric(&self, name: &str, value: f64) {
        let mut counters = self.shared.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // Not the entry API: it would allocate both names at every call.
        if let Some(counter) = counters.get_mut(&self.name).and_then(|own| own.get_mut(name)) {
            *counter += value;
            return;
        }
        counters.entry(self.name.clone()).or_default().insert(name.to_owned(), value);
    }

    fn log(&self, level: u8, target: &str, message: &str) {
        let plugin = self.name.as_str();
        match level {
            1 => tracing::error!(plugin, target, "{message}"),
            2 => tracing::warn!(plugin, target, "{message}"),
            3 => tracing::info!(plugin, target, "{message}"),
            4 => tracing::debug!(plugin, target, "{message}"),
            _ => tracing::trace!(plugin, target, "{message}"),
        }
    }
}

struct HostTensors {
    checkpoint: Checkpoint,
}

impl TensorsApi for HostTensors {
    fn list(&self) -> Vec<TensorInfo> {
        let info = |tensor: crate::model::NamedTensor<'_>| TensorInfo {
            name: tensor.name.to_owned(),
            shape: tensor.shape.to_vec(),
            dtype: tensor.dtype_name.to_lowercase(),
        };
        self.checkpoint.tensors().map(info).collect()
    }

    fn config(&self) -> String {
        let path = self.checkpoint.path();
        let folder = if path.is_dir() { path } else { path.parent().unwrap_or(path) };
        std::fs::read_to_string(folder.join("config.json")).unwrap_or_default()
    }

    fn view(&self, name: &str) -> Result<TensorView<'_>> {
        let tensor = self.checkpoint.tensor(name).map_err(|error| Error::failed(error.to_string()))?;
        let dtype = match tensor.dtype_name.to_lowercase().as_str() {
            "f32" => DType::F32,
            "bf16" => DType::Bf16,
            "f16" => DType::F16,
            "u32" => DType::U32,
            "i64" => DType::I64,
            "u8" | "bool" => DType::U8,
            other => return Err(Error::failed(format!("tensor {name} has dtype {other}, which views do not carry"))),
        };
        let columns = tensor.shape.last().copied().unwrap_or(1);
        let rows = tensor.shape.iter().rev().skip(1).product();
        let view = TensorView::from_bytes(tensor.bytes, rows, columns, dtype);
        view.ok_or_else(|| Error::failed(format!("tensor {name} is not aligned in its file; save the file again")))
    }
}
