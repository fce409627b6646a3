//! Scores, softmax and the weighted sum in f64, one query at a time.
//!
//! Two passes instead of an online softmax, and the list of slots written out, so that neither tiles nor sharing can
//! hide a mistake. Keys and values are read back as stored, since their rounding is the store's business.

use super::{AttentionSeq, AttentionShape};
use crate::blocks::KvLayer;

/// `[rows, heads * head_dim]`; rows of no sequence are 0.
pub fn attention(shape: &AttentionShape, q: &[f32], kv: KvLayer<'_>, seqs: &[AttentionSeq<'_>]) -> Vec<f64> {
    let mut out = vec![0.0; q.len()];
    for seq in seqs {
        for row in 0..seq.rows.len() {
            let len = seq.attended_len(row);
            let from = len - len.min(shape.window().unwrap_or(len));
            let slots: Vec<u32> = (from..len).map(|i| seq.attended_slot(row, i)).collect();
            for head in 0..shape.heads() {
                let start = (seq.rows.start + row) * shape.q_dim() + head * shape.head_dim();
                let range = start..start + shape.head_dim();
                let kv_head = head / (shape.heads() / shape.kv_heads());
                attend(shape, &q[range.clone()], kv, (&slots, kv_head), &mut out[range]);
            }
        }
    }
    out
}

fn attend(shape: &AttentionShape, q: &[f32], kv: KvLayer<'_>, from: (&[u32], usize), out: &mut [f64]) {
    let (slots, kv_head) = from;
    let read = |is_value, slot| {
        let mut row = vec![0.0; shape.kv_dim()];
        kv.read(is_value, slot, &mut row);
        row[kv_head * shape.head_dim()..(kv_head + 1) * shape.head_dim()].to_vec()
    };
    let dot = |key: Vec<f32>| -> f64 { q.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(k)).sum() };
    let scores: Vec<f64> = slots.iter().map(|slot| dot(read(false, *slot)) * f64::from(shape.scale)).collect();
    let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let total: f64 = scores.iter().map(|s| (s - greatest).exp()).sum();
    for (slot, score) in slots.iter().zip(scores) {
        let weight = (score - greatest).exp() / total;
        for (out, value) in out.iter_mut().zip(read(true, *slot)) {
            *out += weight * f64::from(value);
        }
    }
}
