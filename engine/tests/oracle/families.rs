//! Every architecture against candle-transformers and the f64 reference: prefill, decode, hidden states.

use foretoken_kernels::WeightDtype;
use serde_json::{Value, json};

use crate::folder::{Model, Random, config};
use crate::runner::{Runner, load, max_abs_error};
use crate::{candle, reference};

const TOLERANCE: f64 = 1e-4;
const TOKENS: usize = 40;

/// Compares everything and prints the errors found (`--nocapture` shows them).
fn check(name: &str, config: Value, with_candle: bool) {
    let model = Model::random(config, 7);
    let folder = model.write();
    let decoder = load(folder.path(), WeightDtype::F32);
    let tokens = Random(11).tokens(TOKENS, model.size("vocab_size"));
    let layers = model.size("num_hidden_layers");
    let asked: Vec<usize> = (0..=layers).collect();
    let prefill = Runner::new(&decoder).feed(&tokens, &asked);
    let steps = Runner::new(&decoder).feed_in(&tokens, &[1; TOKENS]);

    let want = reference::run(&model, &tokens);
    let mut errors = vec![
        ("reference, prefill", max_abs_error(&prefill.logits, &want.logits)),
        ("reference, steps", max_abs_error(&steps, &want.logits)),
    ];
    let width = model.size("hidden_size");
    for (layer, want) in want.hidden.iter().enumerate() {
        let part = |row: &Vec<f32>| row[layer * width..(layer + 1) * width].to_vec();
        let got: Vec<Vec<f32>> = prefill.hidden.iter().map(part).collect();
        errors.push(("hidden", max_abs_error(&got, want)));
    }
    if with_candle {
        let want = candle::run(&model, &tokens);
        errors.push(("candle, steps", max_abs_error(&steps, &want.stepwise)));
        errors.push(("candle, rows of a prefill", max_abs_error(&prefill.logits, &want.stepwise)));
        let last = &prefill.logits[TOKENS - 1..];
        errors.push(("candle, prefill", max_abs_error(last, &[want.prefill])));
    }
    for (what, error) in errors {
        println!("{name}: {what}: max abs error {error:.2e}");
        assert!(error <= TOLERANCE, "{name}: {what}: max abs error {error:e} > {TOLERANCE:e}");
    }
}

#[test]
fn llama_tied() {
    check("llama tied", config("LlamaForCausalLM", json!({"tie_word_embeddings": true})), true);
}

#[test]
fn mistral_with_a_window_shorter_than_the_text() {
    for window in [1, 7, 33] {
        check("mistral, window", config("MistralForCausalLM", json!({"sliding_window": window})), false);
    }
}

#[test]
fn llama_untied_with_llama3_scaling() {
    // Over 40 positions these factors keep some frequencies, blend one and divide the rest.
    let scaling = json!({"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32});
    check("llama untied, llama3 rope", config("LlamaForCausalLM", json!({"rope_scaling": scaling})), true);
}

#[test]
fn llama_with_linear_scaling() {
    let scaling = json!({"rope_type": "linear", "factor": 4.0});
    check("llama, linear rope", config("LlamaForCausalLM", json!({"rope_scaling": scaling})), false);
}

#[test]
fn qwen2_with_yarn() {
    // Over 12 frequencies: one kept, four blended, the rest divided.
    let scaling = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "beta_fast": 4.0,
        "beta_slow": 0.25, "attention_factor": 1.3});
    let changes = json!({"rope_scaling": scaling, "hidden_size": 96, "num_attention_heads": 4});
    check("qwen2, yarn", config("Qwen2ForCausalLM", changes), false);
}

#[test]
fn llama_with_all_biases() {
    let biases = json!({"attention_bias": true, "mlp_bias": true});
    check("llama, biases", config("LlamaForCausalLM", biases), false);
}

#[test]
fn mistral_grouped_query() {
    let changes = json!({"num_key_value_heads": 3, "head_dim": 20, "rope_theta": 1e6});
    check("mistral", config("MistralForCausalLM", changes), true);
}

#[test]
fn qwen2_with_bias() {
    check("qwen2 tied", config("Qwen2ForCausalLM", json!({"tie_word_embeddings": true})), true);
    check("qwen2 untied", config("Qwen2ForCausalLM", json!({"rope_theta": 1e6})), true);
}

#[test]
fn qwen3_with_head_norms() {
    check("qwen3", config("Qwen3ForCausalLM", json!({"head_dim": 32, "rope_theta": 1e6})), true);
    check(
        "qwen3 tied, bias",
        config(
            "Qwen3ForCausalLM",
            json!({"head_dim": 16, "attention_bias": true,
        "tie_word_embeddings": true}),
        ),
        false,
    );
}
