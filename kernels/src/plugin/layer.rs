//! A decoder layer from a head's file.

use foretoken_plugin_api::Result;

use super::{DecoderConfig, HeadTensors};
use crate::blocks::{DecoderLayer, DecoderLayerTensors, LayerShape};
use crate::ops::AttentionShape;

/// What differs between the decoder layers of heads.
#[derive(Debug, Clone, Copy)]
pub struct LayerForm {
    /// Width of what q, k and v read.
    pub attention_input: usize,
    /// Whether there is a norm before attention.
    pub has_input_norm: bool,
    /// Added to the weights of norms: 1 where the file holds them less 1.
    pub norm_offset: f32,
    /// The sliding window of its attention.
    pub window: Option<usize>,
}

impl LayerForm {
    /// The layer whose tensors begin with `prefix`; norms of the heads of q and k are taken where there are some.
    ///
    /// # Errors
    /// If a tensor is missing or has another shape than `config` says; the message names it.
    pub fn load(self, loader: &HeadTensors<'_>, prefix: &str, config: &DecoderConfig) -> Result<DecoderLayer> {
        let Self { attention_input, has_input_norm, norm_offset, window } = self;
        let (width, inner) = (config.hidden_size, config.intermediate_size);
        let attention = AttentionShape::new(config.num_attention_heads, config.kv_heads(), config.head_dim());
        let attention = attention.map_err(|error| loader.refused(error))?.with_window(window);
        let linear = |name: &str, outs: usize, ins: usize| loader.linear(&format!("{prefix}.{name}"), [outs, ins]);
        let norm = |name: &str, len: usize| loader.norm(&format!("{prefix}.{name}.weight"), len, norm_offset);
        let head_norm = |name: &str| {
            let found = loader.find(&format!("{prefix}.{name}.weight"));
            found.map(|_| norm(name, config.head_dim())).transpose()
        };
        let tensors = DecoderLayerTensors {
            input_norm: has_input_norm.then(|| norm("input_layernorm", width)).transpose()?,
            q: linear("self_attn.q_proj", attention.q_dim(), attention_input)?,
            k: linear("self_attn.k_proj", attention.kv_dim(), attention_input)?,
            v: linear("self_attn.v_proj", attention.kv_dim(), attention_input)?,
            q_norm: head_norm("self_attn.q_norm")?,
            k_norm: head_norm("self_attn.k_norm")?,
            o: linear("self_attn.o_proj", width, attention.q_dim())?,
            post_attention_norm: norm("post_attention_layernorm", width)?,
            gate: linear("mlp.gate_proj", inner, width)?,
            up: linear("mlp.up_proj", inner, width)?,
            down: linear("mlp.down_proj", width, inner)?,
        };
        let shape = LayerShape { width, attention_input, attention, mlp_width: inner, eps: config.eps() };
        DecoderLayer::new(prefix, shape, tensors).map_err(|error| loader.refused(error))
    }
}
