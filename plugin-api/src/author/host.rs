//! The services of the engine. [`HostApi`] is a trait so that a test can stand in for the engine (see the testkit);
//! plugins hold a cheap handle, [`Host`].

use std::path::Path;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::types::{
    ForwardBatch, LaneId, ModelFacts, NoiseKey, Slot, TargetFacts, TensorInfo, TensorView, Token, TokenText,
};

/// What the engine offers to a plugin. All calls are cheap to make and safe from any thread.
pub trait HostApi: Send + Sync + 'static {
    /// Facts of the target model, known before any weights load.
    fn target(&self) -> TargetFacts;

    /// Threads of the shared pool.
    fn threads(&self) -> usize;

    /// Runs `task(0..tasks)` on the shared pool and returns when all are done.
    ///
    /// # Errors
    /// If a task panicked.
    fn parallel(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<()>;

    /// Fills `out` with uniforms in (0, 1): those of `key` at indices `first`, `first + 1`, ...
    fn noise(&self, key: NoiseKey, first: u32, out: &mut [f64]);

    /// Facts of the model at `path` (relative to the config's folder), from its config alone.
    ///
    /// # Errors
    /// If there is no such model or its architecture is not supported.
    fn model_facts(&self, path: &str) -> Result<ModelFacts>;

    /// What every token of the model at `path` stands for, by id.
    ///
    /// # Errors
    /// If there is no such model or tokenizer.
    fn token_texts(&self, path: &str) -> Result<Vec<TokenText>> {
        Err(Error::failed(format!("no tokenizer of {path:?}: this host has none")))
    }

    /// Loads the model at `path` with weights as `dtype` (`None`: as the target's).
    ///
    /// # Errors
    /// If it cannot be loaded.
    fn load_model(&self, path: &str, dtype: Option<&str>) -> Result<Arc<dyn ModelApi>>;

    /// Opens a file of tensors: safetensors, or a folder of them.
    ///
    /// # Errors
    /// If it cannot be read.
    fn load_tensors(&self, path: &str) -> Result<Arc<dyn TensorsApi>>;

    /// The target's embedding of `tokens` into `out` `[tokens, hidden_size]`.
    ///
    /// # Errors
    /// If the target is not loaded yet or the sizes do not fit.
    fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<()>;

    /// The target's output head (without the final norm) of `rows` `[n, hidden_size]` into `out` `[n, vocab_size]`.
    ///
    /// # Errors
    /// If the target is not loaded yet or the sizes do not fit.
    fn lm_head(&self, rows: &[f32], out: &mut [f32]) -> Result<()>;

    /// The `k` largest logits of each row, in falling order, ties by lowest id: `out` `[n, k]`.
    ///
    /// # Errors
    /// As [`Self::lm_head`].
    fn lm_head_topk(&self, rows: &[f32], k: usize, out: &mut [(Token, f32)]) -> Result<()>;

    /// The lanes that this plugin's needs asked for.
    fn lanes(&self) -> &dyn LanesApi;

    /// Adds `value` to a counter that reports show under the plugin's name.
    fn metric(&self, name: &str, value: f64);

    /// Takes a log record (1 error .. 5 trace).
    fn log(&self, level: u8, target: &str, message: &str);
}

/// Lanes as operations, so that they may live on any device.
pub trait LanesApi: Send + Sync {
    /// Rows a lane has: the slots, then its scratch rows.
    fn rows(&self, lane: LaneId) -> usize;

    /// Copies the rows named by `slots` into `out`, one after the other.
    ///
    /// # Errors
    /// If the lane, a row or the size is wrong.
    fn read(&self, lane: LaneId, slots: &[Slot], out: &mut [u8]) -> Result<()>;

    /// Writes rows.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn write(&self, lane: LaneId, slots: &[Slot], data: &[u8]) -> Result<()>;

    /// Copies row `from[i]` to row `to[i]`, scratch rows included.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn copy(&self, lane: LaneId, from: &[Slot], to: &[Slot]) -> Result<()>;

    /// Lends the lane's memory to `work`, `[rows, bytes per row]`, for kernels that read and write rows in place. The lane's
    /// other operations fail until it returns.
    ///
    /// # Errors
    /// If the lane is wrong, already lent or not in this process's memory, or if `work` panicked.
    fn lend(&self, lane: LaneId, work: &mut dyn FnMut(&mut [u8])) -> Result<()>;

    /// Marks slots as holding valid state; the engine clears a mark when a slot is handed out anew.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn mark(&self, lane: LaneId, slots: &[Slot]) -> Result<()>;
}

/// A model loaded by the host for a plugin.
pub trait ModelApi: Send + Sync {
    /// Its facts.
    fn facts(&self) -> ModelFacts;

    /// One pass; `logits` `[rows that ask, vocab_size]`.
    ///
    /// # Errors
    /// If a token, slot or size is out of range.
    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()>;
}

/// An open file of tensors.
pub trait TensorsApi: Send + Sync {
    /// What is in it.
    fn list(&self) -> Vec<TensorInfo>;

    /// The text of the `config.json` beside it; empty if there is none.
    fn config(&self) -> String;

    /// One tensor as a matrix (all but the last dimension flattened), valid as long as the file is open.
    ///
    /// # Errors
    /// If there is no such tensor; the message names the nearest.
    fn view(&self, name: &str) -> Result<TensorView<'_>>;
}

/// A plugin's handle to the engine.
#[derive(Clone)]
pub struct Host {
    api: Arc<dyn HostApi>,
}

/// A plugin's handle to its lanes.
pub type Lanes<'a> = &'a dyn LanesApi;

/// A plugin's handle to a model the host loaded.
pub type Model = Arc<dyn ModelApi>;

/// A plugin's handle to an open file of tensors.
pub type Tensors = Arc<dyn TensorsApi>;

impl Host {
    /// A handle to any implementation.
    pub fn new(api: Arc<dyn HostApi>) -> Self {
        Self { api }
    }

    /// Facts of the model at `path`.
    ///
    /// # Errors
    /// As [`HostApi::model_facts`].
    pub fn model_facts_at(&self, path: &Path) -> Result<ModelFacts> {
        self.api.model_facts(&path.to_string_lossy())
    }
}

impl std::ops::Deref for Host {
    type Target = dyn HostApi;

    fn deref(&self) -> &Self::Target {
        &*self.api
    }
}
