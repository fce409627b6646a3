//! What every proposer must hold to: its budget, valid tokens, its declared needs, and sequences that come and go.

use std::sync::Arc;

use super::super::drafts::RecordingDrafts;
use super::super::host::FakeHost;
use super::super::report::{Report, ensure};
use super::super::runner::Runner;
use super::super::subject::ProposerSubject;
use super::super::toy::mix;
use super::{Fixture, MakeOn, text};
use crate::error::ErrorKind;
use crate::types::{CommitBatch, Needs, SamplingParams, SeqId, Token};

type Check = Result<(), String>;

struct Suite<'a> {
    fixture: &'a Fixture,
    make: MakeOn<'a, dyn ProposerSubject>,
}

struct Bench {
    host: Arc<FakeHost>,
    part: Box<dyn ProposerSubject>,
    runner: Runner,
}

const NUM_SLOTS: u32 = 4096;
const EIGHT: [SeqId; 8] = [SeqId(1), SeqId(2), SeqId(3), SeqId(4), SeqId(5), SeqId(6), SeqId(7), SeqId(8)];

pub(super) fn suite(fixture: &Fixture, make: MakeOn<'_, dyn ProposerSubject>) -> Report {
    let suite = Suite { fixture, make };
    let mut report = Report::default();
    match make(&fixture.fresh_host()) {
        Err(error) if error.kind == ErrorKind::Refused => {
            report.skip("new", format!("refuses the fake host: {error}"));
            return report;
        }
        made => report.run("new", || made.map(drop).map_err(text)),
    }
    if !report.passed() {
        return report;
    }
    report.run("needs are sane", || suite.needs());
    report.run("budget 0 drafts nothing", || suite.budget_zero());
    report.run("drafts stay within the budget and are valid", || suite.decode(SamplingParams::GREEDY));
    report.run("drafts are valid at temperature 1", || suite.decode(SamplingParams::default()));
    report.run("a batch of 1 drafts as a batch of 8", || suite.batch_invariant());
    report.run("an empty batch is nothing", || suite.empty_batch());
    report.run("finish of an unknown sequence is nothing", || suite.unknown_finish());
    report.run("one or two tokens are enough", || suite.short());
    report.run("a prompt may come in chunks", || suite.chunked());
    report.run("a preempted sequence comes back from its first token", || suite.preempted());
    report.run("a sequence it never saw is caught up or left out", || suite.unseen());
    report.run("sequences that sit out steps come back", || suite.sit_out());
    report
}

/// A prompt with repeats, so that lookup proposers find something.
fn prompt(bench: &Bench, salt: u64, len: usize) -> Vec<Token> {
    let vocab = bench.host.toy().vocab_size() as u64;
    let period = 3 + salt % 4;
    (0..len as u64).map(|index| (mix((salt << 8) | (index % period)) % vocab) as Token).collect()
}

