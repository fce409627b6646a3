//! GGUF's tensor names, and its order of rows, against Hugging Face's.
//!
//! Neighbours: `model::checkpoint` looks tensors up through `gguf_name`, so that `assemble` knows one naming only.
//! Rows: our RoPE rotates dimension i with i + head_dim / 2 (`rotate_half`, ggml's NEOX). Files of architecture `llama`
//! are written for ggml's other kind (NORM), which rotates neighbours 2i and 2i + 1; llama.cpp's converter permutes the
//! rows of q and k to that end, and here the permutation is undone row by row while loading. Rows hold whole blocks, so
//! this is exact for quantised weights too; a second RoPE in the kernels would be the alternative.

use super::{Gguf, GgufError};

/// The GGUF name of a tensor that Hugging Face's checkpoints call `name`, such as `blk.0.attn_q.weight`.
pub(in crate::model) fn gguf_name(name: &str) -> Option<String> {
    let whole = match name {
        "model.embed_tokens.weight" => Some("token_embd.weight"),
        "model.norm.weight" => Some("output_norm.weight"),
        "lm_head.weight" => Some("output.weight"),
        _ => None,
    };
    if let Some(whole) = whole {
        return Some(whole.to_owned());
    }
    let (layer, rest) = name.strip_prefix("model.layers.")?.split_once('.')?;
    let (role, suffix) = rest.rsplit_once('.')?;
    let role = match role {
        "input_layernorm" => "attn_norm",
        "self_attn.q_proj" => "attn_q",
        "self_attn.k_proj" => "attn_k",
        "self_attn.v_proj" => "attn_v",
        "self_attn.o_proj" => "attn_output",
        "self_attn.q_norm" => "attn_q_norm",
        "self_attn.k_norm" => "attn_k_norm",
        "post_attention_layernorm" => "ffn_norm",
        "mlp.gate_proj" => "ffn_gate",
        "mlp.up_proj" => "ffn_up",
        "mlp.down_proj" => "ffn_down",
        _ => return None,
    };
    Some(format!("blk.{layer}.{role}.{suffix}"))
}

/// How a tensor's rows lie in its file, against Hugging Face's order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowOrder {
    /// The same.
    Same,
    /// Within each head of `head_dim` rows, row `i` of the first half is at `2i` and row `i` of the second at `2i + 1`.
    Interleaved {
        /// Rows of a head.
        head_dim: usize,
    },
}

impl RowOrder {
    /// Where Hugging Face's row `row` lies in the file.
    pub fn stored(self, row: usize) -> usize {
        match self {
            Self::Same => row,
            Self::Interleaved { head_dim } => {
                let (head, within) = (row - row % head_dim, row % head_dim);
                let half = head_dim / 2;
                head + 2 * (within % half) + within / half
            }
        }
    }
}

/// The order of the rows (`rows` of them) of the tensor that the file calls `name`.
pub(in crate::model) fn row_order(gguf: &Gguf, name: &str, rows: usize) -> Result<RowOrder, GgufError> {
    let heads = match name.rsplit('.').nth(1) {
        Some("attn_q") => "llama.attention.head_count",
        Some("attn_k") if gguf.get::<usize>("llama.attention.head_count_kv")?.is_some() => {
            "llama.attention.head_count_kv"
        }
        Some("attn_k") => "llama.attention.head_count",
        _ => return Ok(RowOrder::Same),
    };
    if gguf.get::<String>("general.architecture")?.as_deref() != Some("llama") {
        return Ok(RowOrder::Same);
    }
    let heads: usize = gguf.need(heads)?;
    let head_dim = rows.checked_div(heads).unwrap_or(0);
    // Anything else is a wrong shape, which loading refuses by name.
    let whole = head_dim >= 2 && head_dim.is_multiple_of(2) && head_dim * heads == rows;
    Ok(if whole { RowOrder::Interleaved { head_dim } } else { RowOrder::Same })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_role_has_its_name() {
        let named = |name: &str| gguf_name(name).unwrap();
        assert_eq!(named("model.embed_tokens.weight"), "token_embd.weight");
        assert_eq!(named("lm_head.weight"), "output.weight");
        assert_eq!(named("model.layers.11.self_attn.k_proj.bias"), "blk.11.attn_k.bias");
        assert_eq!(named("model.layers.0.post_attention_layernorm.weight"), "blk.0.ffn_norm.weight");
        assert_eq!(named("model.layers.0.self_attn.q_norm.weight"), "blk.0.attn_q_norm.weight");
        assert!(["fc.weight", "model.layers.0", "model.layers.0.x.weight"].into_iter().all(|n| gguf_name(n).is_none()));
    }

    #[test]
    fn interleaving_is_undone_head_by_head() {
        // As `permute` in convert_hf_to_gguf.py does it: view [heads, 2, half], swap the last two, flatten.
        let (heads, half) = (3, 4);
        let mut file = vec![0; heads * 2 * half];
        for head in 0..heads {
            for part in 0..2 {
                for i in 0..half {
                    file[(head * half + i) * 2 + part] = (head * 2 + part) * half + i;
                }
            }
        }
        let order = RowOrder::Interleaved { head_dim: 2 * half };
        let undone: Vec<usize> = (0..file.len()).map(|row| file[order.stored(row)]).collect();
        assert_eq!(undone, (0..file.len()).collect::<Vec<_>>());
        assert_eq!(RowOrder::Same.stored(5), 5);
    }
}
