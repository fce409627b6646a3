//! Small tokenizers for tests, written as the `tokenizer.json` that a Hugging Face folder would hold.
//!
//! Neighbours: the unit tests of this module. Two families cover what published models use: byte-level BPE (Llama 3,
//! Qwen, this repository's `tiny`) and SentencePiece-style BPE with byte fallback (Llama 2, Mistral). In the byte-level
//! one the id of a byte is the byte itself, so tests can write bytes as tokens.

use std::sync::Arc;

use serde_json::{Value, json};
use tempfile::TempDir;

use super::tokenizer::Tokenizer;
use crate::model::architectures::Architecture;

pub const BOS: u32 = 256;
pub const EOS: u32 = 257;
/// They must be in the model's own vocabulary too, else `tokenizers` gives them other ids than the file says.
const SPECIAL: [(&str, u32); 3] = [("<s>", BOS), ("</s>", EOS), ("<|end|>", 258)];
/// 256 bytes, 3 special tokens, 4 merges.
pub const BYTE_LEVEL_VOCAB: u32 = 263;

/// The printable stand-in for a byte that GPT-2's byte-level BPE uses.
fn byte_char(byte: u8) -> char {
    let printable = |byte: u8| matches!(byte, 33..=126 | 161..=172 | 174..=255);
    if printable(byte) {
        return char::from(byte);
    }
    let rank = (0..byte).filter(|&lower| !printable(lower)).count();
    char::from_u32(256 + rank as u32).expect("below the surrogates")
}

fn special(id: u32, content: &str) -> Value {
    json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
           "normalized": false, "special": true})
}

/// `bos`: whether encoding puts `<s>` in front.
pub fn byte_level_json(bos: bool) -> Value {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u8 {
        vocab.insert(byte_char(byte).to_string(), byte.into());
    }
    for (token, id) in SPECIAL {
        vocab.insert(token.to_owned(), id.into());
    }
    // "\xE2\x82" joins two thirds of the euro sign, so tokens end inside a code point and begin inside another.
    let euro = [byte_char(0xE2), byte_char(0x82)].map(String::from);
    let merges = [["h".to_owned(), "e".to_owned()], ["l".into(), "l".into()], ["he".into(), "ll".into()], euro];
    for (merge, id) in merges.iter().zip(259_u32..) {
        vocab.insert(merge.concat(), id.into());
    }
    let template = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [BOS], "tokens": ["<s>"]}}});
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    json!({"version": "1.0", "truncation": null, "padding": null, "normalizer": null,
        "added_tokens": SPECIAL.map(|(token, id)| special(id, token)),
        "pre_tokenizer": byte_level, "decoder": byte_level,
        "post_processor": if bos { template } else { byte_level.clone() },
        "model": {"type": "BPE", "dropout": null, "unk_token": null, "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": false, "byte_fallback": false, "ignore_merges": false,
            "vocab": vocab, "merges": merges}})
}

fn sentencepiece_json() -> Value {
    let mut vocab = serde_json::Map::new();
    for byte in 0..=255_u32 {
        vocab.insert(format!("<0x{byte:02X}>"), byte.into());
    }
    for (piece, id) in ["▁", "h", "e", "he", "▁he", "a", "b", "é"].into_iter().zip(259_u32..) {
        vocab.insert(piece.to_owned(), id.into());
    }
    for (token, id) in [SPECIAL[0], SPECIAL[1], ("<unk>", 258)] {
        vocab.insert(token.to_owned(), id.into());
    }
    let replace = |from: &str, to: &str| json!({"type": "Replace", "pattern": {"String": from}, "content": to});
    json!({"version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(BOS, "<s>"), special(EOS, "</s>"), special(258, "<unk>")],
        "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "▁"}, replace(" ", "▁")]},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [replace("▁", " "), {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["h", "e"], ["▁", "he"]]}})
}

/// A folder that holds this `tokenizer.json` and nothing else.
pub fn folder_with(tokenizer: &Value) -> TempDir {
    let folder = tempfile::tempdir().expect("temp folder");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("write tokenizer.json");
    folder
}

/// The smallest Llama with this vocabulary.
pub fn architecture(vocab_size: usize) -> Architecture {
    let config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": vocab_size, "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64});
    Architecture::parse(&config.to_string(), std::path::Path::new("config.json")).expect("a valid config")
}

pub fn byte_level() -> Arc<Tokenizer> {
    open(&byte_level_json(true))
}

pub fn sentencepiece() -> Arc<Tokenizer> {
    open(&sentencepiece_json())
}

fn open(tokenizer: &Value) -> Arc<Tokenizer> {
    let folder = folder_with(tokenizer);
    Arc::new(Tokenizer::open(folder.path(), &architecture(300)).expect("a valid tokenizer"))
}
