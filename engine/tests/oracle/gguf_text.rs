//! Byte-level tokenizers inside GGUF files against the tokenizer.json they were made of, id by id: the shipped
//! vocabulary, with the stages that published models have for each pre-tokenizer name.
//!
//! Neighbours: `gguf_spm` does the same for SentencePiece, with the texts and comparisons of this file.

use std::path::Path;
use std::sync::Arc;

use candle_core::quantized::gguf_file::Value;
use foretoken::model::Architecture;
use foretoken::text::{ChatMessage, ChatTemplate, StreamDecoder, Tokenizer};
use serde_json::{Value as Json, json};

use crate::folder::{Random, config};
use crate::gguf_file::{GgufFile, text};

pub const SNIPPETS: [&str; 40] = [
    " ",
    "  ",
    "   \t",
    "\n",
    "\r\n",
    "\n\n  ",
    "\u{a0}",
    "\u{3000}",
    "a",
    "The",
    " quick",
    "BROWN",
    "fox's",
    "I'LL",
    " they've",
    "don't",
    "naïve",
    "café",
    "cafe\u{301}",
    "Straße",
    "ſ",
    "日本語",
    "한국어",
    "Привет",
    "مرحبا",
    "🎉",
    "👩‍👩‍👧",
    "€5",
    "½",
    "123456789",
    "3.14",
    "0x1F",
    "def f(x):",
    "\treturn x_1",
    "==",
    "{}[]();",
    "\\n",
    "...",
    "ǅ",
    "x^2",
];

/// Texts of every kind, some hundreds, with `marks` (special tokens) among them.
pub fn strings(marks: &[&str]) -> Vec<String> {
    let mut random = Random(17);
    let all: Vec<&str> = SNIPPETS.iter().chain(marks).copied().collect();
    let mixed = (0..400).map(|index| {
        let pick = |random: &mut Random| all[random.below(all.len() as u32) as usize];
        (0..1 + index % 12).map(|_| pick(&mut random)).collect()
    });
    all.iter().map(|&snippet| snippet.to_owned()).chain(mixed).chain([String::new()]).collect()
}

fn architecture(vocab_size: usize) -> Architecture {
    let config =
        config("LlamaForCausalLM", json!({"vocab_size": vocab_size, "bos_token_id": null, "eos_token_id": null}));
    Architecture::parse(&config.to_string(), Path::new("config.json")).expect("a valid config")
}

pub fn open(file: &GgufFile, vocab_size: usize) -> Tokenizer {
    let folder = tempfile::tempdir().expect("temp folder");
    let path = folder.path().join("tokenizer.gguf");
    file.save(&path);
    Tokenizer::open(&path, &architecture(vocab_size)).unwrap_or_else(|error| panic!("{error}"))
}

pub fn open_json(tokenizer: &Json, vocab_size: usize) -> Tokenizer {
    let folder = tempfile::tempdir().expect("temp folder");
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).expect("write tokenizer.json");
    Tokenizer::open(folder.path(), &architecture(vocab_size)).unwrap_or_else(|error| panic!("{error}"))
}

/// Equal ids with and without BOS, equal text back, whole and streamed.
pub fn assert_equal(name: &str, got: &Tokenizer, want: &Tokenizer, marks: &[&str]) {
    assert_eq!(got.special(), want.special(), "{name}");
    assert_eq!(got.vocabulary_digest(), want.vocabulary_digest(), "{name}");
    let got = Arc::new(got.clone());
    for text in strings(marks) {
        let tokens = want.encode_rendered(&text).unwrap();
        assert_eq!(got.encode_rendered(&text).unwrap(), tokens, "{name}: {text:?}");
        if !text.is_empty() {
            assert_eq!(got.encode(&text).unwrap(), want.encode(&text).unwrap(), "{name}: {text:?}");
        }
        let whole = want.decode(&tokens).unwrap();
        assert_eq!(got.decode(&tokens).unwrap(), whole, "{name}: {text:?}");
        let mut stream = StreamDecoder::new(Arc::clone(&got), &[]).unwrap();
        let pieces: String = tokens.iter().map(|&token| stream.push(token).unwrap()).collect();
        assert_eq!(pieces + &stream.finish().unwrap(), whole, "{name}: {text:?}");
    }
}

/// The shipped tokenizer.json with two more tokens: a special one, and one that is only kept whole.
fn shipped() -> Json {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/models/tiny/tokenizer.json");
    let mut json: Json = serde_json::from_slice(&std::fs::read(path).expect("it is shipped")).expect("JSON");
    for (id, content, special) in [(4096, "<|im_end|>", true), (4097, "<tool>", false)] {
        let added = json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": special});
        json["added_tokens"].as_array_mut().expect("a list").push(added);
    }
    json
}

const MARKS: [&str; 3] = ["<|endoftext|>", "<|im_end|>", "<tool>"];

fn bpe_file(json: &Json, pre: &str) -> GgufFile {
    let mut file = GgufFile { metadata: Vec::new(), tensors: Vec::new() };
    file.set_bpe(json, pre);
    file.set("tokenizer.ggml.bos_token_id", Value::U32(0));
    file
}

