//! Rows that share a pass do not disturb each other: chunks, several sequences, trees, repeated buffers.

use foretoken::model::{Decoder, ForwardBatch, ForwardBuffers, ForwardOut};
use foretoken_kernels::WeightDtype;
use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::ops::{AttentionSeq, PackedRows, TreePaths};
use serde_json::json;

use crate::folder::{Model, Random, config};
use crate::runner::{Runner, load, same_bits};

fn model() -> (Model, tempfile::TempDir) {
    let model = Model::random(config("Qwen3ForCausalLM", json!({"head_dim": 16})), 3);
    let folder = model.write();
    (model, folder)
}

#[test]
fn chunks_give_the_same_bits_as_one_pass() {
    let (_, folder) = model();
    for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
        let decoder = load(folder.path(), dtype);
        let tokens = Random(5).tokens(48, 101);
        let whole = Runner::new(&decoder).feed(&tokens, &[]).logits;
        for pieces in [[1; 48].as_slice(), &[20, 1, 1, 7, 19], &[47, 1]] {
            assert!(same_bits(&whole, &Runner::new(&decoder).feed_in(&tokens, pieces)), "{dtype} {pieces:?}");
        }
    }
}

/// Feeds `tokens` as a tree after a context, beside another sequence; logits of the asked rows.
fn feed_tree(decoder: &Decoder, context: &[u32], other: &[u32]) -> Vec<Vec<f32>> {
    let mut kv = KvStore::new(decoder.kv_shape(KvDtype::F32), 64);
    let mut buffers = ForwardBuffers::default();
    let context_slots: Vec<u32> = (0..context.len() as u32).map(|slot| 63 - slot).collect();
    let positions: Vec<u32> = (0..context.len() as u32).collect();
    let seqs = [AttentionSeq { context: &[], rows: 0..context.len(), new_slots: &context_slots, tree: None }];
    let batch = ForwardBatch {
        tokens: context,
        positions: &positions,
        slots: &context_slots,
        seqs: &seqs,
        logit_rows: &[],
        hidden_layers: &[],
    };
    let none = ForwardOut { logits: &mut [], hidden: &mut [] };
    decoder.forward(&batch, &mut kv.view_mut(), &mut buffers, none);

    // Rows 0..4 are `other`; then anchor 9, siblings 10 and 20, and 21 under 20.
    let at = context.len() as u32;
    let tokens = [other, &[9, 10, 20, 21]].concat();
    let positions: Vec<u32> = [0, 1, 2, 3, at, at + 1, at + 1, at + 2].to_vec();
    let slots: Vec<u32> = vec![7, 3, 5, 1, 20, 12, 18, 2];
    let tree = TreePaths { offsets: &[0, 1, 3, 5, 8], rows: &[0, 0, 1, 0, 2, 0, 2, 3] };
    let seqs = [
        AttentionSeq { context: &[], rows: 0..4, new_slots: &slots[..4], tree: None },
        AttentionSeq { context: &context_slots, rows: 4..8, new_slots: &slots[4..], tree: Some(tree) },
    ];
    let logit_rows = [7, 4, 5, 3];
    let batch = ForwardBatch {
        tokens: &tokens,
        positions: &positions,
        slots: &slots,
        seqs: &seqs,
        logit_rows: &logit_rows,
        hidden_layers: &[],
    };
    let vocab = decoder.architecture().vocab_size;
    let mut logits = vec![f32::NAN; 4 * vocab];
    let out = ForwardOut { logits: &mut logits, hidden: &mut [] };
    decoder.forward(&batch, &mut kv.view_mut(), &mut buffers, out);
    logits.chunks(vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn tree_rows_equal_their_own_chains_and_rows_come_in_the_order_asked() {
    let (_, folder) = model();
    let decoder = load(folder.path(), WeightDtype::F32);
    let context = Random(9).tokens(13, 101);
    let other = [4, 8, 15, 16];
    let got = feed_tree(&decoder, &context, &other);
    let chain = |tail: &[u32]| {
        let tokens = [context.as_slice(), tail].concat();
        Runner::new(&decoder).feed(&tokens, &[]).logits.pop().unwrap()
    };
    let want =
        [chain(&[9, 20, 21]), chain(&[9]), chain(&[9, 10]), Runner::new(&decoder).feed(&other, &[]).logits[3].clone()];
    for (row, (got, want)) in got.iter().zip(&want).enumerate() {
        assert!(same_bits(std::slice::from_ref(got), std::slice::from_ref(want)), "asked row {row}");
    }
}

#[test]
fn hidden_layers_come_in_any_order_and_match_the_operations() {
    let (model, folder) = model();
    let decoder = load(folder.path(), WeightDtype::F32);
    let tokens = Random(2).tokens(6, 101);
    let (width, layers) = (model.size("hidden_size"), 3);
    let fed = Runner::new(&decoder).feed(&tokens, &[layers, 1, layers - 1, 1]);
    let mut packed = PackedRows::new();
    for (hidden, logits) in fed.hidden.iter().zip(&fed.logits) {
        let place = |index: usize| &hidden[index * width..(index + 1) * width];
        assert_eq!(place(1), place(3));
        assert_ne!(place(1), place(2));
        let mut normed = vec![0.0; width];
        decoder.final_norm(place(2), &mut normed);
        assert_eq!(normed, place(0));
        let mut again = vec![0.0; logits.len()];
        decoder.lm_head(&normed, &mut packed, &mut again);
        assert!(same_bits(&[again], std::slice::from_ref(logits)));
    }
}

#[test]
#[should_panic(expected = "positions must be below the model's 64")]
fn a_position_beyond_the_context_is_refused() {
    let (_, folder) = model();
    Runner::new(&load(folder.path(), WeightDtype::F32)).feed(&[1; 65], &[]);
}
