use super::*;
use foretoken_kernels::ops::RopeScaling;
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
    assert_eq!(old, Rope { theta: 5e5, scaling: RopeScaling::Linear { factor: 4.0 } });
    let parameters = json!({"rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
        "high_freq_factor": 4.0, "original_max_position_embeddings": 8192});
    let new = parse(json!({"rope_parameters": parameters})).unwrap().rope;
    let RopeScaling::Llama3 { original_max_position_embeddings: original, .. } = new.scaling else { panic!("{new:?}") };
    assert_eq!((new.theta, original), (5e5, 8192));
    let plain = parse(json!({"rope_parameters": {"rope_type": "default", "rope_theta": 7.0}})).unwrap().rope;
    assert_eq!(plain, Rope { theta: 7.0, scaling: RopeScaling::None });
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
    let yarn = refusal(json!({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}));
    assert!(yarn.contains("`rope_scaling.rope_type` is yarn") && yarn.contains("linear or llama3"), "{yarn}");
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

#[test]
fn a_sliding_window_is_refused_only_where_it_acts() {
    let family = |name: &str, window: Value, used: bool| {
        parse(json!({"architectures": [name], "sliding_window": window, "use_sliding_window": used}))
    };
    let error = family("MistralForCausalLM", json!(64), false).unwrap_err().to_string();
    assert!(error.contains("`sliding_window` is 64") && error.contains("later release"), "{error}");
    assert!(family("MistralForCausalLM", json!(128), false).is_ok());
    assert!(family("MistralForCausalLM", json!(null), false).is_ok());
    assert!(family("Qwen2ForCausalLM", json!(64), false).is_ok());
    assert!(family("Qwen2ForCausalLM", json!(64), true).is_err());
    let full = json!(["full_attention", "full_attention"]);
    let qwen = json!({"architectures": ["Qwen3ForCausalLM"], "sliding_window": 64, "use_sliding_window": true,
        "layer_types": full});
    assert!(parse(qwen).is_ok());
}
