//! Log-probabilities of given tokens under the target: no sampling, no drafts, one chunked prefill.

use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_plugin_api::{ForwardSequence, LogitRows, Slot, Token};

use crate::model::rows::Rows;
use crate::model::{Decoder, ForwardOut};

/// Rows per pass: their logits are `[rows, vocab]`, so a long text is not scored in one go.
const CHUNK: usize = 256;

/// The natural-log probability of each token given those before it; the first has none. `kv_dtype` as in a run.
///
/// # Panics
/// If a token is not in the vocabulary or there are more tokens than positions: the caller has checked.
pub fn score(decoder: &Decoder, kv_dtype: KvDtype, tokens: &[Token]) -> Vec<Option<f64>> {
    let vocab = decoder.architecture().vocab_size;
    let mut kv = KvStore::new(decoder.architecture().kv_shape(kv_dtype), tokens.len());
    let slots: Vec<Slot> = (0..tokens.len() as u32).map(Slot).collect();
    let mut rows = Rows::default();
    let mut logits = Vec::new();
    let mut scores = vec![None];
    for start in (0..tokens.len()).step_by(CHUNK) {
        let end = (start + CHUNK).min(tokens.len());
        logits.resize((end - start) * vocab, 0.0);
        let chunk = ForwardSequence::chain(&tokens[start..end], &slots[..start], &slots[start..end], LogitRows::All);
        let out = ForwardOut { logits: &mut logits, hidden: &mut () };
        rows.forward(decoder, &[chunk], &mut kv.view_mut(), out);
        let next = tokens[start + 1..].iter().zip(logits.chunks_exact(vocab));
        scores.extend(next.take(end - start).map(|(token, row)| Some(log_prob(row, *token))));
    }
    scores.truncate(tokens.len());
    scores
}

fn log_prob(row: &[f32], token: Token) -> f64 {
    let max = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = row.iter().map(|logit| f64::from(logit - max).exp()).sum();
    f64::from(row[token as usize] - max) - sum.ln()
}
