//! The fake host with a draft model that checks what it is given.
//!
//! Each lane row the model writes holds (token, position). A pass fails where its context does not hold consecutive
//! positions from 0, and where it reads a row that the same pass writes; logits depend on every token read. So KV that is
//! stale, misplaced or somebody else's never passes for right.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use foretoken_plugin_api::author::host::LanesApi;
use foretoken_plugin_api::testkit::{FakeHost, ToyModel};
use foretoken_plugin_api::{
    Error, ForwardBatch, Host, HostApi, LaneId, LogitRows, ModelApi, ModelFacts, NoiseKey, Result, Slot, TargetFacts,
    TensorsApi, Token,
};

/// Bytes of a lane row: token and position.
pub const ROW: usize = 8;

/// What the draft model did and is told to do.
#[derive(Default)]
pub struct Journal {
    /// Rows of every pass.
    pub passes: Mutex<Vec<usize>>,
    /// Whether passes fail.
    pub broken: AtomicBool,
}

/// A host whose every model is checked.
pub struct CheckedHost {
    pub fake: Arc<FakeHost>,
    pub facts: ModelFacts,
    pub toy: ToyModel,
    pub journal: Arc<Journal>,
}

impl CheckedHost {
    pub fn handle(self: &Arc<Self>) -> Host {
        Host::new(Arc::clone(self) as Arc<dyn HostApi>)
    }
}

struct CheckedModel {
    fake: Arc<FakeHost>,
    facts: ModelFacts,
    toy: ToyModel,
    journal: Arc<Journal>,
}

impl CheckedModel {
    fn read(&self, lane: LaneId, slots: &[Slot]) -> Result<Vec<Token>> {
        let mut bytes = vec![0; slots.len() * ROW];
        self.fake.lanes().read(lane, slots, &mut bytes)?;
        let rows = bytes.as_chunks::<ROW>().0.iter().map(|row| unpack(*row));
        rows.zip(0..)
            .map(|((token, position), expected)| {
                let wrong =
                    || Error::failed(format!("context row {expected} holds position {position}, token {token}"));
                (position == expected).then_some(token).ok_or_else(wrong)
            })
            .collect()
    }
}

/// A lane row's bytes.
pub fn pack(token: Token, position: u32) -> [u8; ROW] {
    (u64::from(position) << 32 | u64::from(token)).to_le_bytes()
}

fn unpack(row: [u8; ROW]) -> (Token, u32) {
    let value = u64::from_le_bytes(row);
    (value as Token, (value >> 32) as u32)
}

impl ModelApi for CheckedModel {
    fn facts(&self) -> ModelFacts {
        self.facts.clone()
    }

    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()> {
        if self.journal.broken.load(Ordering::Relaxed) {
            return Err(Error::failed("the draft model is broken"));
        }
        let rows = batch.sequences().iter().map(|sequence| sequence.tokens().len()).sum();
        self.journal.passes.lock().unwrap().push(rows);
        let mut written = BTreeMap::new();
        for (index, sequence) in batch.sequences().iter().enumerate() {
            for ((&token, &slot), position) in
                sequence.tokens().iter().zip(sequence.slots()).zip(sequence.context().len()..)
            {
                assert!(position < self.facts.max_positions, "position {position} of {}", self.facts.max_positions);
                assert_eq!(written.insert(slot, index), None, "{slot:?} is written twice in a pass");
                self.fake.lanes().write(batch.lane, &[slot], &pack(token, position as u32))?;
            }
        }
        let mut out = logits.chunks_exact_mut(self.toy.vocab_size());
        for sequence in batch.sequences() {
            assert!(!sequence.context().iter().any(|slot| written.contains_key(slot)), "reads what the pass writes");
            let mut seen = self.read(batch.lane, sequence.context())?;
            seen.extend(sequence.tokens());
            if sequence.logits == LogitRows::Last {
                out.next().expect("room for the rows asked for").copy_from_slice(&self.toy.logits(&seen));
            }
        }
        assert!(out.next().is_none(), "more room for logits than rows asked for");
        Ok(())
    }
}

impl HostApi for CheckedHost {
    fn target(&self) -> TargetFacts {
        self.fake.target()
    }

    fn threads(&self) -> usize {
        1
    }

    fn parallel(&self, tasks: usize, task: &(dyn Fn(usize) + Sync)) -> Result<()> {
        self.fake.parallel(tasks, task)
    }

    fn noise(&self, key: NoiseKey, first: u32, out: &mut [f64]) {
        self.fake.noise(key, first, out);
    }

    fn model_facts(&self, _path: &str) -> Result<ModelFacts> {
        Ok(self.facts.clone())
    }

    fn load_model(&self, _path: &str, _dtype: Option<&str>) -> Result<Arc<dyn ModelApi>> {
        let (fake, facts) = (Arc::clone(&self.fake), self.facts.clone());
        Ok(Arc::new(CheckedModel { fake, facts, toy: self.toy.clone(), journal: Arc::clone(&self.journal) }))
    }

    fn load_tensors(&self, path: &str) -> Result<Arc<dyn TensorsApi>> {
        self.fake.load_tensors(path)
    }

    fn embed(&self, tokens: &[Token], out: &mut [f32]) -> Result<()> {
        self.fake.embed(tokens, out)
    }

    fn lm_head(&self, rows: &[f32], out: &mut [f32]) -> Result<()> {
        self.fake.lm_head(rows, out)
    }

    fn lm_head_topk(&self, rows: &[f32], k: usize, out: &mut [(Token, f32)]) -> Result<()> {
        self.fake.lm_head_topk(rows, k, out)
    }

    fn lanes(&self) -> &dyn LanesApi {
        self.fake.lanes()
    }

    fn metric(&self, name: &str, value: f64) {
        self.fake.metric(name, value);
    }

    fn log(&self, level: u8, target: &str, message: &str) {
        self.fake.log(level, target, message);
    }
}
