//! Nothing is allocated once the scratch has grown; and what a row costs (ignored: run it on a quiet machine).

#[path = "../../../../counting.rs"]
mod counting;

use std::hint::black_box;
use std::time::Instant;

use counting::allocations;
use foretoken_gumbel::Gumbel;
use foretoken_kernels::{NoiseKey as KernelKey, noise};
use foretoken_plugin_api::types::verdict::DraftTree;
use foretoken_plugin_api::{
    ChildMode, NO_PARENT, NodeId, NoiseKey, Sampler, SamplingParams, SeqId, TensorView, Token, Verdicts, VerifyBatch,
    VerifySequence,
};

const NODES: usize = 4;

/// Rows of `sequences` chains of four tokens.
struct Rows {
    logits: Vec<f32>,
    vocab: usize,
}

impl Rows {
    fn new(vocab: usize, sequences: usize) -> Self {
        // Logits fall with the logarithm of a rank: as in language, some dozens of tokens make 0.95.
        let key = |row: usize, token: usize| KernelKey { seed: row as u64, completion: 0, stream: token as u64 };
        let rank = |row: usize, token: usize| 1.0 + (noise::bits(key(row, token), 0) % vocab as u32) as f32;
        let logit = |row: usize, token: usize| -2.0 * rank(row, token).ln();
        let rows = sequences * (NODES + 1);
        let logits = (0..rows * vocab).map(|i| logit(i / vocab, i % vocab)).collect();
        Self { logits, vocab }
    }

    fn verify(&self, sampler: &mut impl Sampler, sampling: SamplingParams, tokens: &[Token], step: u32) -> usize {
        let sequences = self.logits.len() / self.vocab / (NODES + 1);
        let prob_rows = [u32::MAX; NODES + 1];
        let parents: [NodeId; NODES] = [NO_PARENT, 0, 1, 2];
        let modes = [ChildMode::Deterministic; NODES + 1];
        let views: [VerifySequence<'_>; 8] = std::array::from_fn(|i| {
            let row = (i * (NODES + 1)) as u32;
            let tree = DraftTree::new(tokens, &parents, &modes, &prob_rows);
            VerifySequence::new(SeqId(i as u64), row, step, sampling, NoiseKey::new(i as u64, 0)).with_tree(tree)
        });
        let logits = TensorView::from_f32(&self.logits, sequences * (NODES + 1), self.vocab);
        let draft_probs = TensorView::from_f32(&[], 0, self.vocab);
        let (mut next_tokens, mut keep_lens, mut keep) = ([0; 8], [0; 8], [0; 8 * NODES]);
        let (next_tokens, keep_lens) = (&mut next_tokens[..sequences], &mut keep_lens[..sequences]);
        let mut verdicts = Verdicts::new(next_tokens, keep_lens, &mut keep[..sequences * NODES], NODES);
        let batch = VerifyBatch::new(logits, draft_probs, &views[..sequences]);
        sampler.verify(&batch, &mut verdicts).expect("rows are distributions");
        (0..sequences).map(|i| verdicts.get(i).0.len() + 1).sum()
    }
}

const SAMPLED: SamplingParams = SamplingParams { temperature: 1.0, top_k: 0, top_p: 0.95, min_p: 0.0 };

fn assert_steady(sampler: &mut impl Sampler) {
    let rows = Rows::new(512, 8);
    for sampling in [SamplingParams::GREEDY, SAMPLED, SamplingParams { top_k: 40, ..SAMPLED }] {
        rows.verify(sampler, sampling, &[1, 2, 3, 4], 0);
        let before = allocations();
        for step in 1..50 {
            black_box(rows.verify(sampler, sampling, &[step, 2, 3, 4], step));
        }
        assert_eq!(allocations() - before, 0, "{sampling:?}");
    }
}

#[test]
fn a_steady_state_call_allocates_nothing() {
    assert_steady(&mut Gumbel::default());
}

/// Microseconds for each token that a call commits.
fn time_per_row(sampler: &mut impl Sampler, sampling: SamplingParams, vocab: usize) -> f64 {
    let rows = Rows::new(vocab, 8);
    let mut round = || {
        let start = Instant::now();
        let committed: usize = (0..100).map(|step| rows.verify(sampler, sampling, &[1, 2, 3, 4], step)).sum();
        start.elapsed().as_secs_f64() * 1e6 / committed as f64
    };
    (0..20).map(|_| round()).fold(f64::INFINITY, f64::min)
}

#[test]
#[ignore = "a measurement"]
fn the_time_of_a_row() {
    for vocab in [4096, 151_936] {
        for (name, sampling) in [("greedy", SamplingParams::GREEDY), ("top_p 0.95", SAMPLED)] {
            let time = time_per_row(&mut Gumbel::default(), sampling, vocab);
            println!("vocab {vocab}, {name}: {time:.1} us per committed token");
        }
    }
}
