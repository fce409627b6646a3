//! The tensor names of Hugging Face's Llama-like models, and how they make a decoder's parts.
//!
//! Neighbours: `weights` loads each tensor, the kernels' `DecoderLayer` takes them, `decoder` runs the result. All
//! supported families share one naming; a switch of the architecture decides whether an optional tensor must exist.
//! A tensor that the config does not call for is ignored, as transformers does.

use foretoken_kernels::blocks::{DecoderLayer, DecoderLayerTensors, LayerShape, Linear};
use foretoken_kernels::ops::AttentionShape;

use super::architectures::Architecture;
use super::weights::{WeightLoader, WeightsError};

const QUERY_KEYS: &str = "num_attention_heads * head_dim and hidden_size";
const KV_KEYS: &str = "num_key_value_heads * head_dim and hidden_size";
const MLP_KEYS: &str = "intermediate_size and hidden_size";

/// Everything with weights, checked against the architecture.
pub(super) struct Parts {
    pub embedding: Linear,
    pub layers: Vec<DecoderLayer>,
    pub norm: Vec<f32>,
    /// `None`: the embedding table serves (tied).
    pub head: Option<Linear>,
}

/// One linear as the config describes it.
struct LinearSpec {
    name: &'static str,
    shape: [usize; 2],
    bias: bool,
    keys: &'static str,
}

pub(super) fn assemble(architecture: &Architecture, loader: &WeightLoader<'_>) -> Result<Parts, WeightsError> {
    let table = [architecture.vocab_size, architecture.hidden_size];
    let table_keys = "vocab_size and hidden_size";
    let table_of = |name: &str, is_multiplied| -> Result<Linear, WeightsError> {
        Ok(Linear::new(name, loader.table(&format!("{name}.weight"), table, table_keys, is_multiplied)?, None)?)
    };
    let shape = LayerShape {
        width: architecture.hidden_size,
        attention_input: architecture.hidden_size,
        attention: AttentionShape::new(architecture.heads, architecture.kv_heads, architecture.head_dim)?,
        mlp_width: architecture.intermediate_size,
        eps: architecture.rms_norm_eps as f32,
    };
    Ok(Parts {
        embedding: table_of("model.embed_tokens", architecture.tied_embeddings)?,
        layers: (0..architecture.layers)
            .map(|index| {
                let attention = shape.attention.with_window(architecture.windows[index]);
                layer(architecture, loader, LayerShape { attention, ..shape }, &format!("model.layers.{index}"))
            })
            .collect::<Result<_, _>>()?,
        norm: loader.vector("model.norm.weight", architecture.hidden_size, "hidden_size")?,
        head: if architecture.tied_embeddings { None } else { Some(table_of("lm_head", true)?) },
    })
}

fn layer(
    architecture: &Architecture,
    loader: &WeightLoader<'_>,
    shape: LayerShape,
    prefix: &str,
) -> Result<DecoderLayer, WeightsError> {
    let Architecture { hidden_size: width, intermediate_size: inner, .. } = *architecture;
    let (query, kv) = (architecture.query_width(), architecture.kv_width());
    let (qkv_bias, mlp_bias) = (architecture.qkv_bias, architecture.mlp_bias);
    let linear = |spec: LinearSpec| spec.load(loader, prefix);
    let norm = |name: &str, len: usize, keys| loader.vector(&format!("{prefix}.{name}.weight"), len, keys);
    let head_norm = |name: &str| -> Result<Option<Vec<f32>>, WeightsError> {
        architecture.qk_norm.then(|| norm(name, architecture.head_dim, "head_dim")).transpose()
    };
    let projection = |name, shape, bias, keys| linear(LinearSpec { name, shape, bias, keys });
    let tensors = DecoderLayerTensors {
        input_norm: Some(norm("input_layernorm", width, "hidden_size")?),
        q: projection("self_attn.q_proj", [query, width], qkv_bias, QUERY_KEYS)?,
        k: projection("self_attn.k_proj", [kv, width], qkv_bias, KV_KEYS)?,
        v: projection("self_attn.v_proj", [kv, width], qkv_bias, KV_KEYS)?,
        q_norm: head_norm("self_attn.q_norm")?,
        k_norm: head_norm("self_attn.k_norm")?,
        o: projection("self_attn.o_proj", [width, query], architecture.output_bias, QUERY_KEYS)?,
        post_attention_norm: norm("post_attention_layernorm", width, "hidden_size")?,
        gate: projection("mlp.gate_proj", [inner, width], mlp_bias, MLP_KEYS)?,
        up: projection("mlp.up_proj", [inner, width], mlp_bias, MLP_KEYS)?,
        down: projection("mlp.down_proj", [width, inner], mlp_bias, MLP_KEYS)?,
    };
    Ok(DecoderLayer::new(prefix, shape, tensors)?)
}

impl LinearSpec {
    fn load(&self, loader: &WeightLoader<'_>, prefix: &str) -> Result<Linear, WeightsError> {
        let name = format!("{prefix}.{}", self.name);
        let weight = loader.matrix(&format!("{name}.weight"), self.shape, self.keys)?;
        let bias = self.bias.then(|| loader.vector(&format!("{name}.bias"), self.shape[0], self.keys)).transpose()?;
        Ok(Linear::new(&name, weight, bias)?)
    }
}
