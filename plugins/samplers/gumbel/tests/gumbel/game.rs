//! A toy target decoded under the sampler with some drafter: one sequence, step after step.

use foretoken_gumbel::Gumbel;
use foretoken_kernels::ops::{WarpScratch, gumbel_argmax, warp};
use foretoken_plugin_api::testkit::{RecordedDraft, ToyModel, VerifyInput, with_verify_batch};
use foretoken_plugin_api::{ChildMode, NodeId, NoiseKey, Sampler, SamplingParams, SeqId, Token};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafter {
    None,
    /// Knows the text that will come.
    Perfect,
    /// The token after the right one, always wrong.
    Wrong,
    /// Other tokens than the target would choose, now and then right.
    Poor,
    /// Two levels of three children and a third below one of them.
    Tree,
}

pub const DRAFTERS: [Drafter; 5] = [Drafter::None, Drafter::Perfect, Drafter::Wrong, Drafter::Poor, Drafter::Tree];

/// The token that plain decoding samples after `context`, with the noise of its index.
pub fn sampled(toy: &ToyModel, context: &[Token], sampling: SamplingParams, noise: NoiseKey) -> Token {
    let mut probs = vec![0.0; toy.vocab_size()];
    warp(&toy.logits(context), &sampling.into(), &mut probs, &mut WarpScratch::new()).expect("a distribution");
    gumbel_argmax(&probs, noise.for_output(context.len() as u32).into())
}

pub struct Game<'a> {
    pub toy: &'a ToyModel,
    pub sampling: SamplingParams,
    pub noise: NoiseKey,
}

impl Game<'_> {
    /// `len` tokens and the number of steps they took.
    pub fn decode(&self, sampler: &mut Gumbel, drafter: Drafter, len: usize) -> (Vec<Token>, usize) {
        let (mut output, mut steps) = (Vec::new(), 0);
        while output.len() < len {
            let draft = self.draft(drafter, &output);
            let paths = std::iter::once(None).chain((0..draft.len() as NodeId).map(Some));
            let logits = paths.map(|node| self.toy.logits(&[&output[..], &draft.path_tokens(node)].concat())).collect();
            let input = VerifyInput {
                id: SeqId(1),
                output_index: output.len() as u32,
                sampling: self.sampling,
                noise: self.noise,
                draft,
                logits,
            };
            let inputs = [input];
            let verdicts = with_verify_batch(&inputs, false, |batch, verdicts| sampler.verify(&batch, verdicts));
            output.extend(verdicts.expect("rows are distributions")[0].tokens(&inputs[0].draft));
            steps += 1;
        }
        output.truncate(len);
        (output, steps)
    }

    fn draft(&self, drafter: Drafter, output: &[Token]) -> RecordedDraft {
        let mut draft = RecordedDraft::default();
        let vocab = self.toy.vocab_size() as Token;
        let poor = |depth: u32| (output.len() as Token * 7 + depth * 5) % vocab;
        let mut parent = None;
        for depth in 0..4 {
            let path = [output, &draft.path_tokens(parent)].concat();
            let right = || sampled(self.toy, &path, self.sampling, self.noise);
            let token = match drafter {
                Drafter::None => return draft,
                Drafter::Perfect => right(),
                Drafter::Wrong => (right() + 1) % vocab,
                Drafter::Poor => poor(depth),
                Drafter::Tree => {
                    let first = poor(depth);
                    draft.add(parent, (first + 1) % vocab, ChildMode::Deterministic);
                    draft.add(parent, (first + 2) % vocab, ChildMode::Deterministic);
                    first
                }
            };
            parent = Some(draft.add(parent, token, ChildMode::Deterministic));
        }
        draft
    }
}
