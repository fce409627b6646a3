//! Folders as they come: other dtypes, shards, and every kind of damage with its own message.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use foretoken::model::{Architecture, Checkpoint, CheckpointError, Decoder, DecoderError, WeightsError};
use foretoken_kernels::{Exec, WeightDtype};
use serde_json::json;

use crate::folder::{Model, Random, config};
use crate::runner::{Runner, load, max_abs_error, same_bits};

fn small() -> Model {
    Model::random(config("LlamaForCausalLM", json!({})), 21)
}

fn cast(model: &Model, dtype: DType) -> Model {
    let tensors = model.tensors.iter().map(|(name, tensor)| (name.clone(), tensor.to_dtype(dtype).unwrap())).collect();
    Model { config: model.config.clone(), tensors }
}

fn cast_matrices(model: &Model, dtype: DType) -> Model {
    let mut narrow = cast(model, dtype);
    let vectors = model.tensors.iter().filter(|(_, tensor)| tensor.rank() == 1);
    narrow.tensors.extend(vectors.map(|(name, tensor)| (name.clone(), tensor.clone())));
    narrow
}

fn logits(folder: &Path, dtype: WeightDtype) -> Vec<Vec<f32>> {
    Runner::new(&load(folder, dtype)).feed(&Random(1).tokens(12, 101), &[]).logits
}

fn refusal(folder: &Path) -> (DecoderError, String) {
    let error = Decoder::load(folder, WeightDtype::F32, Exec::portable_single()).expect_err("a refusal");
    let text = error.to_string();
    (error, text)
}

#[test]
fn dtypes_are_converted_once_and_exactly() {
    let original = small();
    for stored in [DType::BF16, DType::F16] {
        let narrow = cast(&original, stored);
        let widened = cast(&narrow, DType::F32);
        let narrow = narrow.write();
        // Widening is exact, so a narrow file run as f32 equals the f32 file of the same values.
        assert!(same_bits(&logits(narrow.path(), WeightDtype::F32), &logits(widened.write().path(), WeightDtype::F32)));
        // Narrowing rounds matrices to nearest even, as candle does; norms stay as precise as the file.
        let rounded = cast_matrices(&widened, DType::BF16).write();
        assert!(same_bits(&logits(narrow.path(), WeightDtype::Bf16), &logits(rounded.path(), WeightDtype::Bf16)));
    }
    let rounded = cast_matrices(&original, DType::BF16).write();
    assert!(same_bits(&logits(original.write().path(), WeightDtype::Bf16), &logits(rounded.path(), WeightDtype::Bf16)));
}

#[test]
fn bf16_weights_stay_near_the_f64_reference() {
    let narrow = cast(&small(), DType::BF16);
    let folder = narrow.write();
    let want = crate::reference::run(&cast(&narrow, DType::F32), &Random(1).tokens(12, 101));
    // bf16 inputs of a matmul carry 8 bits: errors of about 2^-9 per input, averaged over the width.
    let error = max_abs_error(&logits(folder.path(), WeightDtype::Bf16), &want.logits);
    println!("bf16 weights: max abs error {error:.2e}");
    assert!(error < 0.1, "{error}");
}

#[test]
fn shards_load_like_one_file() {
    let model = small();
    let folder = model.write_config();
    let first = |name: &str| name.contains("layers.1") || name.contains("embed");
    model.save(&folder.path().join("model-00001-of-00002.safetensors"), first);
    model.save(&folder.path().join("model-00002-of-00002.safetensors"), |name| !first(name));
    let file = |name: &str| format!("model-0000{}-of-00002.safetensors", if first(name) { 1 } else { 2 });
    let map: serde_json::Map<_, _> = model.tensors.keys().map(|name| (name.clone(), file(name).into())).collect();
    let index = folder.path().join("model.safetensors.index.json");
    std::fs::write(&index, json!({"metadata": {}, "weight_map": map}).to_string()).unwrap();
    let whole = model.write();
    assert!(same_bits(&logits(folder.path(), WeightDtype::F32), &logits(whole.path(), WeightDtype::F32)));

    std::fs::remove_file(folder.path().join("model-00002-of-00002.safetensors")).unwrap();
    let (error, text) = refusal(folder.path());
    assert!(matches!(checkpoint_error(&error), CheckpointError::MissingShard { .. }), "{text}");
    assert!(text.contains("model-00002-of-00002") && text.contains("index.json"), "{text}");
    std::fs::write(&index, "{}").unwrap();
    assert!(refusal(folder.path()).1.contains("weight_map"));
}

fn checkpoint_error(error: &DecoderError) -> &CheckpointError {
    match error {
        DecoderError::Weights(WeightsError::Checkpoint(error)) => error,
        other => panic!("{other}"),
    }
}

#[test]
fn weights_point_into_the_mapping() {
    let folder = small().write();
    let checkpoint = Checkpoint::open(folder.path()).unwrap();
    let view = checkpoint.tensor("model.norm.weight").unwrap();
    let shared = checkpoint.shared_bytes("model.norm.weight").unwrap();
    assert_eq!(shared.as_slice().as_ptr(), view.bytes.as_ptr());
    drop(checkpoint);
    assert_eq!(shared.as_slice().len(), 72 * 4);
}

