//! Drives the decoder as the engine does: slots, positions and sequences, on slots deliberately out of order.

use std::path::Path;

use foretoken::model::{Decoder, ForwardBatch, ForwardBuffers, ForwardOut, HiddenSink};
use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::ops::AttentionSeq;
use foretoken_kernels::{Exec, WeightDtype};

const NUM_SLOTS: usize = 97;

pub fn load(folder: &Path, dtype: WeightDtype) -> Decoder {
    Decoder::load(folder, dtype, Exec::cpu(2).expect("an exec")).expect("a valid folder")
}

/// One sequence with its keys and values.
pub struct Runner<'a> {
    decoder: &'a Decoder,
    kv: KvStore,
    buffers: ForwardBuffers,
    slots: Vec<u32>,
}

/// Rows of logits, and per asked layer rows of hidden states.
pub struct Fed {
    pub logits: Vec<Vec<f32>>,
    /// `[rows][asked layers * width]`.
    pub hidden: Vec<Vec<f32>>,
}

/// Keeps the hidden rows of some layers, those of a row one after the other.
struct Asked<'a> {
    layers: &'a [usize],
    slots: &'a [u32],
    rows: Vec<Vec<f32>>,
}

impl HiddenSink for Asked<'_> {
    fn wants(&self, layer: usize) -> bool {
        self.layers.contains(&layer)
    }

    fn take(&mut self, _: usize, rows: &[f32], slots: &[u32]) {
        assert_eq!(slots, self.slots);
        let values = rows.chunks(rows.len() / slots.len());
        self.rows.iter_mut().zip(values).for_each(|(row, values)| row.extend(values));
    }
}

impl<'a> Runner<'a> {
    pub fn new(decoder: &'a Decoder) -> Self {
        let kv = KvStore::new(decoder.architecture().kv_shape(KvDtype::F32), NUM_SLOTS);
        Self { decoder, kv, buffers: ForwardBuffers::default(), slots: Vec::new() }
    }

    /// Feeds `tokens` as the sequence's next ones; logits of all of them, and the hidden rows asked for.
    pub fn feed(&mut self, tokens: &[u32], hidden_layers: &[usize]) -> Fed {
        let before = self.slots.len();
        let positions: Vec<u32> = (before..before + tokens.len()).map(|position| position as u32).collect();
        // 31 is coprime to 97, so slots jump about and never repeat.
        self.slots.extend(positions.iter().map(|position| (position * 31 + 5) % NUM_SLOTS as u32));
        let (context, slots) = self.slots.split_at(before);
        let seqs = [AttentionSeq { context, rows: 0..tokens.len(), new_slots: slots, tree: None }];
        let logit_rows: Vec<usize> = (0..tokens.len()).collect();
        let facts = self.decoder.architecture();
        let mut logits = vec![f32::NAN; tokens.len() * facts.vocab_size];
        let mut asked = Asked { layers: hidden_layers, slots, rows: vec![Vec::new(); tokens.len()] };
        let batch = ForwardBatch { tokens, positions: &positions, slots, seqs: &seqs, logit_rows: &logit_rows };
        let out = ForwardOut { logits: &mut logits, hidden: &mut asked };
        self.decoder.forward(&batch, &mut self.kv.view_mut(), &mut self.buffers, out);
        let logits = logits.chunks(facts.vocab_size).map(<[f32]>::to_vec).collect();
        Fed { logits, hidden: asked.rows }
    }

    /// Feeds `tokens` in pieces of these sizes; all logits.
    pub fn feed_in(&mut self, tokens: &[u32], pieces: &[usize]) -> Vec<Vec<f32>> {
        let mut rest = tokens;
        let mut logits = Vec::new();
        for &piece in pieces {
            let (now, later) = rest.split_at(piece);
            logits.extend(self.feed(now, &[]).logits);
            rest = later;
        }
        assert!(rest.is_empty(), "pieces must add up");
        logits
    }
}

/// The largest difference, and a check that there is something to compare.
pub fn max_abs_error(got: &[Vec<f32>], want: &[Vec<f64>]) -> f64 {
    assert_eq!((got.len(), got[0].len()), (want.len(), want[0].len()), "rows and columns");
    let spread = want.iter().flatten().fold(0.0_f64, |most, value| most.max(value.abs()));
    assert!(spread > 0.5, "logits are too small to compare: {spread}");
    let pairs = got.iter().flatten().zip(want.iter().flatten());
    // NaN must not pass as zero.
    pairs
        .map(|(got, want)| (f64::from(*got) - want).abs())
        .fold(0.0, |most, error| if error <= most { most } else { error })
}

/// Whether two sets of rows are the same bits.
pub fn same_bits(left: &[Vec<f32>], right: &[Vec<f32>]) -> bool {
    let bits = |rows: &[Vec<f32>]| rows.iter().flatten().map(|value| value.to_bits()).collect::<Vec<_>>();
    bits(left) == bits(right)
}
