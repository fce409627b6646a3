//! Against a rescan of the whole context: the same match, the same guesses, for any text in any number of steps.
#![forbid(unsafe_code)]

mod support;

use foretoken_ngram::index::NgramIndex;
use foretoken_plugin_api::Token;
use proptest::prelude::*;
use support::{drafted, proposer};

/// The position after the latest earlier occurrence of the longest suffix, found the slow way.
fn rescan(tokens: &[Token], min: usize, max: usize) -> Option<usize> {
    let longest_first = (min..=max.min(tokens.len())).rev();
    longest_first.into_iter().find_map(|size| {
        let suffix = &tokens[tokens.len() - size..];
        (size..tokens.len()).rev().find(|&end| &tokens[end - size..end] == suffix)
    })
}

/// `count` tokens copied one by one from `end` on, out of the text and then out of the copy.
fn copied(tokens: &[Token], end: usize, count: usize) -> Vec<Token> {
    let mut text = tokens.to_vec();
    (0..count).for_each(|index| text.push(text[end + index]));
    text.split_off(tokens.len())
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
    fn the_longest_and_latest_match_is_found(text in text(), min in 1..4usize, more in 0..5usize, jump in 1..9usize) {
        let mut index = NgramIndex::new(min..=min + more);
        for len in (1..=text.len()).step_by(jump) {
            index.update(&text[..len]);
            prop_assert_eq!(index.find(&text[..len]), rescan(&text[..len], min, min + more), "{:?}", &text[..len]);
        }
    }

    #[test]
    fn drafts_are_what_a_rescan_copies(text in text(), min in 1..4usize, more in 0..4usize, draft in 1..9u32) {
        let max = min + more;
        let options = format!("prompt_lookup_min = {min}\nprompt_lookup_max = {max}\nnum_speculative_tokens = {draft}");
        let mut ngram = proposer(&options).unwrap();
        for len in 1..=text.len() {
            let expected = rescan(&text[..len], min, max).map(|end| copied(&text[..len], end, draft as usize));
            prop_assert_eq!(drafted(&mut ngram, 1, &text[..len], draft), expected.unwrap_or_default());
        }
    }

    #[test]
    fn a_text_that_is_not_the_indexed_one_starts_again(first in text(), second in text()) {
        let mut index = NgramIndex::new(1..=4);
        index.update(&first);
        index.update(&second);
        if second.len() < first.len() {
            prop_assert_eq!(index.find(&second), rescan(&second, 1, 4));
        } else if let Some(end) = index.find(&second) {
            // The index cannot know, but it believes no match that is not there.
            prop_assert!(end < second.len() && second[..end].last() == second.last());
        }
    }

    #[test]
    fn each_token_is_indexed_once(text in text(), min in 1..4usize, more in 0..5usize, jump in 1..9usize) {
        let mut index = NgramIndex::new(min..=min + more);
        let mut written = 0;
        for len in (1..=text.len()).step_by(jump) {
            let new_tokens = if len == 1 { 0 } else { jump };
            let step = index.update(&text[..len]);
            prop_assert!(step <= new_tokens * (more + 1), "{step} entries for {new_tokens} tokens");
            written += step;
        }
        prop_assert!(written <= text.len() * (more + 1));
    }
}
