//! What every KV manager must hold to: a balance that never slips, under random operations.

use super::super::report::{Report, ensure};
use super::super::subject::KvSubject;
use super::super::toy::mix;
use super::kv_oracle::Oracle;
use super::{Fixture, MakeKvOn, text};
use crate::types::{KvFacts, SeqId, Token};

type Check = Result<(), String>;
type Fresh<'a> = &'a dyn Fn(u32) -> Result<Oracle, String>;

const SLOTS: u32 = 96;

pub(super) fn suite(fixture: &Fixture, make: MakeKvOn<'_>) -> Report {
    let mut report = Report::default();
    let made = |slots: u32| -> Result<Box<dyn KvSubject>, String> {
        make(&fixture.fresh_host(), KvFacts { num_slots: slots as usize }).map_err(text)
    };
    let fresh = |slots: u32| made(slots).map(|part| Oracle::new(part, slots));
    report.run("new", || made(SLOTS).map(drop));
    if !report.passed() {
        return report;
    }
    report.run("a fresh pool is balanced", || fresh(SLOTS)?.check());
    report.run("commit keeps in order and frees the rest", || keeps_in_order(&fresh));
    report.run("rollback frees", || rolls_back(&fresh));
    report.run("reserve is all or nothing", || all_or_nothing(&fresh));
    report.run("fork shares", || forks(&fresh));
    report.run("free returns all", || frees(&fresh));
    report.run("wrong calls are errors", || wrong_calls(&made));
    report.run("prefixes that come again are right", || prefixes(&fresh));
    report.run("random operations stay balanced", || random(&fresh));
    report
}

fn prompt(salt: u64, len: usize) -> Vec<Token> {
    (0..len as u64).map(|index| (mix((salt << 32) | index) % 50) as Token).collect()
}

/// Admits a sequence and computes its whole prompt.
fn prefill(oracle: &mut Oracle, id: SeqId, tokens: &[Token]) -> Check {
    let cached_len = oracle.admit(id, tokens)?;
    let rows = tokens.len() - cached_len;
    ensure(oracle.reserve(id, rows)?, || format!("{rows} slots refused"))?;
    oracle.commit(id, &(0..rows as u32).collect::<Vec<_>>(), &tokens[cached_len..])
}

fn keeps_in_order(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    let id = SeqId(1);
    prefill(&mut oracle, id, &prompt(1, 5))?;
    let available = oracle.available()?;
    for keep in [&[0, 2, 5][..], &[0], &[0, 1, 2, 3, 4, 5], &[0, 4]] {
        ensure(oracle.reserve(id, 6)?, || "6 slots refused".to_owned())?;
        let tokens: Vec<Token> = keep.iter().map(|&index| 60 + index).collect();
        oracle.commit(id, keep, &tokens)?;
    }
    let (kept, left) = (1 + 3 + 6 + 2, oracle.available()?);
    ensure(left + kept + SLACK >= available, || format!("{available} available, {kept} kept, then {left}"))
}

/// Slots that a manager of blocks may hold back beyond what is used.
const SLACK: usize = 32;

fn rolls_back(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    prefill(&mut oracle, SeqId(1), &prompt(1, 5))?;
    let before = oracle.available()?;
    for count in [1, 7, 30] {
        ensure(oracle.reserve(SeqId(1), count)?, || format!("{count} slots refused"))?;
        oracle.rollback(SeqId(1))?;
        let after = oracle.available()?;
        ensure(after == before, || format!("{before} available, then {after} after a rollback of {count}"))?;
    }
    oracle.rollback(SeqId(1))
}

fn all_or_nothing(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    prefill(&mut oracle, SeqId(1), &prompt(1, 40))?;
    prefill(&mut oracle, SeqId(2), &prompt(2, 20))?;
    let available = oracle.available()?;
    ensure(!oracle.reserve(SeqId(1), SLOTS as usize)?, || "more slots than there are".to_owned())?;
    ensure(oracle.reserve(SeqId(1), available)?, || format!("{available} available, but refused"))?;
    oracle.rollback(SeqId(1))?;
    ensure(oracle.reserve(SeqId(2), 1)?, || "1 slot refused after a rollback".to_owned())
}

fn forks(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    let (parent, child, third) = (SeqId(1), SeqId(2), SeqId(3));
    prefill(&mut oracle, parent, &prompt(1, 21))?;
    let before = oracle.available()?;
    ensure(oracle.reserve(parent, 3)?, || "3 slots refused".to_owned())?;
    oracle.fork(parent, child)?;
    oracle.rollback(parent)?;
    oracle.fork(child, third)?;
    let after = oracle.available()?;
    ensure(after + SLACK >= before, || format!("{before} available, then {after} after forks"))?;
    for (id, token) in [(child, 70), (parent, 71), (third, 72), (child, 73)] {
        ensure(oracle.reserve(id, 2)?, || "2 slots refused".to_owned())?;
        oracle.commit(id, &[1], &[token])?;
    }
    oracle.free(parent)?;
    oracle.free(child)?;
    oracle.free(third)?;
    let all = oracle.available()?;
    ensure(all == SLOTS as usize, || format!("{all} of {SLOTS} available after all are gone"))
}

