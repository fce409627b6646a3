//! What a draft costs at a long context, per sequence: taking one committed token in, finding the match, guessing.
//!
//! Texts of words that come back, as prose and code do, and the worst case of a short loop. Memory per token is printed.
#![forbid(unsafe_code)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use foretoken_plugin_api::author::DraftSink;
use foretoken_plugin_api::testkit::{FakeHost, ProposeInput, ToyModel, with_propose_batch};
use foretoken_plugin_api::{DraftError, Drafts, NodeId, Proposer, Token};
use foretoken_suffix::automaton::Automaton;
use foretoken_suffix::{Suffix, SuffixOptions};

const CONTEXT: usize = 32 << 10;
const STEPS: usize = 4 << 10;

/// Takes every guess.
struct Anything(NodeId);

impl DraftSink for Anything {
    fn push(&mut self, _: usize, _: Option<NodeId>, token: Token) -> Result<NodeId, DraftError> {
        black_box(token);
        self.0 += 1;
        Ok(self.0 - 1)
    }

    fn draw(&mut self, _: usize, _: Option<NodeId>, _: &[f32]) -> Result<(NodeId, Token), DraftError> {
        unreachable!("suffix pushes")
    }

    fn draw_n(
        &mut self,
        _: usize,
        _: Option<NodeId>,
        _: &[f32],
        _: &mut [(NodeId, Token)],
    ) -> Result<usize, DraftError> {
        unreachable!("suffix pushes")
    }

    fn remaining(&self, _: usize) -> usize {
        16
    }
}

/// Words of 1 to 5 tokens out of 2,000, frequent ones more often.
fn prose(len: usize) -> Vec<Token> {
    let mut noise = 1u64;
    let mut random = move |below: u64| {
        noise = noise.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (noise >> 33) % below
    };
    let mut text = Vec::new();
    while text.len() < len {
        let word = random(2_000).min(random(2_000));
        text.extend((0..1 + word % 5).map(|index| (word * 7 + index * 131) as Token % 4_096));
    }
    text
}

fn benches(criterion: &mut Criterion) {
    for (name, text) in [("prose", prose(CONTEXT + STEPS)), ("loop", [7, 8, 9].repeat((CONTEXT + STEPS) / 3))] {
        let mut automaton = Automaton::default();
        for &token in &text {
            automaton.push(token);
        }
        println!("{name}: {:.0} bytes a token", automaton.bytes() as f64 / text.len() as f64);
        criterion.bench_function(&format!("suffix, {CONTEXT} tokens of {name}"), |bencher| {
            bencher.iter_custom(|count| time(&text, count));
        });
    }
}

/// Time of `count` proposals, each one token later than the last.
fn time(text: &[Token], count: u64) -> Duration {
    let mut left = count as usize;
    let mut spent = Duration::ZERO;
    while left > 0 {
        let host = FakeHost::new(ToyModel::new(64, 1)).shared().handle();
        let mut suffix = Suffix::new(SuffixOptions::default(), host).expect("the defaults");
        let mut input = ProposeInput::new(1, &text[..CONTEXT], 16);
        let mut propose = |input: &ProposeInput| {
            with_propose_batch(std::slice::from_ref(input), |batch| {
                suffix.propose(&batch, &mut Drafts::new(&mut Anything(0))).expect("a draft");
            });
        };
        propose(&input);
        for &token in text[CONTEXT..].iter().take(left) {
            input.tokens.push(token);
            input.output_index += 1;
            let start = Instant::now();
            propose(&input);
            spent += start.elapsed();
        }
        left -= left.min(text.len() - CONTEXT);
    }
    spent
}

criterion_group!(all, benches);
criterion_main!(all);
