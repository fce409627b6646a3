//! What sequences have written, remembered for those that come after, under a memory cap.
//!
//! Two automata: a young one that takes outputs in, and an old one. When the young one has grown to half of the cap it
//! becomes the old one, and the old one is forgotten. So what is remembered is always the newest, each token is paid for
//! once, and nothing is ever taken out of an automaton, which has no cheap way to do that. The alternative, a trie with
//! reference counts (SuffixDecoding), forgets output by output at the price of visiting each of its nodes again.

use foretoken_plugin_api::Token;

use crate::automaton::{Automaton, ROOT, State};

/// Between two outputs; no vocabulary has it.
pub const END: Token = Token::MAX;
/// Tokens of a sequence that are matched anew when outputs were added.
const RECENT: usize = 64;

/// The outputs of earlier sequences.
#[derive(Debug, Default)]
pub struct Outputs {
    young: Automaton,
    old: Automaton,
    /// Outputs added so far.
    added: u64,
    max_bytes: usize,
}

/// Where the text of a sequence stands in [`Outputs`]: its longest suffix in each automaton.
#[derive(Debug, Default)]
pub struct Place {
    added: u64,
    seen: usize,
    /// In the young one, in the old one.
    matches: [Match; 2],
}

/// A state, and how long the suffix is that led there: one of the state's substrings.
#[derive(Debug, Clone, Copy)]
pub struct Match {
    /// The state.
    pub state: State,
    /// Length of the suffix.
    pub len: usize,
}

impl Default for Match {
    fn default() -> Self {
        Self { state: ROOT, len: 0 }
    }
}

impl Match {
    /// The longest suffix of what was matched and `token` that is in the text. Amortised constant.
    fn push(&mut self, automaton: &Automaton, token: Token) {
        let next = loop {
            if let Some(state) = automaton.follow(self.state, token) {
                break state;
            }
            let Some(shorter) = automaton.shorter(self.state) else { return };
            *self = Self { state: shorter, len: automaton.len(shorter) };
        };
        *self = Self { state: next, len: self.len + 1 };
        // What follows is the state's longest substring; a shorter one may be of a state behind it.
        while let Some(shorter) = automaton.shorter(self.state).filter(|&shorter| automaton.len(shorter) >= self.len) {
            self.state = shorter;
        }
    }
}

impl Outputs {
    /// Remembers up to `max_bytes`.
    pub fn new(max_bytes: usize) -> Self {
        Self { max_bytes, ..Self::default() }
    }

    /// Takes in the output of a sequence.
    pub fn add(&mut self, output: &[Token]) {
        if self.max_bytes == 0 {
            return;
        }
        self.added += 1;
        for &token in output.iter().chain([&END]) {
            self.young.push(token);
        }
        if self.young.bytes() > self.max_bytes / 2 {
            self.old = std::mem::take(&mut self.young);
        }
    }

    /// Brings `place` up to the end of `tokens`; returns the longest suffix in each automaton.
    pub fn find<'a>(&'a self, place: &mut Place, tokens: &[Token]) -> [(&'a Automaton, Match); 2] {
        if place.added != self.added || place.seen > tokens.len() {
            let seen = tokens.len().saturating_sub(RECENT);
            *place = Place { added: self.added, seen, matches: Default::default() };
        }
        let automata = [&self.young, &self.old];
        for &token in &tokens[place.seen..] {
            for (found, automaton) in place.matches.iter_mut().zip(automata) {
                found.push(automaton, token);
            }
        }
        place.seen = tokens.len();
        [(automata[0], place.matches[0]), (automata[1], place.matches[1])]
    }

    /// Bytes that it holds.
    pub fn bytes(&self) -> usize {
        self.young.bytes() + self.old.bytes()
    }
}
