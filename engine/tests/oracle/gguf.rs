//! GGUF files give what the same weights give as a Hugging Face folder, bit for bit: each architecture, each type of
//! tensor, each RoPE scaling. For quantised types the folder holds the dequantised weights.

use std::path::Path;

use candle_core::quantized::gguf_file::Value;
use candle_core::quantized::{GgmlDType, QTensor};
use candle_core::{Device, Tensor};
use foretoken::model::{Architecture, Checkpoint, Decoder};
use foretoken_kernels::{Exec, Weight, WeightDtype};
use serde_json::{Value as Json, json};
use tempfile::TempDir;

use crate::folder::{Model, Random, config};
use crate::gguf_file::{GgufFile, text};
use crate::reference;
use crate::runner::{Runner, load, max_abs_error, same_bits};

fn logits(path: &Path, dtype: WeightDtype) -> Vec<Vec<f32>> {
    Runner::new(&load(path, dtype)).feed(&Random(1).tokens(24, 101), &[]).logits
}

/// A folder, and the same model as `model.gguf` in it.
fn both(model: &Model, kind: GgmlDType, change: impl FnOnce(&mut GgufFile)) -> TempDir {
    let folder = model.write();
    let mut file = GgufFile::convert(&model.config, &model.tensors, kind);
    change(&mut file);
    file.save(&folder.path().join("model.gguf"));
    folder
}

fn assert_same_bits(folder: &TempDir, name: &str) {
    for dtype in [WeightDtype::F32, WeightDtype::Bf16] {
        let (want, got) = (logits(folder.path(), dtype), logits(&folder.path().join("model.gguf"), dtype));
        assert!(same_bits(&want, &got), "{name}, {dtype}: logits differ from the folder's");
    }
}

#[test]
fn every_architecture_equals_its_folder() {
    let cases = [
        ("LlamaForCausalLM", json!({})),
        ("LlamaForCausalLM", json!({"tie_word_embeddings": true, "head_dim": 20})),
        ("LlamaForCausalLM", json!({"attention_bias": true, "mlp_bias": true})),
        ("MistralForCausalLM", json!({"num_key_value_heads": 3})),
        ("Qwen2ForCausalLM", json!({"tie_word_embeddings": true, "rope_theta": 1e6})),
        ("Qwen3ForCausalLM", json!({"head_dim": 32})),
    ];
    for (family, changes) in cases {
        let name = format!("{family} {changes}");
        let model = Model::random(config(family, changes), 31);
        let folder = both(&model, GgmlDType::F32, |_| {});
        assert_same_bits(&folder, &name);
        let (want, got) = (folder.path().to_owned(), folder.path().join("model.gguf"));
        let (want, mut got) = (Architecture::open(&want).unwrap(), Architecture::open(&got).unwrap());
        if family == "MistralForCausalLM" {
            got.name = want.name;
        }
        // The epsilon went through f32, as the decoder's does.
        assert_eq!(got.rms_norm_eps as f32, want.rms_norm_eps as f32);
        got.rms_norm_eps = want.rms_norm_eps;
        assert_eq!(got, want, "{name}");
    }
}

/// Rows of 256, so that every type has whole blocks.
fn wide(family: &str) -> Model {
    let sizes = json!({"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2,
        "intermediate_size": 512});
    Model::random(config(family, sizes), 5)
}

fn dequantised(model: &Model, kind: GgmlDType) -> Model {
    let through = |tensor: &Tensor| match tensor.rank() {
        2 => QTensor::quantize(tensor, kind).and_then(|blocks| blocks.dequantize(&Device::Cpu)).expect("whole blocks"),
        _ => tensor.clone(),
    };
    let tensors = model.tensors.iter().map(|(name, tensor)| (name.clone(), through(tensor))).collect();
    Model { config: model.config.clone(), tensors }
}

#[test]
fn every_tensor_type_equals_its_dequantised_weights() {
    use GgmlDType::*;
    for kind in [F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2K, Q3K, Q4K, Q5K, Q6K] {
        for family in ["LlamaForCausalLM", "Qwen2ForCausalLM"] {
            let model = wide(family);
            let folder = both(&dequantised(&model, kind), F32, |file| {
                file.tensors = GgufFile::convert(&model.config, &model.tensors, kind).tensors;
            });
            assert_same_bits(&folder, &format!("{family} {kind:?}"));
        }
    }
}