impl Suite<'_> {
    fn bench(&self) -> Result<Bench, String> {
        let host = self.fixture.fresh_host();
        let mut part = (self.make)(&host).map_err(text)?;
        let runner = Runner::new(&host, &mut *part, NUM_SLOTS).map_err(text)?;
        Ok(Bench { host, part, runner })
    }

    fn bench_of_eight(&self) -> Result<Bench, String> {
        let mut bench = self.bench()?;
        for id in EIGHT {
            let prompt = prompt(&bench, id.0, 2 + 5 * id.0 as usize);
            bench.runner.admit(&mut *bench.part, id, &prompt, usize::MAX).map_err(text)?;
        }
        Ok(bench)
    }

    fn needs(&self) -> Check {
        let needs = self.bench()?.runner.needs().clone();
        ensure(needs.max_draft > 0, || "Needs::max_draft is 0: it never drafts".to_owned())?;
        ensure(needs.lanes.iter().all(|lane| !lane.name.is_empty()), || "a lane has no name".to_owned())
    }

    fn budget_zero(&self) -> Check {
        let mut bench = self.bench_of_eight()?;
        for _ in 0..4 {
            let sink = bench.runner.step(&mut *bench.part, &EIGHT, 0).map_err(text)?;
            let nodes: usize = sink.drafts().iter().map(|draft| draft.len()).sum();
            ensure(nodes == 0 && sink.refusals().is_empty(), || format!("{nodes} nodes, {:?}", sink.refusals()))?;
        }
        Ok(())
    }

    fn decode(&self, sampling: SamplingParams) -> Check {
        let mut bench = self.bench_of_eight()?;
        bench.runner = bench.runner.with_sampling(sampling);
        let most = bench.runner.needs().max_draft as u32;
        for budget in [most, 1, most + 3, 2, most, most] {
            for _ in 0..4 {
                let sink = bench.runner.step(&mut *bench.part, &EIGHT, budget).map_err(text)?;
                check_drafts(&sink, bench.runner.needs())?;
            }
        }
        EIGHT.into_iter().try_for_each(|id| bench.runner.finish(&mut *bench.part, id).map_err(text))
    }

    fn batch_invariant(&self) -> Check {
        let (mut together, mut alone) = (self.bench_of_eight()?, self.bench_of_eight()?);
        let budget = together.runner.needs().max_draft as u32;
        for round in 0..6 {
            let batch = together.runner.propose(&mut *together.part, &EIGHT, budget).map_err(text)?;
            for (index, id) in EIGHT.into_iter().enumerate() {
                let single = alone.runner.propose(&mut *alone.part, &[id], budget).map_err(text)?;
                let (expected, got) = (&single.drafts()[0], &batch.drafts()[index]);
                let tokens = || {
                    let (alone, batch) = (expected.tokens(), got.tokens());
                    format!("round {round}, {id:?}: alone {alone:?}, in a batch of 8 {batch:?}")
                };
                ensure(expected == got, tokens)?;
            }
            together.runner.step(&mut *together.part, &EIGHT, budget).map_err(text)?;
            alone.runner.step(&mut *alone.part, &EIGHT, budget).map_err(text)?;
        }
        Ok(())
    }

    fn empty_batch(&self) -> Check {
        let mut bench = self.bench()?;
        bench.runner.propose(&mut *bench.part, &[], 4).map_err(text)?;
        bench.part.commit(CommitBatch::new(&[])).map_err(text)
    }

    fn unknown_finish(&self) -> Check {
        let mut bench = self.bench_of_eight()?;
        for id in [SeqId(999), SeqId(u64::MAX), SeqId(999)] {
            bench.part.finish(id).map_err(text)?;
        }
        bench.runner.finish(&mut *bench.part, EIGHT[0]).map_err(text)?;
        bench.part.finish(EIGHT[0]).map_err(text)?;
        self.run_on(&mut bench, &EIGHT[1..], 3)
    }

    fn short(&self) -> Check {
        let mut bench = self.bench()?;
        for (id, len) in [(SeqId(1), 1), (SeqId(2), 2)] {
            let tokens = prompt(&bench, id.0, len);
            bench.runner.admit_silently(id, &tokens);
        }
        let tokens = prompt(&bench, 3, 1);
        bench.runner.admit(&mut *bench.part, SeqId(3), &tokens, 1).map_err(text)?;
        self.run_on(&mut bench, &EIGHT[..3], 6)
    }

    fn chunked(&self) -> Check {
        let mut bench = self.bench()?;
        for (id, chunk) in [(SeqId(1), 7), (SeqId(2), 1), (SeqId(3), 40)] {
            let tokens = prompt(&bench, id.0, 40);
            bench.runner.admit(&mut *bench.part, id, &tokens, chunk).map_err(text)?;
        }
        self.run_on(&mut bench, &EIGHT[..3], 6)
    }

    fn preempted(&self) -> Check {
        let mut bench = self.bench_of_eight()?;
        for round in 0..4 {
            self.run_on(&mut bench, &EIGHT, 3)?;
            let victim = EIGHT[round * 2];
            let before = bench.runner.tokens(victim).to_vec();
            bench.runner.preempt(&mut *bench.part, victim).map_err(text)?;
            ensure(bench.runner.tokens(victim).starts_with(&before), || "preemption lost a token".to_owned())?;
        }
        self.run_on(&mut bench, &EIGHT, 3)
    }

    fn unseen(&self) -> Check {
        let mut bench = self.bench_of_eight()?;
        let tokens = prompt(&bench, 77, 33);
        bench.runner.admit_silently(SeqId(77), &tokens);
        self.run_on(&mut bench, &[SeqId(3), SeqId(77), SeqId(1)], 5)
    }

    fn sit_out(&self) -> Check {
        let mut bench = self.bench_of_eight()?;
        let most = bench.runner.needs().max_draft as u32;
        for round in 0..24u64 {
            let present = |id: &SeqId| mix((round << 8) | id.0).is_multiple_of(3);
            let ids: Vec<SeqId> = EIGHT.into_iter().filter(present).collect();
            let budget = if round % 5 == 4 { 0 } else { most };
            let sink = bench.runner.step(&mut *bench.part, &ids, budget).map_err(text)?;
            check_drafts(&sink, bench.runner.needs())?;
        }
        Ok(())
    }

    fn run_on(&self, bench: &mut Bench, ids: &[SeqId], steps: usize) -> Check {
        let budget = bench.runner.needs().max_draft as u32;
        (0..steps).try_for_each(|_| {
            let sink = bench.runner.step(&mut *bench.part, ids, budget).map_err(text)?;
            check_drafts(&sink, bench.runner.needs())
        })
    }
}

fn check_drafts(sink: &RecordingDrafts, needs: &Needs) -> Check {
    if let Some((sequence, error)) = sink.faults().next() {
        return Err(format!("sequence {sequence} of the batch: {error}"));
    }
    for draft in sink.drafts() {
        let (nodes, most) = (draft.len(), needs.max_draft);
        ensure(nodes <= most, || format!("a draft of {nodes} nodes, Needs::max_draft is {most}"))?;
        ensure(needs.draws || !draft.has_draws(), || "it drew, but Needs::draws is false".to_owned())?;
    }
    Ok(())
}
