//! Counts of which token followed which.
//!
//! The best successor is kept beside the counts, so that a draft costs one lookup a token rather than a scan; ties stay
//! with the successor that got there first.

use std::collections::HashMap;

use foretoken_plugin_api::Token;

#[derive(Debug, Default)]
struct Successors {
    counts: HashMap<Token, u32>,
    best: Option<(Token, u32)>,
}

/// The table.
#[derive(Debug, Default)]
pub struct BigramTable {
    after: HashMap<Token, Successors>,
}

impl BigramTable {
    /// Counts every pair of neighbours.
    pub fn learn(&mut self, tokens: &[Token]) {
        for pair in tokens.windows(2) {
            let successors = self.after.entry(pair[0]).or_default();
            let count = successors.counts.entry(pair[1]).or_default();
            *count += 1;
            if successors.best.is_none_or(|(_, best)| *count > best) {
                successors.best = Some((pair[1], *count));
            }
        }
    }

    /// What followed `token` most often, if it did so `min_count` times.
    pub fn successor(&self, token: Token, min_count: u32) -> Option<Token> {
        let (next, count) = self.after.get(&token)?.best?;
        (count >= min_count).then_some(next)
    }
}
