//! What a suite drives: a part called directly on its trait, or one behind the ABI.
//!
//! One suite serves both, because both satisfy these traits: every implementation of an author trait does, and so do
//! the loaded objects. Two suites would drift, and the difference between the two *is* what the border must not show.

use crate::abi::kv::LoadedKv;
use crate::abi::proposer::LoadedProposer;
use crate::abi::sampler::LoadedSampler;
use crate::abi::scheduler::LoadedScheduler;
use crate::author::{Drafts, KvManager, Plan, Proposer, Sampler, Scheduler};
use crate::error::Result;
use crate::types::{
    CommitBatch, Guarantees, KvStats, Needs, ProposeBatch, QueueView, SeqId, Slot, StepReport, Token, Verdicts,
    VerifyBatch,
};

/// A proposer, wherever it is.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait ProposerSubject {
    fn propose(&mut self, batch: ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()>;
    fn commit(&mut self, batch: CommitBatch<'_>) -> Result<()>;
    fn finish(&mut self, sequence: SeqId) -> Result<()>;
    fn needs(&mut self) -> Result<Needs>;
}

impl<P: Proposer> ProposerSubject for P {
    fn propose(&mut self, batch: ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        Proposer::propose(self, &batch, drafts)
    }

    fn commit(&mut self, batch: CommitBatch<'_>) -> Result<()> {
        Proposer::commit(self, &batch)
    }

    fn finish(&mut self, sequence: SeqId) -> Result<()> {
        Proposer::finish(self, sequence);
        Ok(())
    }

    fn needs(&mut self) -> Result<Needs> {
        Ok(Proposer::needs(self))
    }
}

impl ProposerSubject for LoadedProposer {
    fn propose(&mut self, batch: ProposeBatch<'_>, drafts: &mut Drafts<'_>) -> Result<()> {
        self.propose(batch, drafts)
    }

    fn commit(&mut self, batch: CommitBatch<'_>) -> Result<()> {
        self.commit(batch)
    }

    fn finish(&mut self, sequence: SeqId) -> Result<()> {
        self.finish(sequence)
    }

    fn needs(&mut self) -> Result<Needs> {
        self.needs()
    }
}

/// A sampler, wherever it is.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait SamplerSubject {
    fn verify(&mut self, batch: VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()>;
    fn guarantees(&mut self) -> Result<Guarantees>;
}

impl<P: Sampler> SamplerSubject for P {
    fn verify(&mut self, batch: VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        Sampler::verify(self, &batch, verdicts)
    }

    fn guarantees(&mut self) -> Result<Guarantees> {
        Ok(Sampler::guarantees(self))
    }
}

impl SamplerSubject for LoadedSampler {
    fn verify(&mut self, batch: VerifyBatch<'_>, verdicts: &mut Verdicts<'_>) -> Result<()> {
        self.verify(batch, verdicts)
    }

    fn guarantees(&mut self) -> Result<Guarantees> {
        self.guarantees()
    }
}

/// A scheduler, wherever it is.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait SchedulerSubject {
    fn schedule(&mut self, queue: QueueView<'_>, plan: &mut Plan<'_>) -> Result<()>;
    fn observe(&mut self, report: StepReport<'_>) -> Result<()>;
    fn supports_pairs(&mut self) -> Result<bool>;
}

impl<P: Scheduler> SchedulerSubject for P {
    fn schedule(&mut self, queue: QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        Scheduler::schedule(self, &queue, plan)
    }

    fn observe(&mut self, report: StepReport<'_>) -> Result<()> {
        Scheduler::observe(self, &report);
        Ok(())
    }

    fn supports_pairs(&mut self) -> Result<bool> {
        Ok(Scheduler::supports_pairs(self))
    }
}

impl SchedulerSubject for LoadedScheduler {
    fn schedule(&mut self, queue: QueueView<'_>, plan: &mut Plan<'_>) -> Result<()> {
        self.schedule(queue, plan)
    }

    fn observe(&mut self, report: StepReport<'_>) -> Result<()> {
        self.observe(report)
    }

    fn supports_pairs(&mut self) -> Result<bool> {
        self.supports_pairs()
    }
}

/// A KV manager, wherever it is.
#[allow(missing_docs, clippy::missing_errors_doc)]
pub trait KvSubject {
    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize>;
    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()>;
    fn slots(&self, sequence: SeqId) -> Result<Vec<Slot>>;
    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()>;
    fn rollback(&mut self, sequence: SeqId) -> Result<()>;
    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()>;
    fn free(&mut self, sequence: SeqId) -> Result<()>;
    fn stats(&mut self) -> Result<KvStats>;
    fn check(&mut self) -> Result<()>;
}

impl KvSubject for LoadedKv {
    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize> {
        self.admit(sequence, tokens)
    }

    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        self.reserve(sequence, count)
    }

    fn slots(&self, sequence: SeqId) -> Result<Vec<Slot>> {
        self.slots(sequence).map(<[Slot]>::to_vec)
    }

    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        self.commit(sequence, keep, tokens)
    }

    fn rollback(&mut self, sequence: SeqId) -> Result<()> {
        self.rollback(sequence)
    }

    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        self.fork(parent, child)
    }

    fn free(&mut self, sequence: SeqId) -> Result<()> {
        self.free(sequence)
    }

    fn stats(&mut self) -> Result<KvStats> {
        self.stats()
    }

    fn check(&mut self) -> Result<()> {
        self.check()
    }
}

impl<P: KvManager> KvSubject for P {
    fn admit(&mut self, sequence: SeqId, tokens: &[Token]) -> Result<usize> {
        KvManager::admit(self, sequence, tokens)
    }

    fn reserve(&mut self, sequence: SeqId, count: usize) -> Result<()> {
        KvManager::reserve(self, sequence, count)
    }

    fn slots(&self, sequence: SeqId) -> Result<Vec<Slot>> {
        Ok(KvManager::slots(self, sequence).to_vec())
    }

    fn commit(&mut self, sequence: SeqId, keep: &[u32], tokens: &[Token]) -> Result<()> {
        KvManager::commit(self, sequence, keep, tokens)
    }

    fn rollback(&mut self, sequence: SeqId) -> Result<()> {
        KvManager::rollback(self, sequence);
        Ok(())
    }

    fn fork(&mut self, parent: SeqId, child: SeqId) -> Result<()> {
        KvManager::fork(self, parent, child)
    }

    fn free(&mut self, sequence: SeqId) -> Result<()> {
        KvManager::free(self, sequence);
        Ok(())
    }

    fn stats(&mut self) -> Result<KvStats> {
        Ok(KvManager::stats(self))
    }

    fn check(&mut self) -> Result<()> {
        KvManager::check(self)
    }
}