/// The stages that tokenizer.json has in a published model of this pre-tokenizer.
fn published(pre: &str) -> Json {
    let mut json = shipped();
    let bytes =
        |regex: bool| json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": regex});
    let split = |pattern: &str| {
        json!({"type": "Sequence", "pretokenizers": [{"type": "Split",
        "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false}, bytes(false)]})
    };
    let llama3 =
        json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"].as_str().expect("its pattern").to_owned();
    json["pre_tokenizer"] = match pre {
        "llama-bpe" => split(&llama3),
        // meta-llama/Llama-3 groups digits by three, Qwen/Qwen2.5 takes them one by one.
        "qwen2" => split(&llama3.replace("{1,3}", "")),
        // HuggingFaceTB/SmolLM2.
        "smollm" => {
            json!({"type": "Sequence", "pretokenizers": [{"type": "Digits", "individual_digits": true}, bytes(true)]})
        }
        "gpt-2" => bytes(true),
        // mistralai/Mistral-Nemo.
        "tekken" => split(concat!(
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
            r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
            r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
        )),
        other => panic!("{other}"),
    };
    let begins_with_bos = ["llama-bpe", "tekken"].contains(&pre);
    json["model"]["ignore_merges"] = begins_with_bos.into();
    if !begins_with_bos {
        json["post_processor"] = bytes(false);
    }
    if pre == "qwen2" {
        json["normalizer"] = json!({"type": "NFC"});
    }
    json
}

#[test]
fn byte_level_tokenizers_equal_their_json() {
    for pre in ["llama-bpe", "qwen2", "smollm", "gpt-2", "tekken"] {
        let json = published(pre);
        let got = open(&bpe_file(&json, pre), 4098);
        assert_equal(pre, &got, &open_json(&json, 4098), &MARKS);
    }
}

#[test]
fn the_default_pre_tokenizer_is_llama_cpps_and_not_gpt2s() {
    let json = published("gpt-2");
    let mut unnamed = bpe_file(&json, "default");
    unnamed.remove("tokenizer.ggml.pre");
    let (named, unnamed) = (open(&bpe_file(&json, "default"), 4098), open(&unnamed, 4098));
    let gpt2 = open_json(&json, 4098);
    let mut differ = 0;
    for text in strings(&MARKS) {
        let tokens = named.encode_rendered(&text).unwrap();
        assert_eq!(tokens, unnamed.encode_rendered(&text).unwrap());
        assert_eq!(named.decode(&tokens).unwrap(), gpt2.decode(&tokens).unwrap());
        differ += usize::from(tokens != gpt2.encode_rendered(&text).unwrap());
    }
    assert!(differ > 0);
    // Punctuation parts from its space, and digits come in threes.
    let pieces = |text: &str| {
        let tokens = named.encode_rendered(text).unwrap();
        tokens.iter().map(|&token| named.decode(&[token]).unwrap()).collect::<Vec<_>>()
    };
    assert!(pieces("f (x)").contains(&"(".to_owned()), "{:?}", pieces("f (x)"));
    assert!(pieces("1234567").iter().all(|piece| piece.len() <= 3), "{:?}", pieces("1234567"));
}

#[test]
fn special_tokens_ends_and_padding_come_from_the_metadata() {
    let json = published("qwen2");
    let mut file = bpe_file(&json, "qwen2");
    file.set("tokenizer.ggml.eos_token_id", Value::U32(7));
    file.set("tokenizer.ggml.eot_token_id", Value::U32(9));
    let tokenizer = open(&file, 4098);
    // The keys' ids, and the special tokens whose text says that they end a turn.
    assert_eq!((tokenizer.bos(), tokenizer.eos()), (Some(0), [0, 7, 9, 4096].as_slice()));
    assert_eq!(tokenizer.special(), [0, 4096]);
    assert_eq!(tokenizer.decode(&[4097, 4096]).unwrap(), "<tool>");
    let plain = tokenizer.encode("x").unwrap();

    file.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    file.set("tokenizer.ggml.add_eos_token", Value::Bool(true));
    assert_eq!(open(&file, 4098).encode("x").unwrap(), [&[0], plain.as_slice(), &[7]].concat());

    // Padding up to the embedding's size does not make it another vocabulary.
    let mut padded = json.clone();
    for id in 4098..4128 {
        padded["model"]["vocab"][format!("[PAD{id}]")] = id.into();
    }
    let mut file = bpe_file(&padded, "qwen2");
    let (_, kinds) = file.metadata.iter_mut().find(|(key, _)| key == "tokenizer.ggml.token_type").expect("kinds");
    let Value::Array(kinds) = kinds else { panic!("{kinds:?}") };
    kinds[4098..].fill(Value::I32(5));
    assert_eq!(open(&file, 4128).vocabulary_digest(), tokenizer.vocabulary_digest());
}

#[test]
fn the_chat_template_renders_with_the_files_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("chat.gguf");
    let mut file = bpe_file(&shipped(), "llama-bpe");
    file.save(&path);
    let error = ChatTemplate::open(&path).unwrap_err().to_string();
    assert!(error.contains("chat.gguf") && error.contains("`tokenizer.chat_template`"), "{error}");
    file.set("tokenizer.ggml.eos_token_id", Value::U32(4096));
    file.set("tokenizer.chat_template", text("{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"));
    file.save(&path);
    let rendered = ChatTemplate::open(&path).unwrap().render(&[ChatMessage::new("user", "hi")], true).unwrap();
    assert_eq!(rendered, "<|endoftext|>hi<|im_end|>");
}