#[test]
fn quantised_rows_are_reachable_as_stored_and_plain_ones_point_into_the_mapping() {
    let model = wide("LlamaForCausalLM");
    let folder = both(&model, GgmlDType::Q4K, |_| {});
    let checkpoint = Checkpoint::open(&folder.path().join("model.gguf")).unwrap();
    // By Hugging Face's name and by the file's own.
    let query = checkpoint.tensor("model.layers.1.self_attn.q_proj.weight").unwrap();
    assert_eq!((query.name, query.ggml, query.dtype), ("blk.1.attn_q.weight", Some(GgmlDType::Q4K), None));
    assert!(checkpoint.contains("blk.1.attn_q.weight") && !checkpoint.contains("blk.2.attn_q.weight"));
    // Each row's blocks are those of Hugging Face's row, whatever the order in the file.
    let rows: Vec<&[u8]> = query.rows().collect();
    let want = QTensor::quantize(&model.tensors["model.layers.1.self_attn.q_proj.weight"], GgmlDType::Q4K).unwrap();
    assert_eq!((rows.len(), query.shape), (256, [256, 256].as_slice()));
    assert_eq!(rows.concat(), want.data().unwrap().to_vec());
    assert_ne!(rows.concat(), query.bytes);
    let norm = checkpoint.tensor("model.norm.weight").unwrap();
    let shared = checkpoint.shared_bytes("model.norm.weight").unwrap();
    assert_eq!(norm.bytes.as_ptr(), shared.as_slice().as_ptr());
}

/// Blocks that the kernels know are held as they are, q and k in another order; others as bf16.
#[test]
fn without_a_dtype_weights_are_held_as_stored() {
    use GgmlDType as Stored;
    let kinds = [
        (Stored::F32, WeightDtype::F32, 0.0),
        (Stored::F16, WeightDtype::F16, 0.0),
        (Stored::Q8_0, WeightDtype::Q8_0, 0.02),
        (Stored::Q4_0, WeightDtype::Q4_0, 0.02),
        (Stored::Q4K, WeightDtype::Q4K, 0.02),
        (Stored::Q6K, WeightDtype::Q6K, 0.02),
        (Stored::Q5K, WeightDtype::Bf16, 0.02),
    ];
    for (stored, held, tolerance) in kinds {
        let folder = both(&wide("LlamaForCausalLM"), stored, |_| {});
        let path = folder.path().join("model.gguf");
        let decoder = Decoder::load(&path, None, Exec::cpu(2).unwrap()).unwrap();
        assert!(decoder.linears().all(|linear| linear.weight().dtype() == held), "{stored:?} is not held as {held}");
        let got = Runner::new(&decoder).feed(&Random(1).tokens(24, 101), &[]).logits.concat();
        // The same weights in f32: what is left is the rounding of the inputs.
        let want = logits(&path, WeightDtype::F32).concat();
        let norm = |values: &mut dyn Iterator<Item = f32>| values.map(|value| value * value).sum::<f32>().sqrt();
        let error = norm(&mut got.iter().zip(&want).map(|(got, want)| got - want)) / norm(&mut want.iter().copied());
        assert!(error <= tolerance, "{stored:?}: relative error {error}");
    }
}

/// A block's weights are what candle makes of it, to the rounding of a product.
#[test]
fn blocks_mean_what_candle_says() {
    let tensor = &wide("LlamaForCausalLM").tensors["model.layers.0.mlp.up_proj.weight"];
    let [rows, cols] = [512, 256];
    for (kind, dtype) in [
        (GgmlDType::Q8_0, WeightDtype::Q8_0),
        (GgmlDType::Q4_0, WeightDtype::Q4_0),
        (GgmlDType::Q4K, WeightDtype::Q4K),
        (GgmlDType::Q6K, WeightDtype::Q6K),
    ] {
        let blocks = QTensor::quantize(tensor, kind).unwrap();
        let (bytes, want) = (blocks.data().unwrap(), blocks.dequantize(&Device::Cpu).unwrap());
        let stored: Vec<&[u8]> = bytes.chunks(bytes.len() / rows).collect();
        let weight = Weight::from_blocks("up", dtype, [rows, cols], &stored).unwrap();
        let mut row = vec![0.0; cols];
        for (index, want) in want.to_vec2::<f32>().unwrap().iter().enumerate() {
            weight.row_f32(index, &mut row);
            for (got, want) in row.iter().zip(want) {
                assert!((got - want).abs() <= 1e-6 * want.abs().max(0.1), "{dtype} row {index}: {got}, candle {want}");
            }
        }
        let error = Weight::from_blocks("up", dtype, [rows, cols], &stored[1..]).unwrap_err();
        assert!(error.to_string().contains("`up`: expected"), "{error}");
        let error = Weight::from_blocks("up", dtype, [rows, 40], &stored).unwrap_err();
        assert!(error.to_string().contains("a row of 40 is no multiple"), "{error}");
    }
}

