//! Damaged, incomplete and foreign GGUF files: each fault has an error that names the file, the key or tensor, what was
//! found and expected, and a way out. None panics.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use foretoken::model::{Architecture, Checkpoint, Decoder};
use foretoken::text::{ChatTemplate, Tokenizer};
use foretoken_kernels::{Exec, WeightDtype};
use serde_json::json;

use crate::folder::{Model, Random, config};
use crate::gguf_file::{GgufFile, text};

fn good() -> GgufFile {
    let model = Model::random(config("LlamaForCausalLM", json!({"num_hidden_layers": 1})), 3);
    GgufFile::convert(&model.config, &model.tensors, GgmlDType::F32)
}

/// Everything that reads a model, on these bytes; the first error.
fn read(bytes: &[u8]) -> Result<(), String> {
    let folder = tempfile::tempdir().expect("temp folder");
    let path = folder.path().join("bad.gguf");
    std::fs::write(&path, bytes).expect("write the file");
    let decoder = Decoder::load(&path, WeightDtype::F32, Exec::portable_single()).map_err(|error| error.to_string())?;
    Tokenizer::open(&path, decoder.architecture()).map_err(|error| error.to_string())?;
    ChatTemplate::open(&path).map_err(|error| error.to_string())?;
    Ok(())
}

fn assert_refused(bytes: &[u8], words: &[&str]) {
    let error = read(bytes).expect_err("a refusal");
    assert!(error.contains("bad.gguf"), "no path in: {error}");
    for word in words {
        assert!(error.contains(word), "{word:?} is missing from: {error}");
    }
}

fn changed(change: impl FnOnce(&mut GgufFile)) -> Vec<u8> {
    let mut file = good();
    change(&mut file);
    file.bytes()
}

#[test]
fn what_is_not_a_gguf_file_or_not_all_of_it() {
    let whole = good().bytes();
    assert_refused(b"", &["is not a GGUF file", "\"\"", "expected \"GGUF\""]);
    assert_refused(b"PK\x03\x04 a zip file", &["is not a GGUF file", "PK", "Give a .gguf file"]);
    assert_refused(&whole[..24], &["the header of", "fetch it again"]);
    assert_refused(&whole[..300], &["the header of", "fetch it again"]);
    let len = (whole.len() - 5000).to_string();
    assert_refused(&whole[..whole.len() - 5000], &["is truncated", "tensor `", &len, "Download it again"]);
    let mut version = whole.clone();
    version[4] = 9;
    assert_refused(&version, &["the header of", "version"]);
    let split = changed(|file| file.set("split.count", Value::U16(3)));
    assert_refused(&split, &["split over 3 files", "llama-gguf-split --merge"]);
    let missing = Decoder::load(Path::new("/nowhere/x.gguf"), None, Exec::portable_single()).unwrap_err().to_string();
    assert!(missing.contains("/nowhere/x.gguf") && missing.contains("a .gguf file"), "{missing}");
    let missing = Architecture::open(Path::new("/nowhere/x.gguf")).unwrap_err().to_string();
    assert!(missing.contains("cannot read /nowhere/x.gguf"), "{missing}");
}

#[test]
fn headers_that_lie_neither_panic_nor_allocate() {
    assert_refused(&changed(|file| file.set("general.alignment", Value::U32(0))), &["the header of", "alignment of 0"]);
    let whole = good().bytes();
    // The counts of tensors and of metadata, then the length of the first key.
    for at in [8, 16, 24] {
        let mut bytes = whole.clone();
        bytes[at..at + 8].copy_from_slice(&(1_u64 << 40).to_le_bytes());
        assert_refused(&bytes, &["the header of"]);
    }
    let mut random = Random(41);
    for _ in 0..400 {
        let mut bytes = whole.clone();
        for _ in 0..1 + random.below(3) {
            // The header is about the first 2 KB.
            let at = random.below(2200) as usize;
            bytes[at] = random.below(256) as u8;
        }
        let _ = read(&bytes);
    }
}

