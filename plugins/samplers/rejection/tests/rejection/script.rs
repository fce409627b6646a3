//! The answers that one rule got, given to a second one, which must ask the same questions.

use foretoken_plugin_api::{NoiseKey, Token};
use foretoken_rejection::chance::Chance;

use crate::laws::EXACT;
use crate::play::Through;

/// Answers of one rule, given to another that must ask the same.
pub enum Script<'a> {
    Record(&'a mut dyn Chance, Vec<Answer>),
    Replay(std::vec::IntoIter<Answer>),
}

#[derive(Debug)]
pub enum Answer {
    Coin(u64, f64, bool),
    Draw(u64, Token),
}

impl Script<'_> {
    /// The recorded answers.
    pub fn replay(self) -> Self {
        match self {
            Self::Record(_, answers) => Self::Replay(answers.into_iter()),
            replay => replay,
        }
    }
}

impl Chance for Script<'_> {
    fn coin(&mut self, key: NoiseKey, probability: f64) -> bool {
        match self {
            Self::Record(chance, answers) => {
                let heads = Through(*chance).coin(key, probability);
                answers.push(Answer::Coin(key.stream, probability, heads));
                heads
            }
            Self::Replay(answers) => match answers.next() {
                Some(Answer::Coin(stream, asked, heads)) => {
                    let equal = (asked.min(1.0) - probability.min(1.0)).abs() < EXACT;
                    assert!(stream == key.stream && equal, "asked {asked}, the reference {probability}");
                    heads
                }
                other => panic!("the reference asks for a coin, the rule had {other:?}"),
            },
        }
    }

    fn draw(&mut self, key: NoiseKey, weights: &[f32]) -> Token {
        match self {
            Self::Record(chance, answers) => {
                let token = Through(*chance).draw(key, weights);
                answers.push(Answer::Draw(key.stream, token));
                token
            }
            Self::Replay(answers) => match answers.next() {
                Some(Answer::Draw(stream, token)) => {
                    assert!(stream == key.stream && weights[token as usize] > 0.0, "draws differ");
                    token
                }
                other => panic!("the reference draws, the rule had {other:?}"),
            },
        }
    }
}
