//! What every sampler must hold to, and what it claims in its guarantees.

use std::sync::Arc;

use super::super::batch::{Verdict, VerifyInput, with_verify_batch};
use super::super::host::FakeHost;
use super::super::report::{Report, ensure};
use super::super::subject::SamplerSubject;
use super::super::toy::ToyModel;
use super::super::warp::argmax;
use super::sampler_law::{self, Drafter, Law};
use super::{MakeOn, text};
use crate::error::ErrorKind;
use crate::types::{Guarantees, SamplingParams, Token};

type Check = Result<(), String>;

const VOCAB: usize = 4;

struct Suite<'a> {
    make: MakeOn<'a, dyn SamplerSubject>,
}

pub(super) fn suite(make: MakeOn<'_, dyn SamplerSubject>) -> Report {
    let suite = Suite { make };
    let mut report = Report::default();
    let promised = match suite.fresh().and_then(|mut part| part.guarantees()) {
        Err(error) if error.kind == ErrorKind::Refused => {
            report.skip("new", format!("refuses the fake host: {error}"));
            return report;
        }
        Err(error) => {
            report.run("new", || Err(text(error)));
            return report;
        }
        Ok(promised) => promised,
    };
    report.run("an empty batch is nothing", || suite.empty_batch(&promised));
    report.run("the kept path is contiguous from the anchor", || suite.contiguous(&promised));
    report.run("a batch of 1 is judged as a batch of 8", || suite.batch_invariant(&promised));
    let greedy = "greedy_exact: temperature 0 gives plain decoding's tokens";
    match promised.greedy_exact {
        true => report.run(greedy, || suite.greedy_exact(&promised)),
        false => report.skip(greedy, "not promised"),
    }
    let invariant = "drafter_invariant: the same noise gives the same tokens whatever was drafted";
    match promised.drafter_invariant {
        true => report.run(invariant, || suite.drafter_invariant(&promised)),
        false => report.skip(invariant, "not promised"),
    }
    for drafter in Drafter::ALL {
        let name = format!("lossless with {}", drafter.name());
        match promised.lossless {
            true => report.run(&name, || suite.lossless(drafter, &promised)),
            false => report.skip(&name, "not promised"),
        }
    }
    report
}

/// Every pair of tokens in turn, so that guesses are right in some contexts and wrong in others.
fn context(trial: u32) -> [Token; 2] {
    [trial / VOCAB as u32 % VOCAB as u32, trial % VOCAB as u32]
}

fn host() -> Arc<FakeHost> {
    FakeHost::new(ToyModel::new(VOCAB, 11)).shared()
}

impl Suite<'_> {
    fn fresh(&self) -> crate::Result<Box<dyn SamplerSubject>> {
        (self.make)(&host())
    }

    fn empty_batch(&self, promised: &Guarantees) -> Check {
        let mut part = self.fresh().map_err(text)?;
        verify(&mut *part, &[], promised).map(drop)
    }

    fn contiguous(&self, promised: &Guarantees) -> Check {
        let mut part = self.fresh().map_err(text)?;
        for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
            for drafter in Drafter::ALL {
                let law = Law { sampling, drafter, ..Law::new(host().toy(), promised) };
                let inputs: Vec<VerifyInput> = (0..64).map(|trial| law.input(trial, &context(trial))).collect();
                for (input, verdict) in inputs.iter().zip(verify(&mut *part, &inputs, promised)?) {
                    check_path(input, &verdict)?;
                }
            }
        }
        Ok(())
    }

    fn batch_invariant(&self, promised: &Guarantees) -> Check {
        for drafter in Drafter::ALL {
            let law = Law { drafter, ..Law::new(host().toy(), promised) };
            let inputs: Vec<VerifyInput> = (0..8).map(|trial| law.input(trial, &context(trial))).collect();
            let together = verify(&mut *self.fresh().map_err(text)?, &inputs, promised)?;
            let mut part = self.fresh().map_err(text)?;
            for (input, expected) in inputs.iter().zip(together) {
                let alone = verify(&mut *part, std::slice::from_ref(input), promised)?.remove(0);
                ensure(alone == expected, || format!("{}: alone {alone:?}, in 8 {expected:?}", drafter.name()))?;
            }
        }
        Ok(())
    }

    fn greedy_exact(&self, promised: &Guarantees) -> Check {
        let mut part = self.fresh().map_err(text)?;
        for drafter in Drafter::ALL {
            let law = Law { sampling: SamplingParams::GREEDY, drafter, ..Law::new(host().toy(), promised) };
            let inputs: Vec<VerifyInput> = (0..64).map(|trial| law.input(trial, &context(trial))).collect();
            for (input, verdict) in inputs.iter().zip(verify(&mut *part, &inputs, promised)?) {
                check_path(input, &verdict)?;
                let rows = std::iter::once(0).chain(verdict.keep.iter().map(|&node| node as usize + 1));
                let expected: Vec<Token> = rows.map(|row| argmax(&input.logits[row])).collect();
                let got = verdict.tokens(&input.draft);
                ensure(got == expected, || format!("{}: expected {expected:?}, got {got:?}", drafter.name()))?;
                let last = verdict.keep.last().copied();
                let missed = input.draft.children(last).any(|node| input.draft.tokens()[node as usize] == verdict.next);
                ensure(!missed, || format!("{}: a right guess {} was not kept", drafter.name(), verdict.next))?;
            }
        }
        Ok(())
    }

    fn drafter_invariant(&self, promised: &Guarantees) -> Check {
        let mut part = self.fresh().map_err(text)?;
        for sampling in sampler_law::PARAMS {
            let plain = Law { sampling, ..Law::new(host().toy(), promised) };
            let expected = plain.generate(&mut *part, 0..64, 12)?;
            for drafter in Drafter::ALL {
                let got = Law { drafter, ..plain.clone() }.generate(&mut *part, 0..64, 12)?;
                let differs = (0..64).find(|&trial| got[trial] != expected[trial]);
                let name = drafter.name();
                let reason = |trial: usize| format!("{name}: {:?}, without a draft {:?}", got[trial], expected[trial]);
                differs.map_or(Ok(()), |trial| Err(reason(trial)))?;
            }
        }
        Ok(())
    }

    fn lossless(&self, drafter: Drafter, promised: &Guarantees) -> Check {
        for (sampling, toy_seed) in sampler_law::PARAMS.into_iter().zip(11..) {
            let toy = ToyModel::new(VOCAB, toy_seed).with_spread(1.2);
            let law = Law { sampling, drafter, ..Law::new(&toy, promised) };
            law.check(&mut *self.fresh().map_err(text)?)?;
        }
        Ok(())
    }
}

pub(super) fn verify(
    part: &mut dyn SamplerSubject,
    inputs: &[VerifyInput],
    promised: &Guarantees,
) -> Result<Vec<Verdict>, String> {
    with_verify_batch(inputs, promised.needs_draft_prob, |batch, verdicts| part.verify(batch, verdicts)).map_err(text)
}

pub(super) fn check_path(input: &VerifyInput, verdict: &Verdict) -> Check {
    let mut last = None;
    for &node in &verdict.keep {
        ensure((node as usize) < input.draft.len(), || format!("kept node {node} of {}", input.draft.len()))?;
        let parent = input.draft.parent(node);
        ensure(parent == last, || format!("kept {node}, a child of {parent:?}, after {last:?}"))?;
        last = Some(node);
    }
    let vocab = input.logits[0].len();
    ensure((verdict.next as usize) < vocab, || format!("next token {} of a vocabulary of {vocab}", verdict.next))
}
