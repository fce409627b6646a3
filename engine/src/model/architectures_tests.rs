use super::*;
use foretoken_kernels::ops::{RopeScaling, Yarn};
use serde_json::json;

/// A valid config, with some keys replaced (null removes nothing: it is written as null).
fn parse(changes: Value) -> Result<Architecture, ConfigError> {
    let mut config = json!({"architectures": ["LlamaForCausalLM"], "vocab_size": 100, "hidden_size": 64,
        "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2, "sliding_window": null});
    for (key, value) in changes.as_object().unwrap() {
        config[key] = value.clone();
    }
    Architecture::parse(&config.to_string(), Path::new("some/config.json"))
}

fn refusal(changes: Value) -> String {
    parse(changes).unwrap_err().to_string()
}

#[test]
fn families_differ_in_their_switches() {
    let llama = parse(json!({})).unwrap();
    assert_eq!((llama.heads, llama.kv_heads, llama.head_dim), (4, 4, 16));
    assert_eq!((llama.qkv_bias, llama.output_bias, llama.mlp_bias, llama.qk_norm), (false, false, false, false));
    let llama = parse(json!({"attention_bias": true, "mlp_bias": true, "num_key_value_heads": 2})).unwrap();
    assert_eq!((llama.kv_heads, llama.qkv_bias, llama.output_bias, llama.mlp_bias), (2, true, true, true));
    let qwen2 = parse(json!({"architectures": ["Qwen2ForCausalLM"], "tie_word_embeddings": true})).unwrap();
    assert_eq!((qwen2.qkv_bias, qwen2.output_bias, qwen2.tied_embeddings), (true, false, true));
    let qwen3 = parse(json!({"architectures": ["Qwen3ForCausalLM"], "head_dim": 32})).unwrap();
    assert_eq!((qwen3.qkv_bias, qwen3.qk_norm, qwen3.query_width()), (false, true, 128));
    let mistral = parse(json!({"architectures": ["MistralForCausalLM"], "attention_bias": true})).unwrap();
    assert!(!mistral.qkv_bias && !mistral.qk_norm);
}

#[test]
fn token_ids_are_one_many_or_none() {
    assert_eq!(parse(json!({})).unwrap().token_ids, TokenIds { bos: Some(1), eos: vec![2] });
    assert_eq!(parse(json!({"eos_token_id": [5, 6]})).unwrap().token_ids.eos, [5, 6]);
    assert_eq!(parse(json!({"eos_token_id": null})).unwrap().token_ids.eos, Vec::<u32>::new());
}

#[test]
fn rope_is_read_in_both_spellings() {
    let old = parse(json!({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 4}})).unwrap().rope;
    assert_eq!(old, Rope { theta: 5e5, scaling: RopeScaling::Linear { factor: 4.0 }, factors: None });
    let parameters = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let new = parse(json!({"rope_parameters": parameters})).unwrap().rope;
    let RopeScaling::Llama3 { original_max_position_embeddings: original, .. } = new.scaling else { panic!("{new:?}") };
    assert_eq!((new.theta, original), (5e5, 8192));
    let plain = parse(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})).unwrap().rope;
    assert_eq!(plain, Rope { theta: 7.0, scaling: RopeScaling::None, factors: None });
    assert_eq!(parse(json!({})).unwrap().rope.theta, 10_000.0);
}

#[test]
fn unknown_architectures_list_the_known_and_the_nearest() {
    let text = refusal(json!({"architectures": ["Qwen2MoeForCausalLM"]}));
    assert!(text.contains("`Qwen2MoeForCausalLM`") && text.contains("nearest is `Qwen2ForCausalLM`"), "{text}");
    assert!(text.contains("LlamaForCausalLM, MistralForCausalLM") && text.contains("some/config.json"), "{text}");
    let bare = Architecture::parse("{\"architectures\": [\"BertModel\"]}", Path::new("c")).unwrap_err();
    assert!(matches!(bare, ConfigError::UnknownArchitecture { .. }), "{bare}");
    assert!(refusal(json!({"architectures": null})).contains("none named"));
}

