//! Models that the engine runs for a plugin: its own decoder as a service, with the KV in one of the plugin's lanes.
//!
//! So a draft model is a strategy, not a second runtime: it gets the same kernels, threads and file formats, and its KV
//! is committed, shared and preempted with the target's slots.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use foretoken_kernels::blocks::{KvDtype, KvShape, KvViewMut};
use foretoken_plugin_api::{Error, ForwardBatch, ForwardSequence, ModelApi, ModelFacts, Result, TokenText};

use super::lanes::Lanes;
use crate::model::rows::Rows;
use crate::model::{Architecture, Decoder, ForwardOut, is_model};
use crate::text::Tokenizer;

/// Facts of the model at `path` (a folder or a GGUF file), from its config and tokenizer alone.
///
/// # Errors
/// If there is no model or its architecture is not supported.
pub fn facts(path: &Path, kv_dtype: KvDtype) -> Result<ModelFacts> {
    if !is_model(path) {
        let message =
            format!("there is no model at {}: expected a Hugging Face folder or a .gguf file", path.display());
        return Err(Error::refused(message));
    }
    let architecture = Architecture::open(path).map_err(|error| Error::refused(error.to_string()))?;
    let shape = architecture.kv_shape(kv_dtype);
    Ok(ModelFacts {
        vocab_size: architecture.vocab_size,
        hidden_size: architecture.hidden_size,
        num_layers: architecture.layers,
        max_positions: architecture.max_positions,
        kv_bytes_per_slot: shape.bytes_per_slot(),
        // A model without a tokenizer can still be driven by ids; its digest then matches no other.
        tokenizer_digest: Tokenizer::open(path, &architecture)
            .map_or_else(|_| String::new(), |t| t.vocabulary_digest()),
    })
}

/// What the tokens of the model at `path` stand for.
///
/// # Errors
/// If there is no model or no tokenizer.
pub fn token_texts(path: &Path) -> Result<Vec<TokenText>> {
    let architecture = Architecture::open(path).map_err(|error| Error::refused(error.to_string()))?;
    let tokenizer = Tokenizer::open(path, &architecture).map_err(|error| Error::refused(error.to_string()))?;
    Ok(tokenizer.token_texts(architecture.vocab_size))
}

/// A decoder that a plugin drives.
pub struct HostModel {
    decoder: Decoder,
    facts: ModelFacts,
    kv: KvShape,
    lanes: Arc<Lanes>,
    rows: Mutex<Rows>,
}

impl HostModel {
    /// A service around `decoder`; its KV lives in a lane of `lanes`.
    pub fn new(decoder: Decoder, facts: ModelFacts, kv_dtype: KvDtype, lanes: Arc<Lanes>) -> Self {
        let kv = decoder.architecture().kv_shape(kv_dtype);
        Self { decoder, facts, kv, lanes, rows: Mutex::default() }
    }

    fn check(&self, sequence: &ForwardSequence<'_>, lane_rows: usize) -> Result<()> {
        let positions = sequence.context().len() + sequence.tokens().len();
        if positions > self.facts.max_positions && sequence.parents().is_none() {
            let most = self.facts.max_positions;
            return Err(Error::failed(format!("forward: position {} of {most}", positions - 1)));
        }
        if let Some(token) = sequence.tokens().iter().find(|token| **token as usize >= self.facts.vocab_size) {
            return Err(Error::failed(format!("forward: token {token} of a vocabulary of {}", self.facts.vocab_size)));
        }
        let slots = sequence.context().iter().chain(sequence.slots());
        match slots.map(|slot| slot.index()).find(|slot| *slot >= lane_rows) {
            Some(slot) => Err(Error::failed(format!("forward: lane row {slot} of {lane_rows}"))),
            None => Ok(()),
        }
    }
}

impl ModelApi for HostModel {
    fn facts(&self) -> ModelFacts {
        self.facts.clone()
    }

    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        self.lanes.with(|lanes| {
            let lane = lanes.get_mut(batch.lane.0 as usize);
            let lane = lane.ok_or_else(|| Error::failed(format!("forward: there is no lane {}", batch.lane.0)))?;
            let stride = lane.row_bytes;
            let mut kv = KvViewMut::over_lane(lane.bytes_mut(), self.kv, stride)
                .map_err(|error| Error::failed(format!("forward: the lane does not hold this model's KV: {error}")))?;
            for sequence in batch.sequences() {
                self.check(sequence, kv.num_slots())?;
            }
            let asked: usize = batch.sequences().iter().map(ForwardSequence::logit_rows).sum();
            let expected = asked * self.facts.vocab_size;
            if logits.len() != expected {
                return Err(Error::failed(format!("forward: expected {expected} logits, got {}", logits.len())));
            }
            let out = ForwardOut { logits, hidden: &mut () };
            rows.forward(&self.decoder, batch.sequences(), &mut kv, out);
            Ok(())
        })
    }
}
