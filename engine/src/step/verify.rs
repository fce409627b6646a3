//! Verb 6: the sampler keeps a path through each tree and chooses the next token.
//!
//! Its verdict is checked: a path must descend from the anchor, a token must exist. A verdict that does not hold ends
//! the sequence, because no other part can say what its tokens should have been.

use std::time::Instant;

use foretoken_plugin_api::types::verdict::DraftTree;
use foretoken_plugin_api::{NO_PARENT, NodeId, TensorView, Verdicts, VerifyBatch, VerifySequence};

use super::Fault;
use crate::drafts::Tree;
use crate::engine::Core;
use crate::recycle::recycle;
use crate::sequence::{self, Branch};

/// Fills each decoding entry's kept path and next token.
pub fn verify(core: &mut Core) -> Result<(), Fault> {
    let start = Instant::now();
    let vocab = core.target.decoder.architecture().vocab_size;
    let buffers = &mut core.buffers;
    let mut batch: Vec<VerifySequence<'_>> = recycle(std::mem::take(&mut buffers.verify));
    let mut width = 0;
    for entry in buffers.entries.iter_mut().filter(|entry| entry.decodes) {
        let sequence = &core.queue[entry.index];
        if sequence.branch == Branch::Unconditional {
            continue;
        }
        let tree = core.drafts.tree(entry.tree);
        width = width.max(tree.len());
        entry.verdict = Some(batch.len());
        let (params, noise) = (sequence.sampling.params, sequence.noise());
        let row = entry.first_logit as u32;
        let verify = VerifySequence::new(sequence.id, row, sequence.output_index(), params, noise);
        batch.push(verify.with_tree(DraftTree::new(&tree.tokens, &tree.parents, &tree.modes, &tree.prob_rows)));
    }
    let count = batch.len();
    buffers.next_tokens.clear();
    // A token that no sampler can mean, so that a forgotten verdict is found.
    buffers.next_tokens.resize(count, u32::MAX);
    buffers.keep_lens.clear();
    buffers.keep_lens.resize(count, 0);
    buffers.keep.resize(count * width, 0);
    let (probs, prob_rows) = core.drafts.probs();
    let logits = TensorView::from_f32(&buffers.logits, buffers.logit_rows, vocab);
    let view = VerifyBatch::new(logits, TensorView::from_f32(probs, prob_rows, vocab), &batch);
    let mut verdicts = Verdicts::new(&mut buffers.next_tokens, &mut buffers.keep_lens, &mut buffers.keep, width);
    let result = if count == 0 { Ok(()) } else { core.sampler.verify(view, &mut verdicts) };
    buffers.verify = recycle(batch);
    buffers.times.verify = start.elapsed();
    result.map_err(|error| Fault::Step(format!("sampler `{}`: {error}", core.config.sampler.name)))?;
    take_verdicts(core, width, vocab);
    Ok(())
}

fn take_verdicts(core: &mut Core, width: usize, vocab: usize) {
    let buffers = &mut core.buffers;
    buffers.kept.clear();
    let mut last = (0..0, None);
    for entry in &mut buffers.entries {
        if entry.decodes && core.queue[entry.index].branch == Branch::Unconditional {
            (entry.kept, entry.next_token) = last.clone();
        }
        let Some(verdict) = entry.verdict else { continue };
        let len = buffers.keep_lens[verdict] as usize;
        let path = &buffers.keep[verdict * width..verdict * width + len];
        let next = buffers.next_tokens[verdict];
        if !descends(core.drafts.tree(entry.tree), path) || next as usize >= vocab {
            let name = &core.config.sampler.name;
            let error =
                format!("sampler `{name}`: its verdict (path {path:?}, next token {next}) is not one of this tree");
            sequence::fail(&mut core.queue, entry.index, error);
            continue;
        }
        let start = buffers.kept.len();
        buffers.kept.extend_from_slice(path);
        entry.kept = start..buffers.kept.len();
        entry.next_token = Some(next);
        last = (entry.kept.clone(), entry.next_token);
    }
}

/// Whether `path` leads from the anchor downwards, a child at a time.
fn descends(tree: &Tree, path: &[NodeId]) -> bool {
    let mut parent = NO_PARENT;
    path.iter().all(|&node| {
        let child = tree.parents.get(node as usize) == Some(&parent);
        parent = node;
        child
    })
}
