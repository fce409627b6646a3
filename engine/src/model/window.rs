//! Which layers attend to a sliding window, as `config.json` describes it.
//!
//! Neighbours: `architectures` holds the result, `assemble` gives each layer its own. Families
//! differ in their defaults (transformers' configs): Mistral's window is 4096 unless the key says null and acts in
//! every layer; Qwen's acts only with `use_sliding_window`, from layer `max_window_layers` on or where `layer_types`
//! says so; Llama has none. A window that the context never outgrows is no window, so most published models have none.

use serde::{Deserialize, Deserializer};

/// MistralConfig's and Qwen2Config's default.
const DEFAULT_WINDOW: usize = 4096;
/// Qwen2Config's and Qwen3Config's default.
const DEFAULT_FULL_LAYERS: usize = 28;

/// The keys of `config.json` that windows are made of.
#[derive(Debug, Default, Deserialize)]
pub(super) struct RawWindow {
    /// Outer `None`: the key is absent, which means the family's default.
    #[serde(default, deserialize_with = "present")]
    sliding_window: Option<Option<usize>>,
    use_sliding_window: Option<bool>,
    max_window_layers: Option<usize>,
    layer_types: Option<Vec<String>>,
}

fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<Option<usize>>, D::Error> {
    Option::deserialize(deserializer).map(Some)
}

impl RawWindow {
    /// Per layer the window in tokens, or `None`. A row at position `i` sees positions above `i - window` only.
    pub(super) fn per_layer(&self, family: &str, layers: usize, max_positions: usize) -> Vec<Option<usize>> {
        let is_mistral = family == "MistralForCausalLM";
        let used = is_mistral || family != "LlamaForCausalLM" && self.use_sliding_window.unwrap_or(false);
        let window = self.sliding_window.unwrap_or(Some(DEFAULT_WINDOW));
        let window = window.filter(|&window| used && window < max_positions);
        let first = if is_mistral { 0 } else { self.max_window_layers.unwrap_or(DEFAULT_FULL_LAYERS) };
        let slides = |layer: usize| match &self.layer_types {
            Some(types) => types.get(layer).is_some_and(|kind| kind == "sliding_attention"),
            None => layer >= first,
        };
        (0..layers).map(|layer| window.filter(|_| slides(layer))).collect()
    }
}
