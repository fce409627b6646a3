//! Sequences flattened into the rows of one pass, for the target's steps and for the plugins' models alike.
//!
//! A row's place in its draft tree becomes its position (context + depth) and its path of ancestors. A chain needs
//! neither to be written out, so a long prefill chunk costs no quadratic list. Everything is reused from pass to pass.

use foretoken_kernels::blocks::KvViewMut;
use foretoken_kernels::ops::{AttentionSeq, TreePaths};
use foretoken_plugin_api::{ForwardSequence, LogitRows, NO_PARENT, Slot};

use super::decoder::{Decoder, ForwardBatch, ForwardBuffers, ForwardOut};
use crate::recycle::recycle;

/// The flattened rows of a pass, and the buffers of the decoder.
#[derive(Default)]
pub struct Rows {
    buffers: ForwardBuffers,
    seqs: Vec<AttentionSeq<'static>>,
    flat: Flat,
}

#[derive(Default)]
struct Flat {
    tokens: Vec<u32>,
    positions: Vec<u32>,
    slots: Vec<u32>,
    logit_rows: Vec<usize>,
    depths: Vec<u32>,
    path_offsets: Vec<u32>,
    path_rows: Vec<u32>,
    /// Per sequence: its first row and, for a tree, its first path offset.
    starts: Vec<(usize, Option<usize>)>,
}

impl Rows {
    /// One pass of `decoder` over `sequences`: logits for the rows that ask, hidden rows of all for who wants them.
    ///
    /// # Panics
    /// If a token, slot, position or size is out of range: the caller has checked them.
    pub fn forward(
        &mut self,
        decoder: &Decoder,
        sequences: &[ForwardSequence<'_>],
        kv: &mut KvViewMut<'_>,
        out: ForwardOut<'_>,
    ) {
        let Self { buffers, seqs: kept, flat } = self;
        flat.clear();
        for sequence in sequences {
            flat.add(sequence);
        }
        let mut seqs = recycle(std::mem::take(kept));
        seqs.extend(sequences.iter().zip(&flat.starts).map(|(sequence, start)| flat.view(sequence, *start)));
        let batch = ForwardBatch {
            tokens: &flat.tokens,
            positions: &flat.positions,
            slots: &flat.slots,
            seqs: &seqs,
            logit_rows: &flat.logit_rows,
        };
        decoder.forward(&batch, kv, buffers, out);
        *kept = recycle(seqs);
    }
}

impl Flat {
    fn clear(&mut self) {
        let Self { tokens, positions, slots, path_offsets, path_rows, .. } = self;
        [tokens, positions, slots, path_offsets, path_rows].into_iter().for_each(Vec::clear);
        self.logit_rows.clear();
        self.starts.clear();
    }

    fn add(&mut self, sequence: &ForwardSequence<'_>) {
        let first = self.tokens.len();
        let base = sequence.context().len() as u32;
        self.tokens.extend_from_slice(sequence.tokens());
        self.slots.extend_from_slice(Slot::as_u32s(sequence.slots()));
        let offset = sequence.parents().map(|parents| self.add_paths(parents));
        self.starts.push((first, offset));
        match sequence.parents() {
            None => self.positions.extend(base..base + sequence.tokens().len() as u32),
            Some(_) => self.positions.extend(self.depths.iter().map(|depth| base + depth)),
        }
        let end = self.tokens.len();
        match sequence.logits {
            LogitRows::None => {}
            LogitRows::Last => self.logit_rows.extend((first..end).last()),
            LogitRows::All => self.logit_rows.extend(first..end),
        }
    }

    /// Writes each row's path; returns where its offsets start.
    fn add_paths(&mut self, parents: &[u32]) -> usize {
        let start = self.path_offsets.len();
        self.depths.clear();
        self.path_offsets.push(self.path_rows.len() as u32);
        for (row, &parent) in (0u32..).zip(parents) {
            if parent != NO_PARENT {
                let from = self.path_offsets[start + parent as usize] as usize;
                let to = self.path_offsets[start + parent as usize + 1] as usize;
                self.path_rows.extend_from_within(from..to);
            }
            self.depths.push(if parent == NO_PARENT { 0 } else { self.depths[parent as usize] + 1 });
            self.path_rows.push(row);
            self.path_offsets.push(self.path_rows.len() as u32);
        }
        start
    }

    fn view<'a>(&'a self, sequence: &ForwardSequence<'a>, start: (usize, Option<usize>)) -> AttentionSeq<'a> {
        let (first, paths) = start;
        let count = sequence.tokens().len();
        AttentionSeq {
            context: Slot::as_u32s(sequence.context()),
            rows: first..first + count,
            new_slots: &self.slots[first..first + count],
            tree: paths.map(|offset| TreePaths {
                offsets: &self.path_offsets[offset..=offset + count],
                rows: &self.path_rows,
            }),
        }
    }
}