#[test]
fn what_would_change_outputs_is_refused_by_key() {
    let longrope = refusal(json!({"rope_scaling": {"rope_type": "longrope", "factor": 4.0}}));
    assert!(
        longrope.contains("`rope_scaling.rope_type` is longrope") && longrope.contains("llama3 or yarn"),
        "{longrope}"
    );
    let slow = refusal(json!({"rope_scaling": {"type": "yarn", "factor": 4.0, "beta_fast": 1.0}}));
    assert!(slow.contains("rope_scaling.beta_fast") && slow.contains("more than beta_slow = 1"), "{slow}");
    let factor = refusal(json!({"rope_scaling": {"type": "yarn", "factor": -1.0}}));
    assert!(factor.contains("rope_scaling.factor"), "{factor}");
    assert!(refusal(json!({"num_hidden_layers": 1_u64 << 40})).contains("at most 10000"));
    let lacking = refusal(json!({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}));
    assert!(lacking.contains("rope_scaling.low_freq_factor"), "{lacking}");
    assert!(refusal(json!({"hidden_act": "gelu"})).contains("`hidden_act` is gelu, expected silu"));
    assert!(refusal(json!({"quantization_config": {"quant_method": "awq"}})).contains("awq"));
    assert!(refusal(json!({"partial_rotary_factor": 0.5})).contains("partial_rotary_factor"));
    assert!(refusal(json!({"num_key_value_heads": 3})).contains("divisor of num_attention_heads = 4"));
    assert!(refusal(json!({"num_attention_heads": 5})).contains("hidden_size"));
    assert!(refusal(json!({"head_dim": 15})).contains("even"));
    assert!(refusal(json!({"vocab_size": 0})).contains("vocab_size"));
    assert!(refusal(json!({"vocab_size": "many"})).contains("not a model config"));
}

/// Values from transformers 5's `_compute_yarn_parameters` where they are not defaults written there.
#[test]
fn yarn_is_read_with_its_defaults() {
    let read = |scaling: Value| {
        let architecture = parse(json!({"rope_scaling": scaling})).unwrap();
        let RopeScaling::Yarn(yarn) = architecture.rope.scaling else { panic!("{architecture:?}") };
        (yarn, architecture.max_positions)
    };
    let suggested = 0.1 * 4f64.ln() + 1.0;
    let defaults = Yarn {
        factor: 4.0,
        original_max_position_embeddings: 128,
        beta_fast: 32.0,
        beta_slow: 1.0,
        attention_factor: suggested,
        truncate: true,
    };
    // The trained context is max_position_embeddings, and YaRN stretches it.
    assert_eq!(read(json!({"type": "yarn", "factor": 4.0})), (defaults, 512));
    let qwen = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64});
    assert_eq!(read(qwen), (Yarn { original_max_position_embeddings: 64, ..defaults }, 256));
    // Without a factor it is the ratio of the contexts.
    let ratio = json!({"rope_type": "yarn", "original_max_position_embeddings": 32});
    assert_eq!(read(ratio), (Yarn { original_max_position_embeddings: 32, ..defaults }, 128));
    let given = json!({"type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2, "attention_factor": 1.5,
        "truncate": false, "mscale": 0.7, "mscale_all_dim": 0.3});
    let want = Yarn { beta_fast: 16.0, beta_slow: 2.0, attention_factor: 1.5, truncate: false, ..defaults };
    assert_eq!(read(given).0, want);
    let deepseek = json!({"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.3});
    let ratio = (0.07 * 4f64.ln() + 1.0) / (0.03 * 4f64.ln() + 1.0);
    assert!((read(deepseek).0.attention_factor - ratio).abs() < 1e-12);
    let half = json!({"type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 0.0});
    assert_eq!(read(half).0.attention_factor, suggested);
    assert_eq!(read(json!({"type": "yarn", "factor": 0.5})).0.attention_factor, 1.0);
}

#[test]
fn windows_follow_the_families_defaults() {
    let windows = |name: &str, changes: Value| {
        let mut all = json!({"architectures": [name], "sliding_window": 64, "use_sliding_window": true});
        for (key, value) in changes.as_object().unwrap() {
            all[key] = value.clone();
        }
        parse(all).unwrap().windows
    };
    let mistral = |changes| windows("MistralForCausalLM", changes);
    assert_eq!(mistral(json!({})), [Some(64), Some(64)]);
    assert_eq!(mistral(json!({"sliding_window": null})), [None, None]);
    assert_eq!(mistral(json!({"sliding_window": 128})), [None, None], "the context never outgrows it");
    let types = json!(["full_attention", "sliding_attention"]);
    assert_eq!(mistral(json!({"layer_types": types})), [None, Some(64)]);
    for name in ["Qwen2ForCausalLM", "Qwen3ForCausalLM"] {
        assert_eq!(windows(name, json!({"max_window_layers": 1})), [None, Some(64)]);
        assert_eq!(windows(name, json!({})), [None, None], "28 layers are full by default");
        assert_eq!(windows(name, json!({"max_window_layers": 0, "use_sliding_window": false})), [None, None]);
        assert_eq!(windows(name, json!({"layer_types": types})), [None, Some(64)]);
    }
    assert_eq!(windows("LlamaForCausalLM", json!({"layer_types": types})), [None, None]);
    // An absent key is not null: MistralConfig's default is 4096.
    let absent = json!({"architectures": ["MistralForCausalLM"], "vocab_size": 9, "hidden_size": 8,
        "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 8, "max_position_embeddings": 8192});
    let absent = Architecture::parse(&absent.to_string(), Path::new("config.json")).unwrap();
    assert_eq!(absent.windows, [Some(4096)]);
}
