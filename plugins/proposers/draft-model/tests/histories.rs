//! Any history: whatever happens to sequences and slots, every draft is the model's own greedy continuation.
//!
//! Under both KV strategies, so that they draft the same tokens. The rig's model refuses KV that is stale or misplaced.
#![forbid(unsafe_code)]

mod support;

use foretoken_plugin_api::Token;
use proptest::prelude::*;
use support::{Rig, Setup, VOCAB};

/// What happens next; numbers choose among what is there.
#[derive(Debug, Clone)]
enum Event {
    Admit(Vec<Token>),
    Fork(usize, Token),
    /// Budgets per live sequence, cycled; how many drafted tokens are kept.
    Step(Vec<u32>, usize),
    /// A step that another proposer drafted for.
    Foreign(usize, Vec<Token>),
    /// Drafts that nobody verifies.
    Abandon,
    /// The model fails.
    Fault,
    Preempt(usize),
    Finish(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let token = 0..VOCAB as Token;
    prop_oneof![
        2 => proptest::collection::vec(token.clone(), 1..40).prop_map(Event::Admit),
        2 => (any::<usize>(), token.clone()).prop_map(|(which, first)| Event::Fork(which, first)),
        10 => (proptest::collection::vec(0..8u32, 1..5), 0..7usize).prop_map(|(budgets, keep)| Event::Step(budgets, keep)),
        1 => (any::<usize>(), proptest::collection::vec(token, 1..6)).prop_map(|(which, new)| Event::Foreign(which, new)),
        1 => Just(Event::Abandon),
        1 => Just(Event::Fault),
        1 => any::<usize>().prop_map(Event::Preempt),
        1 => any::<usize>().prop_map(Event::Finish),
    ]
}

fn happen(rig: &mut Rig, next_id: &mut u64, event: &Event) -> Result<(), TestCaseError> {
    let ids: Vec<u64> = rig.live.keys().copied().collect();
    let chosen = |which: usize| ids[which % ids.len()];
    match event {
        Event::Admit(prompt) => rig.admit(*next_id, prompt),
        _ if ids.is_empty() => return Ok(()),
        Event::Fork(which, first) => rig.fork(chosen(*which), *next_id, *first),
        Event::Step(budgets, keep) => {
            let wanted: Vec<_> = ids.iter().copied().zip(budgets.iter().copied().cycle()).collect();
            let len = |budget: u32| budget.min(4) as usize;
            let expected: Vec<_> = wanted.iter().map(|&(id, budget)| rig.expected(id, len(budget))).collect();
            prop_assert_eq!(rig.step(&wanted, *keep), expected);
        }
        Event::Foreign(which, new) => {
            let (next, kept) = new.split_last().expect("at least one");
            rig.accept(&[(chosen(*which), kept.to_vec(), *next)]);
        }
        Event::Abandon => drop(rig.propose(&ids.iter().map(|&id| (id, 3)).collect::<Vec<_>>())),
        Event::Fault => {
            rig.set_broken(true);
            prop_assert!(rig.propose(&[(ids[0], 3)]).is_err());
            rig.set_broken(false);
        }
        Event::Preempt(which) => rig.preempt(chosen(*which)),
        Event::Finish(which) => rig.finish(chosen(*which)),
    }
    *next_id += 1;
    Ok(())
}

fn check(options: &'static str, events: &[Event]) -> Result<(), TestCaseError> {
    let mut rig = Rig::new(Setup { options, max_sequences: 3, ..Setup::default() });
    let mut next_id = 0;
    events.iter().try_for_each(|event| happen(&mut rig, &mut next_id, event))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn drafts_are_right_after_any_history(events in proptest::collection::vec(event(), 1..30)) {
        check("num_speculative_tokens = 4", &events)?;
        check("num_speculative_tokens = 4\nkv_strategy = \"discard\"", &events)?;
    }
}
