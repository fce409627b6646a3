//! How a guess is made of a row of logits: what every proposer with a network would otherwise write again.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::author::Drafts;
use crate::error::DraftError;
use crate::types::{NodeId, Token};

/// How a chain's token is chosen from a row of logits; for options tables.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "schemars")]
pub enum DraftSampling {
    /// The engine draws with the request's parameters and its own noise. At temperature 0 that is the most probable token;
    /// above, a `gumbel` sampler keeps more drawn tokens than most probable ones, since target and draft share the noise.
    #[default]
    Drawn,
    /// Always the most probable token.
    Deterministic,
}

impl DraftSampling {
    /// A child of `parent` (`None`: the anchor) in the draft of batch sequence `sequence`, by `logits` over the target's
    /// vocabulary.
    ///
    /// # Errors
    /// As [`Drafts::draw`] and [`Drafts::push`].
    pub fn guess(
        self,
        drafts: &mut Drafts<'_>,
        sequence: usize,
        parent: Option<NodeId>,
        logits: &[f32],
    ) -> Result<(NodeId, Token), DraftError> {
        match self {
            Self::Drawn => drafts.draw(sequence, parent, logits),
            Self::Deterministic => {
                let token = argmax(logits);
                drafts.push(sequence, parent, token).map(|node| (node, token))
            }
        }
    }
}

/// The lowest id among the largest logits.
fn argmax(logits: &[f32]) -> Token {
    let larger = |best: usize, id: usize| if logits[id] > logits[best] { id } else { best };
    (0..logits.len()).fold(0, larger) as Token
}

/// The `count` most probable tokens in falling order, ties by lowest id, with their softmax probabilities.
///
/// ```
/// let top: Vec<_> = foretoken_plugin_api::guess::most_probable(&[0.0, 2.0, 1.0, 2.0], 3).map(|(token, _)| token).collect();
/// assert_eq!(top, [1, 3, 2]);
/// ```
pub fn most_probable(logits: &[f32], count: usize) -> impl Iterator<Item = (Token, f32)> + use<> {
    let mut top: Vec<(Token, f32)> = Vec::with_capacity(count + 1);
    for (token, &logit) in (0..).zip(logits) {
        if top.len() < count || top.last().is_some_and(|last| logit > last.1) {
            let place = top.partition_point(|(_, other)| *other >= logit);
            top.insert(place, (token, logit));
            top.truncate(count);
        }
    }
    let greatest = top.first().map_or(0.0, |first| first.1);
    let total: f32 = logits.iter().map(|logit| (logit - greatest).exp()).sum();
    top.into_iter().map(move |(token, logit)| (token, (logit - greatest).exp() / total))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_probable_come_first_and_ties_go_to_the_lowest_id() {
        let logits = [0.0f32, 2.0, 1.0, 2.0, -1.0];
        let top: Vec<_> = most_probable(&logits, 3).collect();
        assert_eq!(top.iter().map(|(token, _)| *token).collect::<Vec<_>>(), [1, 3, 2]);
        let total: f32 = logits.iter().map(|logit| logit.exp()).sum();
        for (token, probability) in top {
            let expected = logits[token as usize].exp() / total;
            assert!((probability - expected).abs() < 1e-6, "{token}: {probability}, expected {expected}");
        }
        assert_eq!(most_probable(&[1.0, 3.0], 5).count(), 2);
    }
}
