//! The decoder: rows of tokens in, logits and hidden rows out.
//!
//! Neighbours: `assemble` builds it from a checkpoint, the step's forward verb and the plugins' host drive it, the
//! kernels compute. It owns no keys and values and no buffers: both belong to the caller, so one decoder serves the
//! engine's steps, `score` and a draft model's lane at once (`&self`). Logits are computed for the rows asked only,
//! because the output projection is a fifth of a small model's weights and prefill needs one row of it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use foretoken_kernels::blocks::{DecoderLayer, ForwardRows, KvViewMut, Linear, Workspace};
use foretoken_kernels::ops::{AttentionSeq, PackedRows, RopeRows, RopeTable, embed, rmsnorm};
use foretoken_kernels::{AlignedFloats, Exec, Profile, WeightDtype};

use super::architectures::{Architecture, ConfigError};
use super::assemble::{Parts, assemble};
use super::checkpoint::Checkpoint;
use super::is_model;
use super::weights::{WeightLoader, WeightsError};

#[derive(Debug, thiserror::Error)]
pub enum DecoderError {
    #[error("there is no model at {path}. `path` in [model] names a Hugging Face folder or a .gguf file")]
    NoFolder { path: PathBuf },
    #[error(transparent)]
    Config(#[from] ConfigError),
    #[error(transparent)]
    Weights(#[from] WeightsError),
}

/// One pass. Rows are tokens of any sequences, in any mix of prefill, decode and draft trees.
#[derive(Debug, Clone, Copy)]
pub struct ForwardBatch<'a> {
    /// Token of each row, below the vocabulary size.
    pub tokens: &'a [u32],
    /// Position of each row, below `max_positions`. Draft siblings share one.
    pub positions: &'a [u32],
    /// Slot that takes each row's keys and values.
    pub slots: &'a [u32],
    /// The sequences whose rows these are, and what each row attends to.
    pub seqs: &'a [AttentionSeq<'a>],
    /// Rows to compute logits for, in the order wanted.
    pub logit_rows: &'a [usize],
}

/// Where a pass writes.
pub struct ForwardOut<'a> {
    /// `[logit_rows, vocab_size]`, overwritten entirely.
    pub logits: &'a mut [f32],
    /// Who takes hidden rows: `&mut ()` is nobody.
    pub hidden: &'a mut dyn HiddenSink,
}

/// Takes the hidden rows of a pass while they are in the caches. Layer `i < layers` is the residual stream after layer `i`
/// (0-based, before the final norm), `layers` is the final norm's output.
pub trait HiddenSink {
    /// Whether it wants those of `layer`.
    fn wants(&self, layer: usize) -> bool;
    /// The rows behind `layer`, `[slots, hidden_size]`, and the slot of each row.
    fn take(&mut self, layer: usize, rows: &[f32], slots: &[u32]);
}

impl HiddenSink for () {
    fn wants(&self, _: usize) -> bool {
        false
    }

    fn take(&mut self, _: usize, _: &[f32], _: &[u32]) {}
}

/// Buffers of a pass, grown to the largest seen and reused. One per thread of control.
#[derive(Debug, Default)]
pub struct ForwardBuffers {
    workspace: Workspace,
    rope: RopeRows,
    residual: AlignedFloats,
    selected: AlignedFloats,
    normed: AlignedFloats,
}

/// A loaded model.
#[derive(Debug)]
pub struct Decoder {
    architecture: Architecture,
    exec: Exec,
    rope: RopeTable,
    embedding: Linear,
    layers: Vec<DecoderLayer>,
    norm: Vec<f32>,
    head: Option<Linear>,
}

impl Decoder {
    /// Loads a Hugging Face folder or a GGUF file, weights as `dtype` or, without one, as [`WeightLoader::new`] says.
    pub fn load(path: &Path, dtype: impl Into<Option<WeightDtype>>, exec: Exec) -> Result<Self, DecoderError> {
        if !is_model(path) {
            return Err(DecoderError::NoFolder { path: path.to_owned() });
        }
        let architecture = Architecture::open(path)?;
        let checkpoint = Checkpoint::open(path).map_err(WeightsError::from)?;
        Self::from_checkpoint(architecture, &checkpoint, dtype, exec)
    }

    /// Builds the decoder from an open checkpoint; its mappings live on in the weights.
    pub fn from_checkpoint(
        architecture: Architecture,
        checkpoint: &Checkpoint,
        dtype: impl Into<Option<WeightDtype>>,
        exec: Exec,
    ) -> Result<Self, DecoderError> {
        let parts = assemble(&architecture, &WeightLoader::new(checkpoint, dtype.into(), &exec))?;
        Ok(Self::assembled(architecture, parts, exec))
    }

