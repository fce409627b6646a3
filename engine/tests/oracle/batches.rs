//! Rows that share a pass do not disturb each other: chunks, several sequences, trees, repeated buffers.

use foretoken::model::{Decoder, ForwardBatch, ForwardBuffers, ForwardOut};
use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::ops::{AttentionSeq, PackedRows, TreePaths};
use foretoken_kernels::{Exec, SimdLevel, WeightDtype};
use serde_json::json;

use crate::folder::{Model, Random, config};
use crate::runner::{Runner, load, same_bits};

fn model() -> (Model, tempfile::TempDir) {
    let model = Model::random(config("Qwen3ForCausalLM", json!({"head_dim": 16})), 3);
    let folder = model.write();
    (model, folder)
}

/// Every format at every SIMD level on 1, 2 and 5 threads: a level's bits depend on nothing else.
fn every_way(check: impl Fn(&Decoder, &str)) {
    let (_, folder) = model();
    for dtype in WeightDtype::ALL {
        for level in SimdLevel::available() {
            for threads in [1, 2, 5] {
                let exec = Exec::cpu(threads).and_then(|exec| exec.with_simd(level)).expect("a level of this machine");
                let decoder = Decoder::load(folder.path(), dtype, exec).expect("a valid folder");
                check(&decoder, &format!("{dtype} {level} {threads} threads"));
            }
        }
    }
}

#[test]
fn chunks_give_the_same_bits_as_one_pass() {
    let tokens = Random(5).tokens(64, 101);
    every_way(|decoder, way| {
        let whole = Runner::new(decoder).feed(&tokens, &[]).logits;
        for pieces in [[1; 64].as_slice(), &[20, 1, 1, 7, 35], &[63, 1], &[7; 9]] {
            let fed: usize = pieces.iter().sum();
            let got = Runner::new(decoder).feed_in(&tokens[..fed], pieces);
            assert!(same_bits(&whole[..fed], &got), "{way} {pieces:?}");
        }
    });
}

/// 32 sequences in one pass, each a row behind its own context, against each alone.
#[test]
fn a_row_among_32_has_the_bits_of_the_row_alone() {
    every_way(|decoder, way| {
        let vocab = decoder.architecture().vocab_size;
        let tokens = Random(8).tokens(96, 101);
        let mut kv = KvStore::new(decoder.architecture().kv_shape(KvDtype::F32), 96);
        let mut buffers = ForwardBuffers::default();
        // Sequence i has slots 3i to 3i + 2: two tokens of context, then the row.
        let slots: Vec<u32> = (0..96).collect();
        let mut pass = |count: usize, from: usize, to: usize| {
            let rows: Vec<usize> = (0..count).flat_map(|seq| (3 * seq + from)..(3 * seq + to)).collect();
            let row_slots: Vec<u32> = rows.iter().map(|row| slots[*row]).collect();
            let seqs: Vec<AttentionSeq<'_>> = (0..count)
                .map(|seq| AttentionSeq {
                    context: &slots[3 * seq..3 * seq + from],
                    rows: seq * (to - from)..(seq + 1) * (to - from),
                    new_slots: &slots[3 * seq + from..3 * seq + to],
                    tree: None,
                })
                .collect();
            let logit_rows: Vec<usize> = (0..rows.len()).collect();
            let mut logits = vec![f32::NAN; rows.len() * vocab];
            let batch = ForwardBatch {
                tokens: &rows.iter().map(|row| tokens[*row]).collect::<Vec<_>>(),
                positions: &rows.iter().map(|row| (row % 3) as u32).collect::<Vec<_>>(),
                slots: &row_slots,
                seqs: &seqs,
                logit_rows: &logit_rows,
            };
            let out = ForwardOut { logits: &mut logits, hidden: &mut () };
            decoder.forward(&batch, &mut kv.view_mut(), &mut buffers, out);
            logits.chunks(vocab).map(<[f32]>::to_vec).collect::<Vec<_>>()
        };
        pass(32, 0, 2);
        let together = pass(32, 2, 3);
        for (seq, row) in together.iter().enumerate().step_by(5) {
            let alone = Runner::new(decoder).feed(&tokens[3 * seq..3 * seq + 3], &[]).logits.pop().unwrap();
            assert!(same_bits(std::slice::from_ref(row), &[alone]), "{way}: sequence {seq}");
        }
    });
}