#[test]
fn rope_scalings_of_the_metadata_equal_those_of_a_config() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 8.0,
        "beta_slow": 0.5});
    let set = |pairs: Vec<(&'static str, Value)>| {
        move |file: &mut GgufFile| {
            pairs.into_iter().for_each(|(key, value)| file.set(&format!("llama.rope.{key}"), value))
        }
    };
    let own = |scaling: &Json| Model::random(config("LlamaForCausalLM", json!({"rope_scaling": scaling})), 9);
    let scaling = vec![
        ("scaling.type", text("yarn")),
        ("scaling.factor", Value::F32(4.0)),
        ("scaling.original_context_length", Value::U32(32)),
        ("scaling.yarn_beta_fast", Value::F32(8.0)),
        ("scaling.yarn_beta_slow", Value::F32(0.5)),
    ];
    assert_same_bits(&both(&own(&yarn), GgmlDType::F32, set(scaling.clone())), "yarn");
    let mut louder = yarn.clone();
    louder["attention_factor"] = (2.0 * (1.0 + 0.1 * 4f64.ln())).into();
    let scaled = [scaling, vec![("scaling.attn_factor", Value::F32(2.0))]].concat();
    assert_same_bits(&both(&own(&louder), GgmlDType::F32, set(scaled)), "yarn, attn_factor");

    let linear = own(&json!({"rope_type": "linear", "factor": 4.0}));
    let typed = vec![("scaling.type", text("linear")), ("scaling.factor", Value::F32(4.0))];
    assert_same_bits(&both(&linear, GgmlDType::F32, set(typed)), "linear");
    assert_same_bits(&both(&linear, GgmlDType::F32, set(vec![("scale_linear", Value::F32(4.0))])), "scale_linear");
    let none = vec![("scaling.type", text("none")), ("scaling.factor", Value::F32(4.0))];
    assert_same_bits(&both(&own(&Json::Null), GgmlDType::F32, set(none)), "none");
}

/// The converter's `rope_freqs`: divisors instead of settings, in f32, so near and not bit-equal.
#[test]
fn written_out_llama3_scaling_is_near_the_f64_reference() {
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32});
    let model = Model::random(config("LlamaForCausalLM", json!({"rope_scaling": scaling})), 9);
    let head_dim = model.head_dim();
    // convert_hf_to_gguf.py, `generate_extra_tensors`.
    let factors = (0..head_dim / 2).map(|i| {
        let wavelength = std::f64::consts::TAU * 10_000f64.powf(2.0 * i as f64 / head_dim as f64);
        let smooth = (32.0 / wavelength - 1.0) / 3.0;
        match wavelength {
            short if short < 32.0 / 4.0 => 1.0,
            long if long > 32.0 => 8.0,
            _ => (1.0 / ((1.0 - smooth) / 8.0 + smooth)) as f32,
        }
    });
    let factors = Tensor::from_iter(factors, &Device::Cpu).unwrap();
    let folder = both(&model, GgmlDType::F32, |file| {
        file.tensors.push(("rope_freqs.weight".into(), QTensor::quantize(&factors, GgmlDType::F32).unwrap()));
    });
    let want = reference::run(&model, &Random(1).tokens(24, 101));
    let error = max_abs_error(&logits(&folder.path().join("model.gguf"), WeightDtype::F32), &want.logits);
    assert!(error < 1e-4, "{error:e}");
}
