//! SentencePiece tokenizers inside GGUF files: a vocabulary of substrings with scores in random order, which asks for
//! unlikely merges, against `tokenizers`' own pipeline and against SentencePiece's rule written out.

use std::collections::HashMap;

use candle_core::quantized::gguf_file::Value;
use serde_json::{Value as Json, json};

use crate::folder::Random;
use crate::gguf_file::{GgufFile, text};
use crate::gguf_text::{SNIPPETS, assert_equal, open, open_json, strings};

/// A SentencePiece vocabulary: three special tokens, the bytes, one user-defined token, and substrings of a text.
struct Pieces {
    entries: Vec<(String, i32)>,
    scores: Vec<f32>,
}

impl Pieces {
    fn new() -> Self {
        let mut entries = vec![("<unk>".to_owned(), 2), ("<s>".to_owned(), 3), ("</s>".to_owned(), 3)];
        entries.extend((0..256).map(|byte| (format!("<0x{byte:02X}>"), 6)));
        entries.push(("[INST]".to_owned(), 4));
        let words = SNIPPETS.map(|snippet| snippet.replace(' ', "▁")).join("▁");
        let letters: Vec<char> = words.chars().filter(|letter| !"🎉€\t\n".contains(*letter)).collect();
        for len in 1..=5 {
            for piece in letters.windows(len).map(|window| window.iter().collect::<String>()) {
                if !entries.iter().any(|(known, _)| *known == piece) {
                    entries.push((piece, 1));
                }
            }
        }
        let mut scores: Vec<f32> = (0..entries.len()).map(|rank| -(rank as f32)).collect();
        let mut random = Random(23);
        (1..scores.len()).rev().for_each(|last| scores.swap(last, random.below(last as u32 + 1) as usize));
        Self { entries, scores }
    }

    fn file(&self) -> GgufFile {
        let mut file = GgufFile { metadata: Vec::new(), tensors: Vec::new() };
        file.set("tokenizer.ggml.model", text("llama"));
        file.set("tokenizer.ggml.tokens", Value::Array(self.entries.iter().map(|(piece, _)| text(piece)).collect()));
        file.set(
            "tokenizer.ggml.token_type",
            Value::Array(self.entries.iter().map(|(_, kind)| Value::I32(*kind)).collect()),
        );
        file.set("tokenizer.ggml.scores", Value::Array(self.scores.iter().map(|score| Value::F32(*score)).collect()));
        file.set("tokenizer.ggml.bos_token_id", Value::U32(1));
        file.set("tokenizer.ggml.eos_token_id", Value::U32(2));
        file
    }

    fn ids(&self) -> HashMap<&str, u32> {
        (0..).zip(&self.entries).map(|(id, (piece, _))| (piece.as_str(), id)).collect()
    }

    fn text_ids(&self) -> HashMap<&str, u32> {
        let text = |id: &u32| matches!(self.entries[*id as usize].1, 1 | 4);
        self.ids().into_iter().filter(|(_, id)| text(id)).collect()
    }

    /// What transformers' conversion of a Llama tokenizer writes.
    fn json(&self) -> Json {
        let ids = self.text_ids();
        let mut splits = Vec::new();
        for (piece, id) in &ids {
            for (at, _) in piece.char_indices().skip(1) {
                let (left, right) = piece.split_at(at);
                if ids.contains_key(left) && ids.contains_key(right) {
                    splits.push((self.scores[*id as usize], left.chars().count(), [left, right]));
                }
            }
        }
        // Scores differ, so only the splits of one piece compare by length: the longer left half first.
        splits.sort_by(|a, b| b.0.total_cmp(&a.0).then(b.1.cmp(&a.1)));
        let special = |id: u32, content: &str, special: bool| {
            json!({"id": id, "content": content, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": special})
        };
        let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
        json!({"version": "1.0", "truncation": null, "padding": null,
            "added_tokens": [special(0, "<unk>", true), special(1, "<s>", true), special(2, "</s>", true),
                special(259, "[INST]", false)],
            "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
            "pre_tokenizer": null,
            "post_processor": {"type": "TemplateProcessing", "pair": [{"Sequence": {"id": "A", "type_id": 0}}],
                "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
                "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
            "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
            "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
                "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
                "vocab": self.ids(), "merges": splits.iter().map(|(.., pair)| pair).collect::<Vec<_>>()}})
    }

    /// SentencePiece's rule: while any two neighbours join to a piece, join the best-scored such pair, the first of
    /// equals.
    fn tokens(&self, text: &str) -> Vec<u32> {
        let ids = self.text_ids();
        let mut parts: Vec<String> = text.chars().map(String::from).collect();
        loop {
            let joined = parts.windows(2).map(|pair| ids.get(pair.concat().as_str()));
            let scored = joined.enumerate().filter_map(|(at, id)| Some((self.scores[*id? as usize], at)));
            let Some((_, at)) = scored.max_by(|a, b| a.0.total_cmp(&b.0).then(b.1.cmp(&a.1))) else { break };
            let right = parts.remove(at + 1);
            parts[at].push_str(&right);
        }
        let bytes = |part: &str| part.bytes().map(|byte| 3 + u32::from(byte)).collect::<Vec<_>>();
        parts.iter().flat_map(|part| ids.get(part.as_str()).map_or_else(|| bytes(part), |id| vec![*id])).collect()
    }
}

#[test]
fn sentencepiece_tokenizers_equal_their_json_and_the_rule() {
    let pieces = Pieces::new();
    let vocab_size = pieces.entries.len();
    let tokenizer = open(&pieces.file(), vocab_size);
    assert_equal(
        "sentencepiece",
        &tokenizer,
        &open_json(&pieces.json(), vocab_size),
        &["<s>", "</s>", "<unk>", "[INST]"],
    );
    let mut unprefixed = pieces.file();
    unprefixed.set("tokenizer.ggml.add_space_prefix", Value::Bool(false));
    let unprefixed = open(&unprefixed, vocab_size);
    let mut joined = 0;
    for text in strings(&[]).into_iter().filter(|text| !text.is_empty()) {
        let marked = text.replace(' ', "▁");
        let want = pieces.tokens(&format!("▁{marked}"));
        assert_eq!(tokenizer.encode_rendered(&text).unwrap(), want, "{text:?}");
        assert_eq!(tokenizer.encode(&text).unwrap(), [&[1], want.as_slice()].concat());
        assert_eq!(tokenizer.decode(&want).unwrap(), text);
        let want = pieces.tokens(&marked);
        assert_eq!(unprefixed.encode_rendered(&text).unwrap(), want, "{text:?}");
        assert_eq!(unprefixed.decode(&want).unwrap(), text);
        joined += want.iter().filter(|id| **id >= 260 && pieces.entries[**id as usize].0.chars().count() > 2).count();
    }
    assert!(joined > 500, "few pieces were joined: {joined}");
    assert_eq!(
        (tokenizer.bos(), tokenizer.eos(), tokenizer.special()),
        (Some(1), [2].as_slice(), [0, 1, 2].as_slice())
    );
}
