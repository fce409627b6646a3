//! A draft model with another tokenizer: it guesses the tokens that both vocabularies have (Timor et al., 2502.05202,
//! algorithm 4, token-level intersection).
//!
//! One token of the target stays one row of the draft model, so that its keys and values keep following the target's slots.
//! A token that the draft model lacks is shown to it as the longest ending of its text that it has: it reads a little less
//! than was written, which costs acceptance and nothing else. Its logits are spread over the target's vocabulary, where what
//! it cannot say is impossible; so what is drawn, and recorded as draft_prob, is a distribution over the intersection.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use foretoken_plugin_api::{
    Error, ForwardBatch, ForwardSequence, Model, ModelApi, ModelFacts, Result, Token, TokenText,
};

/// How two vocabularies meet.
pub struct Intersection {
    /// The draft model's token for each of the target's.
    to_draft: Vec<Token>,
    /// The target's token for each of the draft model's, where there is one.
    to_target: Vec<Option<Token>>,
}

impl Intersection {
    /// The tokens that stand for the same in both.
    ///
    /// # Errors
    /// If there are none.
    pub fn new(target: &[TokenText], draft: &[TokenText]) -> Result<Self> {
        let mut draft_ids: HashMap<&TokenText, Token> = HashMap::with_capacity(draft.len());
        for (token, text) in (0..).zip(draft).filter(|(_, text)| !text.bytes.is_empty()) {
            draft_ids.entry(text).or_insert(token);
        }
        let any_special = draft.iter().position(|text| text.is_special).unwrap_or(0) as Token;
        let mut to_target = vec![None; draft.len()];
        let mut to_draft = Vec::with_capacity(target.len());
        for (token, text) in (0..).zip(target) {
            let same = draft_ids.get(text).copied();
            if let Some(same) = same {
                to_target[same as usize].get_or_insert(token);
            }
            let ending = || {
                let endings = (1..text.bytes.len()).map(|from| text.bytes[from..].to_vec());
                let mut known = endings.filter_map(|bytes| draft_ids.get(&TokenText { bytes, is_special: false }));
                known.next().copied()
            };
            to_draft.push(same.or_else(|| ending().filter(|_| !text.is_special)).unwrap_or(any_special));
        }
        let shared = to_target.iter().flatten().count();
        if shared == 0 {
            return Err(Error::refused("the draft model's vocabulary and the target's have no token in common"));
        }
        Ok(Self { to_draft, to_target })
    }

    /// Tokens of the draft model that the target has too.
    pub fn shared(&self) -> usize {
        self.to_target.iter().flatten().count()
    }
}

/// A draft model that reads and guesses the target's tokens.
pub struct Translated {
    model: Model,
    intersection: Intersection,
    buffers: Mutex<Buffers>,
}

#[derive(Default)]
struct Buffers {
    tokens: Vec<Token>,
    logits: Vec<f32>,
}

impl Translated {
    /// `model` behind `intersection`.
    pub fn new(model: Model, intersection: Intersection) -> Self {
        Self { model, intersection, buffers: Mutex::default() }
    }
}

impl ModelApi for Translated {
    fn facts(&self) -> ModelFacts {
        ModelFacts { vocab_size: self.intersection.to_draft.len(), ..self.model.facts() }
    }

    fn forward(&self, batch: &ForwardBatch<'_>, logits: &mut [f32]) -> Result<()> {
        let Intersection { to_draft, to_target } = &self.intersection;
        let mut buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let Buffers { tokens, logits: own } = &mut *buffers;
        tokens.clear();
        for sequence in batch.sequences() {
            for token in sequence.tokens() {
                let translated = to_draft.get(*token as usize).copied();
                tokens.push(translated.ok_or_else(|| Error::failed(format!("token {token} is none of the target's")))?);
            }
        }
        let (mut rest, mut asked) = (&tokens[..], 0);
        let mut sequences: Vec<ForwardSequence<'_>> = Vec::with_capacity(batch.sequences().len());
        for sequence in batch.sequences() {
            let (now, later) = rest.split_at(sequence.tokens().len());
            rest = later;
            asked += sequence.logit_rows();
            let rows = ForwardSequence::chain(now, sequence.context(), sequence.slots(), sequence.logits);
            sequences.push(match sequence.parents() {
                Some(parents) => rows.with_parents(parents),
                None => rows,
            });
        }
        own.resize(asked * to_target.len(), 0.0);
        self.model.forward(&ForwardBatch::new(batch.lane, &sequences), own)?;
        logits.fill(f32::NEG_INFINITY);
        for (own, logits) in own.chunks_exact(to_target.len()).zip(logits.chunks_exact_mut(to_draft.len())) {
            for (target, logit) in to_target.iter().zip(own) {
                if let Some(target) = target {
                    logits[*target as usize] = *logit;
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(names: &[&str]) -> Vec<TokenText> {
        let text = |name: &&str| match name.strip_prefix('!') {
            Some(name) => TokenText { bytes: name.into(), is_special: true },
            None => TokenText { bytes: name.as_bytes().to_vec(), is_special: false },
        };
        names.iter().map(text).collect()
    }

    #[test]
    fn shared_tokens_go_both_ways_and_others_are_shown_by_their_endings() {
        let target = texts(&["!<s>", "a", " the", "bathe", "", "x"]);
        let draft = texts(&["the", " the", "!<bos>", "a", "e", "the"]);
        let both = Intersection::new(&target, &draft).unwrap();
        assert_eq!(both.to_draft, [2, 3, 1, 0, 2, 2], "bathe ends in the, x in nothing known");
        assert_eq!(both.to_target, [None, Some(2), None, Some(1), None, None]);
        assert_eq!(both.shared(), 2);
        assert!(Intersection::new(&target, &texts(&["q", "!x"])).is_err());
    }
}