    /// A decoder with made-up weights, to measure without files.
    pub fn random(architecture: Architecture, dtype: WeightDtype, exec: Exec) -> Result<Self, DecoderError> {
        let parts = assemble(&architecture, &WeightLoader::random(dtype, &exec))?;
        Ok(Self::assembled(architecture, parts, exec))
    }

    fn assembled(architecture: Architecture, parts: Parts, exec: Exec) -> Self {
        let Parts { embedding, layers, norm, head } = parts;
        let rope = architecture.rope.table(architecture.head_dim);
        Self { architecture, exec, rope, embedding, layers, norm, head }
    }

    pub fn architecture(&self) -> &Architecture {
        &self.architecture
    }

    /// The same model with its ops timed.
    pub fn with_profile(self, profile: Arc<Profile>) -> Self {
        Self { exec: self.exec.with_profile(profile), ..self }
    }

    /// Where it runs.
    pub fn exec(&self) -> &Exec {
        &self.exec
    }

    /// Everything that a pass with logits multiplies by (the embedding's single rows left out).
    pub fn linears(&self) -> impl Iterator<Item = &Linear> {
        self.layers.iter().flat_map(DecoderLayer::linears).chain([self.output()])
    }

    /// Bytes of weights that a pass with logits reads.
    pub fn weight_bytes(&self) -> usize {
        self.linears().map(|linear| linear.weight().byte_len()).sum()
    }

    /// One pass. Panics if a size, token, position, row or layer is out of range: the engine has checked them.
    pub fn forward(
        &self,
        batch: &ForwardBatch<'_>,
        kv: &mut KvViewMut<'_>,
        buffers: &mut ForwardBuffers,
        out: ForwardOut<'_>,
    ) {
        self.check(batch, &out);
        let width = self.architecture.hidden_size;
        let ForwardBuffers { workspace, rope, residual, selected, normed } = buffers;
        let residual = residual.sized(batch.tokens.len() * width);
        self.embed(batch.tokens, residual);
        rope.fill(&self.rope, batch.positions);
        let rows = ForwardRows { rope, slots: batch.slots, seqs: batch.seqs };
        for (index, layer) in self.layers.iter().enumerate() {
            layer.forward(&self.exec, &rows, residual, (kv, index), workspace);
            if out.hidden.wants(index) {
                out.hidden.take(index, residual, batch.slots);
            }
        }
        let last = self.layers.len();
        if out.hidden.wants(last) {
            let normed = normed.sized(residual.len());
            self.final_norm(residual, normed);
            out.hidden.take(last, normed, batch.slots);
        }
        if batch.logit_rows.is_empty() {
            return;
        }
        selected.clear();
        for &row in batch.logit_rows {
            selected.extend_from_slice(&residual[row * width..(row + 1) * width]);
        }
        let normed = normed.sized(selected.len());
        self.final_norm(selected, normed);
        self.lm_head(normed, &mut workspace.packed, out.logits);
    }

    /// Embeddings of `tokens` into `out`, `[tokens, hidden_size]`.
    pub fn embed(&self, tokens: &[u32], out: &mut [f32]) {
        embed(&self.exec, self.embedding.weight(), tokens, out);
    }

    /// The final norm of `rows` into `out`, both `[rows, hidden_size]`.
    pub fn final_norm(&self, rows: &[f32], out: &mut [f32]) {
        rmsnorm(&self.exec, rows, &self.norm, self.architecture.rms_norm_eps as f32, out);
    }

    /// The output projection of `rows` (`[rows, hidden_size]`, already normed) into `out`, `[rows, vocab_size]`.
    pub fn lm_head(&self, rows: &[f32], packed: &mut PackedRows, out: &mut [f32]) {
        self.output().forward(&self.exec, rows, packed, out);
    }

    fn output(&self) -> &Linear {
        self.head.as_ref().unwrap_or(&self.embedding)
    }

    fn check(&self, batch: &ForwardBatch<'_>, out: &ForwardOut<'_>) {
        let (rows, facts) = (batch.tokens.len(), &self.architecture);
        assert_eq!(batch.positions.len(), rows, "positions must be one per row");
        assert_eq!(batch.slots.len(), rows, "slots must be one per row");
        assert_eq!(out.logits.len(), batch.logit_rows.len() * facts.vocab_size, "logits must be [logit_rows, vocab]");
        assert!(batch.logit_rows.iter().all(|&row| row < rows), "logit rows must be below {rows}");
        let positions = facts.max_positions;
        let in_range = |&position: &u32| (position as usize) < positions;
        assert!(batch.positions.iter().all(in_range), "positions must be below the model's {positions}");
    }
}