#[test]
fn metadata_that_is_missing_or_wrong_is_named() {
    for key in [
        "embedding_length",
        "block_count",
        "attention.head_count",
        "feed_forward_length",
        "context_length",
        "attention.layer_norm_rms_epsilon",
    ] {
        let key = format!("llama.{key}");
        let bytes = changed(|file| file.remove(&key));
        assert_refused(&bytes, &["has no metadata key", &format!("`{key}`"), "convert_hf_to_gguf.py"]);
    }
    assert_refused(&changed(|file| file.remove("general.architecture")), &["`general.architecture`", "a string"]);
    assert_refused(&changed(|file| file.remove("llama.vocab_size")), &["`tokenizer.ggml.tokens`"]);
    let cases: [(&str, Value, &[&str]); 12] = [
        ("general.architecture", text("gemma3"), &["`gemma3` is not supported", "llama, qwen2, qwen3", "nearest"]),
        ("llama.block_count", text("two"), &["`llama.block_count` is \"two\"", "a whole number"]),
        ("llama.block_count", Value::I32(-1), &["`llama.block_count` is I32(-1)", "a whole number"]),
        ("llama.block_count", Value::U64(1 << 60), &["`llama.block_count`", "at most 10000"]),
        ("llama.attention.head_count", Value::Array(vec![Value::U32(6); 3]), &["an array of 3", "U32(6)"]),
        ("llama.attention.head_count_kv", Value::U32(4), &["`llama.attention.head_count_kv` is 4", "divisor"]),
        ("llama.attention.key_length", Value::U32(13), &["`llama.attention.key_length` is 13", "even"]),
        ("llama.attention.value_length", Value::U32(8), &["`llama.attention.value_length` is 8", "length of a key"]),
        ("llama.rope.dimension_count", Value::U32(6), &["`llama.rope.dimension_count` is 6", "partly rotated"]),
        ("llama.rope.scaling.type", text("longrope"), &["`llama.rope.scaling.type` is longrope", "yarn"]),
        ("llama.expert_count", Value::U32(8), &["`llama.expert_count` is 8", "mixtures of experts"]),
        ("llama.vocab_size", Value::U32(100), &["[101, 72], expected [100, 72] from vocab_size"]),
    ];
    for (key, value, words) in cases {
        assert_refused(&changed(|file| file.set(key, value)), words);
    }
}

/// The good file with the type in the entry of `tensor` replaced.
fn retyped(tensor: &str, kind: u32) -> Vec<u8> {
    let mut bytes = good().bytes();
    let name = [&(tensor.len() as u64).to_le_bytes(), tensor.as_bytes()].concat();
    let at = bytes.windows(name.len()).position(|window| window == name).expect("its entry") + name.len();
    let dimensions = bytes[at] as usize;
    bytes[at + 4 + 8 * dimensions..][..4].copy_from_slice(&kind.to_le_bytes());
    bytes
}

#[test]
fn tensors_that_cannot_be_used_are_named() {
    assert_refused(&retyped("blk.0.ffn_up.weight", 20), &["`blk.0.ffn_up.weight`", "IQ4_NL", "Q4_K, Q5_K", "Q4_K_M"]);
    assert_refused(&retyped("output_norm.weight", 77), &["`output_norm.weight`", "number 77"]);
    assert_refused(&retyped("blk.0.ffn_up.weight", 9), &["`blk.0.ffn_up.weight`", "has type Q8_1"]);
    assert_refused(&retyped("blk.0.ffn_up.weight", 12), &["`blk.0.ffn_up.weight`", "[100, 72]", "Q4K blocks of 256"]);
    let lacking = changed(|file| file.tensors.retain(|(name, _)| name != "blk.0.ffn_up.weight"));
    assert_refused(&lacking, &["no tensor `blk.0.ffn_up.weight`", "nearest it has is `blk.0."]);
    let tensor = |shape: (usize, usize)| {
        let zeros = Tensor::zeros(shape, candle_core::DType::F32, &Device::Cpu).expect("zeros");
        QTensor::quantize(&zeros, GgmlDType::F32).expect("any shape")
    };
    for (name, shape, expected) in [
        ("blk.0.ffn_up.weight", (99, 72), "expected [100, 72]"),
        ("blk.0.attn_q.weight", (71, 72), "expected [72, 72]"),
    ] {
        let wrong = changed(|file| {
            let found = file.tensors.iter_mut().find(|(own, _)| own == name).expect("it is there");
            found.1 = tensor(shape);
        });
        assert_refused(&wrong, &[&format!("`{name}`"), expected]);
    }
    let factors = changed(|file| file.tensors.push(("rope_freqs.weight".into(), tensor((1, 5)))));
    assert_refused(&factors, &["`rope_freqs.weight`", "holds 5 values", "head_dim / 2 = 6"]);
    let mut moved = good().bytes();
    let name = b"blk.0.attn_norm.weight";
    let at = moved.windows(name.len()).position(|window| window == name).expect("its entry") + name.len();
    // One dimension: count, size, type, offset.
    moved[at + 16] += 2;
    assert_refused(&moved, &["`blk.0.attn_norm.weight`", "begins at byte", "alignment"]);
}