fn frees(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    for round in 0..20 {
        let id = SeqId(round);
        prefill(&mut oracle, id, &prompt(round, 50))?;
        ensure(oracle.reserve(id, 9)?, || format!("round {round}: 9 slots refused"))?;
        oracle.free(id)?;
        let available = oracle.available()?;
        ensure(available == SLOTS as usize, || format!("round {round}: {available} of {SLOTS} available"))?;
    }
    Ok(())
}

fn wrong_calls(made: &dyn Fn(u32) -> Result<Box<dyn KvSubject>, String>) -> Check {
    let mut part = made(SLOTS)?;
    part.admit(SeqId(1), &prompt(1, 5)).map_err(text)?;
    let refused = |what: &str, result: crate::Result<()>| {
        ensure(result.is_err(), || format!("{what} was taken"))?;
        let panicked = result.is_err_and(|error| error.kind == crate::ErrorKind::Panicked);
        ensure(!panicked, || format!("{what} panicked"))
    };
    refused("a commit with nothing reserved", part.commit(SeqId(1), &[0], &[3]))?;
    part.reserve(SeqId(1), 2).map_err(text)?;
    refused("a commit out of range", part.commit(SeqId(1), &[0, 2], &[3, 4]))?;
    refused("a fork of an unknown parent", part.fork(SeqId(7), SeqId(8)))?;
    part.free(SeqId(99)).map_err(text)?;
    part.rollback(SeqId(99)).map_err(text)?;
    part.check().map_err(text)
}

fn prefixes(fresh: Fresh<'_>) -> Check {
    let mut oracle = fresh(SLOTS)?;
    let base = prompt(1, 33);
    for (round, shared) in [33, 20, 32, 33, 1, 17].into_iter().enumerate() {
        let id = SeqId(round as u64);
        let tokens = [&base[..shared], &prompt(round as u64 + 9, 6)].concat();
        prefill(&mut oracle, id, &tokens)?;
        if round % 2 == 1 {
            oracle.free(SeqId(round as u64 - 1))?;
            oracle.free(id)?;
        }
    }
    Ok(())
}

fn random(fresh: Fresh<'_>) -> Check {
    for seed in 0..12u64 {
        let mut random = Random { state: seed, next_id: 0 };
        let mut oracle = fresh(24 + 24 * (seed % 4) as u32)?;
        for step in 0..600 {
            random.act(&mut oracle).map_err(|reason| format!("seed {seed}, operation {step}: {reason}"))?;
        }
        oracle.ids().into_iter().try_for_each(|id| oracle.free(id))?;
        let (available, total) = (oracle.available()?, 24 + 24 * (seed % 4) as usize);
        ensure(available == total, || format!("seed {seed}: {available} of {total} available in the end"))?;
    }
    Ok(())
}

struct Random {
    state: u64,
    next_id: u64,
}

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.state = mix(self.state);
        (self.state >> 20) as usize % limit.max(1)
    }

    fn fresh_id(&mut self) -> SeqId {
        self.next_id += 1;
        SeqId(self.next_id)
    }

    fn act(&mut self, oracle: &mut Oracle) -> Check {
        let ids = oracle.ids();
        let action = self.below(10);
        if ids.is_empty() || (action == 0 && ids.len() < 6) {
            let len = 1 + self.below(14);
            let tokens = prompt(self.below(3) as u64, len);
            let id = self.fresh_id();
            return oracle.admit(id, &tokens).map(drop);
        }
        let id = ids[self.below(ids.len())];
        match action {
            1 => oracle.free(id),
            2 if ids.len() < 6 && oracle.committed_len(id) == oracle.tokens(id).len() => {
                let child = self.fresh_id();
                oracle.fork(id, child)
            }
            3 => oracle.rollback(id),
            _ => self.step(oracle, id),
        }
    }

    /// A chunk of prompt, or an anchor and a draft of which some is kept.
    fn step(&mut self, oracle: &mut Oracle, id: SeqId) -> Check {
        oracle.rollback(id)?;
        let missing = oracle.tokens(id)[oracle.committed_len(id)..].to_vec();
        if missing.is_empty() {
            let count = 1 + self.below(7);
            if !oracle.reserve(id, count)? || self.below(5) == 0 {
                return Ok(());
            }
            let keep: Vec<u32> = (0..count as u32).filter(|&index| index == 0 || self.below(2) == 0).collect();
            let tokens: Vec<Token> = keep.iter().map(|_| self.below(50) as Token).collect();
            return oracle.commit(id, &keep, &tokens);
        }
        let rows = 1 + self.below(missing.len());
        if !oracle.reserve(id, rows)? {
            return Ok(());
        }
        oracle.commit(id, &(0..rows as u32).collect::<Vec<_>>(), &missing[..rows])
    }
}
