//! Against a rescan of the whole text: the same match, the same continuations, for any text.
#![forbid(unsafe_code)]

use std::collections::HashMap;

use foretoken_plugin_api::Token;
use foretoken_suffix::automaton::{Automaton, State};
use foretoken_suffix::outputs::{Outputs, Place};
use proptest::prelude::*;

/// Counts are exact where no token has more suffixes than this.
const COUNTED: usize = 8;

/// Where `pattern` ends in `text` and something follows.
fn ends<'a>(text: &'a [Token], pattern: &'a [Token]) -> impl Iterator<Item = usize> + 'a {
    (pattern.len()..text.len()).filter(move |&end| text[..end].ends_with(pattern))
}

/// Length of the longest suffix of `tokens` that is in `text`, with something behind it if it must be.
fn longest(text: &[Token], tokens: &[Token], is_followed: bool) -> usize {
    let is_in = |pattern: &[Token]| ends(text, pattern).next().is_some() || (!is_followed && text.ends_with(pattern));
    (0..=tokens.len()).rev().find(|&len| is_in(&tokens[tokens.len() - len..])).unwrap_or(0)
}

/// The suffixes that are states of their own, longest first.
fn chain(automaton: &Automaton) -> Vec<State> {
    std::iter::successors(Some(automaton.matched()), |&state| automaton.shorter(state)).collect()
}

fn text() -> impl Strategy<Value = Vec<Token>> {
    prop_oneof![
        proptest::collection::vec(0..3u32, 1..60),
        proptest::collection::vec(0..40u32, 1..200),
        (proptest::collection::vec(0..9u32, 1..7), 2..20usize).prop_map(|(cycle, times)| cycle.repeat(times)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_longest_match_and_all_that_followed_are_found(text in text()) {
        let mut automaton = Automaton::default();
        let mut deepest = 0;
        for end in 1..=text.len() {
            automaton.push(text[end - 1]);
            let (text, states) = (&text[..end], chain(&automaton));
            deepest = deepest.max(states.len());
            prop_assert_eq!(automaton.len(states[0]), longest(text, text, true), "{:?}", text);
            for &state in states.iter().filter(|&&state| automaton.len(state) > 0) {
                let pattern = &text[text.len() - automaton.len(state)..];
                let mut counts = HashMap::<Token, (usize, usize)>::new();
                for end in ends(text, pattern) {
                    let (count, latest) = counts.entry(text[end]).or_default();
                    (*count, *latest) = (*count + 1, end);
                }
                let mut found: Vec<Token> = automaton.continuations(state).map(|next| next.token).collect();
                let mut expected: Vec<Token> = counts.keys().copied().collect();
                found.sort_unstable();
                expected.sort_unstable();
                prop_assert_eq!(found, expected, "after {:?} in {:?}", pattern, text);
                if deepest > COUNTED {
                    continue;
                }
                let total: usize = counts.values().map(|(count, _)| count).sum();
                for next in automaton.continuations(state) {
                    prop_assert_eq!(next.probability, counts[&next.token].0 as f64 / total as f64);
                }
                let best = counts.iter().max_by_key(|(_, counted)| **counted).map(|(&token, _)| token);
                prop_assert_eq!(automaton.best(state).map(|best| best.token), best, "after {:?} in {:?}", pattern, text);
            }
        }
    }

    #[test]
    fn a_token_costs_a_constant(text in text()) {
        let mut automaton = Automaton::default();
        let visited: usize = text.iter().map(|&token| automaton.push(token)).sum();
        prop_assert!(visited <= text.len() * (8 + COUNTED), "{visited} for {} tokens", text.len());
    }

    #[test]
    fn earlier_outputs_are_matched_as_by_a_rescan(
        first in text(), second in text(), tokens in proptest::collection::vec(0..9u32, 1..60), jump in 1..5usize,
    ) {
        let mut outputs = Outputs::new(1 << 20);
        let mut place = Place::default();
        for (number, output) in [&first, &second].into_iter().enumerate() {
            outputs.add(output);
            for len in (1..=tokens.len()).step_by(jump) {
                let [(automaton, found), (_, old)] = outputs.find(&mut place, &tokens[..len]);
                let known = [&first, &second].into_iter().take(number + 1);
                let expected = known.map(|output| longest(output, &tokens[..len], false)).max();
                prop_assert_eq!((Some(found.len), old.len), (expected, 0), "{:?}", &tokens[..len]);
                prop_assert!(found.len <= automaton.len(found.state));
                prop_assert!(automaton.shorter(found.state).is_none_or(|shorter| automaton.len(shorter) < found.len));
            }
        }
    }
}

#[test]
fn the_oldest_outputs_are_forgotten_under_the_cap() {
    let cap = 1 << 16;
    let mut outputs = Outputs::new(cap);
    let output = |number: Token| (0..50).map(|index| number * 50 + index).collect::<Vec<Token>>();
    let longest = |outputs: &Outputs, number| {
        let matches = outputs.find(&mut Place::default(), &output(number)[..20]);
        matches.map(|(_, found)| found.len).into_iter().max()
    };
    for number in 0..200 {
        outputs.add(&output(number));
        assert!(outputs.bytes() <= cap + cap / 2, "{} bytes", outputs.bytes());
        assert_eq!(longest(&outputs, number), Some(20), "the newest is there");
    }
    assert_eq!(longest(&outputs, 0), Some(0), "the oldest is not");
    let mut none = Outputs::new(0);
    none.add(&output(0));
    assert_eq!(longest(&none, 0), Some(0));
}
