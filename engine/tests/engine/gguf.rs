//! The shipped models as GGUF files: the tokens of their folders, plain and with a draft model that is a file too.

#[path = "../oracle/gguf_file.rs"]
mod gguf_file;

use std::path::Path;

use candle_core::Device;
use candle_core::quantized::GgmlDType;
use candle_core::quantized::gguf_file::Value;

use super::support::*;
use gguf_file::GgufFile;

/// Writes the shipped model `name` as a GGUF file with its tokenizer inside.
fn convert(name: &str, path: &Path) {
    let folder = root().join("examples/models").join(name);
    let json = |file: &str| -> serde_json::Value {
        serde_json::from_slice(&std::fs::read(folder.join(file)).expect("it is shipped")).expect("JSON")
    };
    let tensors = candle_core::safetensors::load(folder.join("model.safetensors"), &Device::Cpu).expect("weights");
    let mut file = GgufFile::convert(&json("config.json"), &tensors, GgmlDType::BF16);
    file.set_bpe(&json("tokenizer.json"), "llama-bpe");
    file.set("tokenizer.ggml.add_bos_token", Value::Bool(true));
    file.save(path);
}

#[test]
fn a_gguf_file_serves_wherever_a_folder_does() {
    let folder = tempfile::tempdir().expect("temp folder");
    let (target, draft) = (folder.path().join("tiny.gguf"), folder.path().join("tiny-draft.gguf"));
    convert("tiny", &target);
    convert("tiny-draft", &draft);
    let mut from_folder = engine(PLAIN);
    let prompts_of_folder = prompts(&from_folder, 4);
    let sampling = sampled(48, 5);
    let want = tokens(&run(&mut from_folder, &prompts_of_folder, &sampling, 4));

    let model = format!("[model]\npath = {target:?}\n");
    let options = format!("[proposer.options]\nmodel = {draft:?}\nnum_speculative_tokens = 5\n");
    let drafting = format!("[proposer]\nplugin = \"draft-model\"\n{options}{model}");
    for parts in [model, drafting] {
        let mut from_file = engine(&parts);
        assert_eq!(prompts(&from_file, 4), prompts_of_folder);
        assert_eq!(from_file.tokenizer().vocabulary_digest(), from_folder.tokenizer().vocabulary_digest());
        let completions = run(&mut from_file, &prompts_of_folder, &sampling, 4);
        assert!(tokens(&completions) == want, "tokens differ from the folder's");
        let drafts = completions.iter().any(|completion| completion.stats.accepted > 0);
        assert_eq!(drafts, parts.contains("draft-model"));
        assert!(from_file.faults().all(|(_, faults, _)| faults == 0));
    }
}