#[test]
fn tokenizers_that_cannot_be_used_are_named() {
    assert_refused(&good().bytes(), &["`tokenizer.ggml.model`", "convert_hf_to_gguf.py"]);
    let words = |count: usize| Value::Array((0..count).map(|id| text(&format!("t{id}"))).collect());
    let with = |model: &str, count: usize, extra: Vec<(&str, Value)>| {
        changed(|file| {
            file.set("tokenizer.ggml.model", text(model));
            file.set("tokenizer.ggml.tokens", words(count));
            extra.into_iter().for_each(|(key, value)| file.set(key, value));
        })
    };
    let lines = |lines: &[&str]| ("tokenizer.ggml.merges", Value::Array(lines.iter().map(|line| text(line)).collect()));
    let pre = |name: &str| ("tokenizer.ggml.pre", text(name));
    let floats = |count: usize| Value::Array(vec![Value::F32(0.0); count]);
    let cases: Vec<(Vec<u8>, &[&str])> = vec![
        (with("t5", 5, vec![]), &["`tokenizer.ggml.model` is `t5`", "llama, gpt2", "Hugging Face folder"]),
        (with("gpt2", 5, vec![pre("falcon")]), &["`tokenizer.ggml.pre` is `falcon`", "llama-bpe", "nearest"]),
        (with("gpt2", 5, vec![pre("qwen2")]), &["`tokenizer.ggml.merges`"]),
        (with("gpt2", 5, vec![lines(&["t1t2"])]), &["tokenizer.ggml.merges", "without a space"]),
        (with("gpt2", 5, vec![lines(&["t1 t9"])]), &["not a tokenizer", "t9"]),
        (with("llama", 5, vec![]), &["`tokenizer.ggml.scores`"]),
        (with("llama", 5, vec![("tokenizer.ggml.scores", floats(4))]), &["scores has 4 entries, expected 5"]),
        (
            with("llama", 5, vec![("tokenizer.ggml.scores", floats(5)), ("tokenizer.ggml.token_type", floats(5))]),
            &["`tokenizer.ggml.token_type`", "an array of 5"],
        ),
        (with("llama", 102, vec![("tokenizer.ggml.scores", floats(102))]), &["highest token id is 101", "is 101"]),
        (
            with(
                "llama",
                5,
                vec![("tokenizer.ggml.scores", floats(5)), ("tokenizer.ggml.eot_token_id", Value::U32(500))],
            ),
            &["special token id 500 (eos)", "vocabulary of 101"],
        ),
        (with("llama", 5, vec![("tokenizer.ggml.scores", floats(5))]), &["no chat template"]),
    ];
    for (bytes, words) in cases {
        assert_refused(&bytes, words);
    }
}

/// A file of another architecture still serves its tensors, as heads' files do.
#[test]
fn tensors_of_any_architecture_can_be_listed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("head.gguf");
    let mut file = good();
    file.set("general.architecture", text("eagle3"));
    file.save(&path);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(checkpoint.tensor("blk.0.attn_q.weight").unwrap().shape, [72, 72]);
    assert_eq!(checkpoint.tensors().count(), good().tensors.len());
}