/// Feeds `tokens` as a tree after a context, beside another sequence; logits of the asked rows.
fn feed_tree(decoder: &Decoder, context: &[u32], other: &[u32]) -> Vec<Vec<f32>> {
    let mut kv = KvStore::new(decoder.architecture().kv_shape(KvDtype::F32), 64);
    let mut buffers = ForwardBuffers::default();
    let context_slots: Vec<u32> = (0..context.len() as u32).map(|slot| 63 - slot).collect();
    let positions: Vec<u32> = (0..context.len() as u32).collect();
    let seqs = [AttentionSeq { context: &[], rows: 0..context.len(), new_slots: &context_slots, tree: None }];
    let batch =
        ForwardBatch { tokens: context, positions: &positions, slots: &context_slots, seqs: &seqs, logit_rows: &[] };
    let none = ForwardOut { logits: &mut [], hidden: &mut () };
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
    let batch =
        ForwardBatch { tokens: &tokens, positions: &positions, slots: &slots, seqs: &seqs, logit_rows: &logit_rows };
    let vocab = decoder.architecture().vocab_size;
    let mut logits = vec![f32::NAN; 4 * vocab];
    let out = ForwardOut { logits: &mut logits, hidden: &mut () };
    decoder.forward(&batch, &mut kv.view_mut(), &mut buffers, out);
    logits.chunks(vocab).map(<[f32]>::to_vec).collect()
}

#[test]
fn tree_rows_equal_their_own_chains_and_rows_come_in_the_order_asked() {
    every_way(|decoder, way| {
        let context = Random(9).tokens(13, 101);
        let other = [4, 8, 15, 16];
        let got = feed_tree(decoder, &context, &other);
        let fed = |tokens: &[u32]| Runner::new(decoder).feed(tokens, &[]).logits.pop().unwrap();
        let chain = |tail: &[u32]| fed(&[context.as_slice(), tail].concat());
        let want = [chain(&[9, 20, 21]), chain(&[9]), chain(&[9, 10]), fed(&other)];
        for (row, (got, want)) in got.iter().zip(&want).enumerate() {
            assert!(same_bits(std::slice::from_ref(got), std::slice::from_ref(want)), "{way}: asked row {row}");
        }
    });
}

#[test]
fn hidden_rows_of_the_asked_layers_match_the_operations() {
    let (model, folder) = model();
    let decoder = load(folder.path(), WeightDtype::F32);
    let tokens = Random(2).tokens(6, 101);
    let (width, layers) = (model.size("hidden_size"), 3);
    let fed = Runner::new(&decoder).feed(&tokens, &[1, layers - 1, layers]);
    let mut packed = PackedRows::new();
    for (hidden, logits) in fed.hidden.iter().zip(&fed.logits) {
        assert_eq!(hidden.len(), 3 * width);
        let place = |index: usize| &hidden[index * width..(index + 1) * width];
        assert_ne!(place(0), place(1));
        let mut normed = vec![0.0; width];
        decoder.final_norm(place(1), &mut normed);
        assert_eq!(normed, place(2));
        let mut again = vec![0.0; logits.len()];
        decoder.lm_head(&normed, &mut packed, &mut again);
        assert!(same_bits(&[again], std::slice::from_ref(logits)));
    }
    assert!(Runner::new(&decoder).feed(&tokens, &[]).hidden.iter().all(Vec::is_empty));
}

#[test]
#[should_panic(expected = "positions must be below the model's 64")]
fn a_position_beyond_the_context_is_refused() {
    let (_, folder) = model();
    Runner::new(&load(folder.path(), WeightDtype::F32)).feed(&[1; 65], &[]);
}
