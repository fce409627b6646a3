//! Stop strings over streamed text, across any borders between tokens.
//!
//! Neighbours: `detokenize` delivers the pieces, the engine's emit verb ends the sequence when a stop is met. Text that
//! may be the start of a stop string is held back until it is decided. Among several stop strings the one *completed*
//! first wins, as if characters came one at a time, and of those completed together the longest. The alternative, the
//! match that starts first, would make the output depend on how text is cut into tokens.

use std::collections::VecDeque;

/// What a piece of text led to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Stopped {
    /// No stop string is complete; the text is safe to show.
    No(String),
    /// The stop string `stop` is complete; the text ends right before it, and whatever followed is dropped.
    At { text: String, stop: String },
}

/// Holds back what may be a stop string and cuts the text before one.
#[derive(Debug, Clone, Default)]
pub struct StopFilter {
    stops: Vec<Pattern>,
    held: VecDeque<char>,
}

/// One stop string with its Knuth-Morris-Pratt borders, so that each character costs O(1) however long the string is.
#[derive(Debug, Clone)]
struct Pattern {
    chars: Vec<char>,
    border: Vec<usize>,
    matched: usize,
}

impl StopFilter {
    /// Empty stop strings are ignored: they would match before the first token.
    pub fn new<S: AsRef<str>>(stops: &[S]) -> Self {
        let stops = stops.iter().map(AsRef::as_ref).filter(|stop| !stop.is_empty());
        Self { stops: stops.map(Pattern::new).collect(), held: VecDeque::new() }
    }

    /// Takes the next piece; returns the text that no stop string can reach any more. Not to be called after a stop.
    pub fn push(&mut self, piece: &str) -> Stopped {
        if self.stops.is_empty() {
            return Stopped::No(piece.to_owned());
        }
        let mut certain = String::new();
        for character in piece.chars() {
            self.held.push_back(character);
            if let Some(stop) = self.advance(character) {
                let keep = self.held.len() - stop.chars().count();
                certain.extend(self.held.drain(..keep));
                self.held.clear();
                return Stopped::At { text: certain, stop };
            }
            let undecided = self.stops.iter().map(|stop| stop.matched).max().unwrap_or(0);
            certain.extend(self.held.drain(..self.held.len() - undecided));
        }
        Stopped::No(certain)
    }

    /// The stream ended: what was held is text after all.
    pub fn finish(&mut self) -> String {
        self.stops.iter_mut().for_each(|stop| stop.matched = 0);
        self.held.drain(..).collect()
    }

    /// Feeds one character to every pattern; the longest one it completes, if any.
    fn advance(&mut self, character: char) -> Option<String> {
        let mut complete: Option<usize> = None;
        for (index, stop) in self.stops.iter_mut().enumerate() {
            stop.advance(character);
            if stop.matched == stop.chars.len() {
                complete = Some(index);
            }
        }
        complete?;
        let done = self.stops.iter().filter(|stop| stop.matched == stop.chars.len());
        done.max_by_key(|stop| stop.chars.len()).map(|stop| stop.chars.iter().collect())
    }
}

impl Pattern {
    fn new(text: &str) -> Self {
        let chars: Vec<char> = text.chars().collect();
        let mut border = vec![0; chars.len()];
        let mut length = 0;
        for index in 1..chars.len() {
            while length > 0 && chars[index] != chars[length] {
                length = border[length - 1];
            }
            length += usize::from(chars[index] == chars[length]);
            border[index] = length;
        }
        Self { chars, border, matched: 0 }
    }

    fn advance(&mut self, character: char) {
        while self.matched > 0 && self.chars[self.matched] != character {
            self.matched = self.border[self.matched - 1];
        }
        self.matched += usize::from(self.chars[self.matched] == character);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn stream(stops: &[&str], pieces: &[&str]) -> (String, Option<String>) {
        let mut filter = StopFilter::new(stops);
        let mut out = String::new();
        for piece in pieces {
            match filter.push(piece) {
                Stopped::No(text) => out.push_str(&text),
                Stopped::At { text, stop } => return (out + &text, Some(stop)),
            }
        }
        (out + &filter.finish(), None)
    }

    #[test]
    fn cuts_before_a_stop_that_spans_pieces() {
        let (text, stop) = stream(&["\n\nQ:"], &["A: yes", "\n", "\nQ", ": next"]);
        assert_eq!((text.as_str(), stop.as_deref()), ("A: yes", Some("\n\nQ:")));
    }

    #[test]
    fn holds_back_only_what_may_be_a_stop() {
        let mut filter = StopFilter::new(&["END"]);
        assert_eq!(filter.push("the E"), Stopped::No("the ".into()));
        assert_eq!(filter.push("N"), Stopped::No(String::new()));
        assert_eq!(filter.push("EN"), Stopped::No("EN".into()));
        assert_eq!(filter.finish(), "EN");
    }

    #[test]
    fn of_several_stops_the_first_completed_wins_and_then_the_longest() {
        assert_eq!(stream(&["abcd", "bc"], &["xabcd"]), ("xa".into(), Some("bc".into())));
        assert_eq!(stream(&["bc", "abc"], &["xab", "c"]), ("x".into(), Some("abc".into())));
    }

    #[test]
    fn a_stop_may_begin_inside_a_failed_one() {
        assert_eq!(stream(&["aabaaac"], &["aabaaab", "aaac"]), ("aaba".into(), Some("aabaaac".into())));
    }

    #[test]
    fn without_stops_or_with_empty_ones_text_passes() {
        assert_eq!(stream(&[], &["a", "b"]), ("ab".into(), None));
        assert_eq!(stream(&[""], &["a", "b"]), ("ab".into(), None));
    }

    /// The obvious version: grow the text by a character, look for any stop string that ends there.
    fn reference(stops: &[String], text: &str) -> String {
        let mut seen = String::new();
        for character in text.chars() {
            seen.push(character);
            let ends = stops.iter().filter(|stop| !stop.is_empty() && seen.ends_with(stop.as_str()));
            if let Some(stop) = ends.max_by_key(|stop| stop.len()) {
                seen.truncate(seen.len() - stop.len());
                return seen;
            }
        }
        seen
    }

    proptest! {
        #[test]
        fn equals_the_reference_however_the_text_is_cut(
            stops in prop::collection::vec("[ab]{0,3}|[abé]{4,8}|[ab]{5,7}", 0..4),
            pieces in prop::collection::vec("[ab]{0,3}|[abé]{0,3}", 0..40),
        ) {
            let whole = pieces.concat();
            let stops_ref: Vec<&str> = stops.iter().map(String::as_str).collect();
            let pieces_ref: Vec<&str> = pieces.iter().map(String::as_str).collect();
            prop_assert_eq!(stream(&stops_ref, &pieces_ref).0, reference(&stops, &whole));
        }
    }
}
