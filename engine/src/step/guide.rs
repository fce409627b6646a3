//! Verb 5: shapes the rows that verification will read: guidance for pairs, then penalties over prefix and ancestors.
//!
//! The guided rows of a pair take the place of the conditional sequence's; nothing reads the unconditional one's after
//! that. Without a pair nothing is mixed. Penalties are applied here, once, so
//! that no sampler can forget them and every draft row sees the tokens on its own path.

use foretoken_kernels::ops::{self, Penalties, penalise};
use foretoken_plugin_api::NO_PARENT;

use crate::engine::Core;
use crate::sequence::Branch;

/// Shapes every row of logits in place.
pub fn guide(core: &mut Core) {
    let vocab = core.target.decoder.architecture().vocab_size;
    let buffers = &mut core.buffers;
    let mut decoding = buffers.entries.iter().filter(|entry| entry.decodes);
    while let Some(entry) = decoding.next() {
        let sequence = &core.queue[entry.index];
        if sequence.branch == Branch::Conditional
            && let Some(other) = decoding.next()
        {
            // The anchors of a pair decode together, and stand side by side.
            let (before, uncond) = buffers.logits.split_at_mut(other.first_logit * vocab);
            let cond = &mut before[entry.first_logit * vocab..];
            let uncond = &uncond[..cond.len()];
            ops::guide(cond, uncond, sequence.sampling.guidance_scale);
        }
        let penalties = &sequence.sampling.penalties;
        if *penalties == Penalties::default() {
            continue;
        }
        let tree = core.drafts.tree(entry.tree);
        let (prompt, output) = sequence.tokens.split_at(sequence.prompt_len);
        for row in 0..=tree.len() {
            buffers.path.clear();
            let mut node = row.checked_sub(1).map_or(NO_PARENT, |node| node as u32);
            while node != NO_PARENT {
                buffers.path.push(tree.tokens[node as usize]);
                node = tree.parents[node as usize];
            }
            let start = (entry.first_logit + row) * vocab;
            let logits = &mut buffers.logits[start..start + vocab];
            let output = output.iter().chain(&buffers.path).copied();
            penalise(logits, &[], penalties, prompt.iter().copied(), output, &mut buffers.penalties);
        }
    }
}

#[cfg(test)]
#[path = "guide_tests.rs"]
mod tests;
