//! SentencePiece BPE (`tokenizer.ggml.model = "llama"`): Llama 2, Mistral and their kin.
//!
//! Neighbours: `gguf` reads the vocabulary and assembles the stages. The file has scores where `tokenizers` wants
//! merges. SentencePiece joins the adjacent pair whose union scores highest; BPE joins the pair whose merge ranks first;
//! so the merges are all splits of every piece into two pieces, ranked by the union's score, as transformers'
//! `convert_slow_tokenizer.generate_merges` makes them. `tokenizers`' Unigram would be a different algorithm (the best
//! sum of scores), and gives other tokens.

use std::collections::HashMap;

use serde_json::{Value, json};
use tokenizers::models::bpe::{BPE, Vocab};

use super::{Kind, Stages, Vocabulary, malformed};
use crate::model::Gguf;
use crate::text::tokenizer::TokenizerError;

pub(super) fn stages(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Stages, TokenizerError> {
    let scores: Vec<f64> = gguf.need("tokenizer.ggml.scores")?;
    if scores.len() != vocabulary.texts.len() {
        let (got, expected) = (scores.len(), vocabulary.texts.len());
        let reason = format!("tokenizer.ggml.scores has {got} entries, expected {expected} as tokens");
        return Err(malformed(gguf.path(), reason));
    }
    let vocab: Vocab = vocabulary.iter().map(|(id, text, _)| (text.to_owned(), id)).collect();
    let mut builder = BPE::builder()
        .vocab_and_merges(vocab, merges(vocabulary, &scores))
        .fuse_unk(true)
        .byte_fallback(vocabulary.kinds.contains(&Kind::Byte));
    if let Some((_, unknown, _)) = vocabulary.iter().find(|(_, _, kind)| *kind == Kind::Unknown) {
        builder = builder.unk_token(unknown.to_owned());
    }
    let prefix = gguf.get("tokenizer.ggml.add_space_prefix")?.unwrap_or(true);
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    let mut normalizers = vec![replace(" ", "▁")];
    let mut decoders = vec![replace("▁", " "), json!({"type": "ByteFallback"}), json!({"type": "Fuse"})];
    if prefix {
        normalizers.insert(0, json!({"type": "Prepend", "prepend": "▁"}));
        decoders.push(json!({"type": "Strip", "content": " ", "start": 1, "stop": 0}));
    }
    Ok(Stages {
        model: builder.build().map_err(|error| malformed(gguf.path(), error))?,
        normalizer: json!({"type": "Sequence", "normalizers": normalizers}),
        pre_tokenizer: Value::Null,
        decoder: json!({"type": "Sequence", "decoders": decoders}),
        add_bos: true,
    })
}

/// Every split of a piece into two pieces, best first: by the piece's score, then the longer left half; among equals
/// in order of the pieces' ids.
fn merges(vocabulary: &Vocabulary, scores: &[f64]) -> Vec<(String, String)> {
    let is_text = |kind: Kind| matches!(kind, Kind::Normal | Kind::UserDefined | Kind::Unused);
    let texts = || vocabulary.iter().filter(|(_, _, kind)| is_text(*kind));
    let ids: HashMap<&str, u32> = texts().map(|(id, text, _)| (text, id)).collect();
    let mut found = Vec::new();
    for (id, piece, _) in texts() {
        let first = found.len();
        let (mut left_len, len) = (0_usize, piece.chars().count());
        for (at, _) in piece.char_indices().skip(1) {
            left_len += 1;
            let (left, right) = piece.split_at(at);
            if let (Some(left_id), Some(right_id)) = (ids.get(left), ids.get(right)) {
                found.push((scores[id as usize], left_len, len - left_len, (*left_id, *right_id)));
            }
        }
        found[first..].sort_by_key(|(.., halves)| *halves);
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)).then(b.2.cmp(&a.2)));
    let text = |id: u32| vocabulary.texts[id as usize].clone();
    found.into_iter().map(|(.., (left, right))| (text(left), text(right))).collect()
}