#[test]
fn a_checkpoint_lists_any_tensor_with_its_type() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("head.safetensors");
    let ids = Tensor::new(&[[1_i64, 2], [3, 4]], &Device::Cpu).unwrap();
    let wide = Tensor::new(&[1.0_f64], &Device::Cpu).unwrap();
    candle_core::safetensors::save(&[("d2t", ids), ("odd", wide)].into(), &path).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    let names: Vec<_> = checkpoint.tensors().map(|tensor| (tensor.name, tensor.dtype_name, tensor.dtype)).collect();
    assert_eq!(names, [("d2t", "I64", Some(foretoken_plugin_api::DType::I64)), ("odd", "F64", None)]);
    let view = checkpoint.tensor("d2t").unwrap();
    assert_eq!((view.shape, view.bytes.len()), ([2, 2].as_slice(), 32));
}

#[test]
fn a_truncated_file_is_called_so() {
    let model = small();
    let folder = model.write();
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    for keep in [bytes.len() - 1, bytes.len() / 2, 100] {
        std::fs::write(&path, &bytes[..keep]).unwrap();
        let (error, text) = refusal(folder.path());
        assert!(matches!(checkpoint_error(&error), CheckpointError::Truncated { .. }), "{keep}: {text}");
        assert!(text.contains("model.safetensors") && text.contains(&format!("the file has {keep}")), "{text}");
    }
    for damage in [b"".as_slice(), b"not a model at all, but long enough to look like one"] {
        std::fs::write(&path, damage).unwrap();
        let (error, text) = refusal(folder.path());
        assert!(matches!(checkpoint_error(&error), CheckpointError::Malformed { .. }), "{text}");
    }
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let model = small();
    let folder = model.write_config();
    let path = folder.path().join("model.safetensors");
    model.save(&path, |name| name != "model.layers.1.mlp.up_proj.weight");
    let (error, text) = refusal(folder.path());
    assert!(matches!(checkpoint_error(&error), CheckpointError::MissingTensor { .. }), "{text}");
    assert!(text.contains("no tensor `model.layers.1.mlp.up_proj.weight`"), "{text}");
    assert!(text.contains("nearest it has is `model.layers."), "{text}");

    let folder = Model { config: config("LlamaForCausalLM", json!({"intermediate_size": 99})), ..small() }.write();
    let (error, text) = refusal(folder.path());
    assert!(matches!(error, DecoderError::Weights(WeightsError::Shape { .. })), "{text}");
    assert!(text.contains("[100, 72], expected [99, 72] from intermediate_size and hidden_size"), "{text}");

    let mut wrong = small();
    let integers = wrong.tensors["model.norm.weight"].to_dtype(DType::I64).unwrap();
    wrong.tensors.insert("model.norm.weight".into(), integers);
    let text = refusal(wrong.write().path()).1;
    assert!(text.contains("`model.norm.weight`") && text.contains("dtype I64"), "{text}");
}

#[test]
fn missing_files_and_unknown_architectures_are_named() {
    let (error, text) = refusal(Path::new("/nowhere/at/all"));
    assert!(matches!(error, DecoderError::NoFolder { .. }) && text.contains("/nowhere/at/all"), "{text}");
    let empty = tempfile::tempdir().unwrap();
    assert!(refusal(empty.path()).1.contains("config.json"));
    let folder = small().write_config();
    std::fs::write(folder.path().join("tf_model.h5"), "").unwrap();
    let text = refusal(folder.path()).1;
    assert!(text.contains("tf_model.h5") && text.contains("Convert"), "{text}");
    std::fs::write(folder.path().join("pytorch_model.bin"), "").unwrap();
    let text = refusal(folder.path()).1;
    assert!(text.contains("pytorch_model.bin is not a file of tensors that PyTorch saved"), "{text}");
    let unknown = Model { config: json!({"architectures": ["GemmaForCausalLM"]}), ..small() }.write();
    assert!(refusal(unknown.path()).1.contains("nearest is `LlamaForCausalLM`"));
}

#[test]
fn a_tokenizer_larger_than_the_model_is_refused() {
    let folder = small().write_config();
    let vocab: serde_json::Map<_, _> = (0..102).map(|id| (format!("t{id}"), id.into())).collect();
    let tokenizer = json!({"version": "1.0", "added_tokens": [], "normalizer": null, "pre_tokenizer": null,
        "post_processor": null, "decoder": null, "truncation": null, "padding": null,
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}});
    std::fs::write(folder.path().join("tokenizer.json"), tokenizer.to_string()).unwrap();
    let architecture = Architecture::open(folder.path()).unwrap();
    let text = foretoken::text::Tokenizer::open(folder.path(), &architecture).unwrap_err().to_string();
    assert!(text.contains("highest token id is 101") && text.contains("vocab_size is 101"), "{text}");
}
