//! A part of every kind that panics where its option says.

use foretoken_plugin_api::schemars::{self, JsonSchema};
use foretoken_plugin_api::serde::Deserialize;
use foretoken_plugin_api::{
    CommitBatch, Drafts, Guarantees, Host, KvFacts, KvManager, KvStats, Needs, Plan, ProposeBatch, Proposer, QueueView,
    Result, Sampler, Scheduler, SeqId, Slot, StepReport, Token, Verdicts, VerifyBatch,
};

#[derive(Deserialize, JsonSchema)]
pub struct At {
    at: String,
}

/// A part of every kind that panics in one callback.
pub struct Bomb {
    at: String,
    host: Host,
}

/// A payload whose own drop panics: dropping it at the border would unwind where nothing may.
pub struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("a payload's drop");
    }
}

impl Bomb {
    fn make(options: At, host: Host) -> Result<Self> {
        let bomb = Self { at: options.at, host };
        bomb.tick("new");
        Ok(bomb)
    }

    fn tick(&self, place: &str) {
        if self.at == format!("{place} with payload") {
            std::panic::panic_any(Payload);
        }
        assert!(self.at != place, "boom at {place}");
    }
}

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            self.tick("drop");
        }
    }
}

impl Proposer for Bomb {
    type Options = At;

    fn new(options: At, host: Host) -> Result<Self> {
        Self::make(options, host)
    }

    fn propose(&mut self, _: &ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        self.tick("propose");
        match self.at.as_str() {
            "task" => self.host.parallel(8, &|index| assert!(index != 5, "boom in a task")),
            "task with payload" => self.host.parallel(8, &|_| std::panic::panic_any(Payload)),
            "host" => self.host.embed(&[1], &mut [0.0; 16]),
            "sink" => Ok(drafts.push(0, None, 1).map(drop)?),
            _ => Ok(()),
        }
    }

    fn commit(&mut self, _: &CommitBatch<'_>) -> Result<()> {
        self.tick("commit");
        Ok(())
    }

    fn finish(&mut self, _: SeqId) {
        self.tick("finish");
    }

    fn needs(&self) -> Needs {
        self.tick("needs");
        Needs::default()
    }
}

impl Sampler for Bomb {
    type Options = At;

    fn new(options: At, host: Host) -> Result<Self> {
        Self::make(options, host)
    }

    fn verify(&mut self, _: &VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        self.tick("verify");
        if self.at == "too many kept" {
            (0..9).for_each(|node| verdicts.keep(0, node));
        }
        Ok(())
    }

    fn guarantees(&self) -> Guarantees {
        self.tick("guarantees");
        Guarantees::default()
    }
}

impl Scheduler for Bomb {
    type Options = At;

    fn new(options: At, host: Host) -> Result<Self> {
        Self::make(options, host)
    }

    fn schedule(&mut self, _: &QueueView<'_>, _: &mut Plan<'_>) -> Result<()> {
        self.tick("schedule");
        Ok(())
    }

    fn observe(&mut self, _: &StepReport<'_>) {
        self.tick("observe");
    }

    fn supports_pairs(&self) -> bool {
        self.tick("supports_pairs");
        true
    }
}

impl KvManager for Bomb {
    type Options = At;

    fn new(options: At, _: KvFacts, host: Host) -> Result<Self> {
        Self::make(options, host)
    }

    fn admit(&mut self, _: SeqId, _: &[Token]) -> Result<usize> {
        self.tick("admit");
        Ok(0)
    }

    fn reserve(&mut self, _: SeqId, _: usize) -> Result<()> {
        self.tick("reserve");
        Ok(())
    }

    fn slots(&self, _: SeqId) -> &[Slot] {
        self.tick("slots");
        &[]
    }

    fn commit(&mut self, _: SeqId, _: &[u32], _: &[Token]) -> Result<()> {
        self.tick("commit");
        Ok(())
    }

    fn rollback(&mut self, _: SeqId) {
        self.tick("rollback");
    }

    fn fork(&mut self, _: SeqId, _: SeqId) -> Result<()> {
        self.tick("fork");
        Ok(())
    }

    fn free(&mut self, _: SeqId) {
        self.tick("free");
    }

    fn can_rollback(&self) -> bool {
        self.tick("can_rollback");
        true
    }

    fn stats(&self) -> KvStats {
        self.tick("stats");
        KvStats::default()
    }

    fn check(&self) -> Result<()> {
        self.tick("check");
        Ok(())
    }
}
