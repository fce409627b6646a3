//! A small model inside a large one's shape: its text is the small model's, its cost the large one's.
//!
//! `cargo run --release -p foretoken --example graft -- examples/models/tiny FOLDER` makes a target of 1.1 billion
//! weights that speaks as `tiny` does, so that speculation can be measured at a size that is bound by memory, with
//! proposers trained for `tiny`. Every matrix is padded with zeros, which add exact zeros to every sum; the layers
//! beyond the small model's have zero output projections. An RMS norm divides by the mean over the width, which the
//! padding makes smaller: its weight is scaled by sqrt(small / large) and epsilon by small / large. Head size,
//! vocabulary and queries per KV head stay.
//!
//! Only what is not zero is written, so the file is sparse and made in a second.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Seek, SeekFrom, Write};
use std::path::Path;

use anyhow::{Context, bail, ensure};
use foretoken::model::{Architecture, Checkpoint};
use serde_json::{Value, json};

/// Sizes of the large model. Its heads are a multiple of the small one's KV heads' groups.
#[derive(Debug, Clone, Copy)]
pub struct Shape {
    /// Layers.
    pub layers: usize,
    /// Width of the residual stream.
    pub width: usize,
    /// Inner width of the MLP.
    pub mlp_width: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
}

/// 1.1 billion weights with `tiny`'s 3 queries per KV head of 64: 30 heads over 10.
pub const BILLION: Shape = Shape { layers: 24, width: 2048, mlp_width: 5632, kv_heads: 10 };

#[allow(dead_code, reason = "the test of this file has a main of its own")]
fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [from, to] = &arguments[..] else {
        bail!("usage: graft MODEL FOLDER, such as graft examples/models/tiny /tmp/grafted")
    };
    graft(Path::new(from), Path::new(to), BILLION)?;
    println!("{to}: {} inside {BILLION:?}", from);
    Ok(())
}

/// Writes the model `from`, padded to `shape`, to the folder `to`.
///
/// # Errors
/// If the model cannot be read, does not fit the shape, or the folder cannot be written.
pub fn graft(from: &Path, to: &Path, shape: Shape) -> anyhow::Result<()> {
    let small = Architecture::open(from)?;
    let checkpoint = Checkpoint::open(from)?;
    ensure!(small.tied_embeddings && !small.qk_norm && !small.qkv_bias, "only tied Llama models without biases");
    ensure!(
        shape.layers >= small.layers
            && shape.width >= small.hidden_size
            && shape.mlp_width >= small.intermediate_size
            && shape.kv_heads >= small.kv_heads,
        "{shape:?} is smaller than the model: {small:?}"
    );
    std::fs::create_dir_all(to).with_context(|| format!("cannot create {}", to.display()))?;
    write_config(from, to, &small, shape)?;
    for file in ["tokenizer.json", "tokenizer_config.json", "generation_config.json", "special_tokens_map.json"] {
        if from.join(file).exists() {
            std::fs::copy(from.join(file), to.join(file)).with_context(|| format!("cannot copy {file}"))?;
        }
    }
    write_weights(&to.join("model.safetensors"), &tensors(&small, shape), &checkpoint, small.hidden_size)
}

fn write_config(from: &Path, to: &Path, small: &Architecture, shape: Shape) -> anyhow::Result<()> {
    let text = std::fs::read_to_string(from.join("config.json"))?;
    let mut config: BTreeMap<String, Value> = serde_json::from_str(&text)?;
    let share = small.hidden_size as f64 / shape.width as f64;
    for (key, value) in [
        ("num_hidden_layers", json!(shape.layers)),
        ("hidden_size", json!(shape.width)),
        ("intermediate_size", json!(shape.mlp_width)),
        ("num_key_value_heads", json!(shape.kv_heads)),
        ("num_attention_heads", json!(shape.kv_heads * (small.heads / small.kv_heads))),
        ("head_dim", json!(small.head_dim)),
        ("rms_norm_eps", json!(small.rms_norm_eps * share)),
    ] {
        config.insert(key.to_owned(), value);
    }
    std::fs::write(to.join("config.json"), serde_json::to_string_pretty(&config)?)?;
    Ok(())
}

/// Names and shapes of the large model's tensors; `[len]` is a norm.
fn tensors(small: &Architecture, shape: Shape) -> Vec<(String, Vec<usize>)> {
    let kv = shape.kv_heads * small.head_dim;
    let query = kv * (small.heads / small.kv_heads);
    let Shape { layers, width, mlp_width, .. } = shape;
    let mut tensors = vec![("model.embed_tokens.weight".to_owned(), vec![small.vocab_size, width])];
    for layer in 0..layers {
        let parts = [
            ("input_layernorm", vec![width]),
            ("self_attn.q_proj", vec![query, width]),
            ("self_attn.k_proj", vec![kv, width]),
            ("self_attn.v_proj", vec![kv, width]),
            ("self_attn.o_proj", vec![width, query]),
            ("post_attention_layernorm", vec![width]),
            ("mlp.gate_proj", vec![mlp_width, width]),
            ("mlp.up_proj", vec![mlp_width, width]),
            ("mlp.down_proj", vec![width, mlp_width]),
        ];
        tensors.extend(parts.map(|(name, sizes)| (format!("model.layers.{layer}.{name}.weight"), sizes)));
    }
    tensors.push(("model.norm.weight".to_owned(), vec![width]));
    tensors
}

/// Norms as F32, matrices as BF16.
fn write_weights(
    path: &Path,
    tensors: &[(String, Vec<usize>)],
    checkpoint: &Checkpoint,
    small_width: usize,
) -> anyhow::Result<()> {
    let bytes = |sizes: &[usize]| sizes.iter().product::<usize>() * if sizes.len() == 1 { 4 } else { 2 };
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, sizes) in tensors {
        let dtype = if sizes.len() == 1 { "F32" } else { "BF16" };
        let start = end;
        end += bytes(sizes);
        header.insert(name.clone(), json!({ "dtype": dtype, "shape": sizes, "data_offsets": [start, end] }));
    }
    let mut header = serde_json::to_vec(&header)?;
    header.resize((header.len() + 8).next_multiple_of(64) - 8, b' ');
    let mut file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    file.write_all(&(header.len() as u64).to_le_bytes())?;
    file.write_all(&header)?;
    let mut start = file.stream_position()?;
    file.set_len(start + end as u64)?;
    for (name, sizes) in tensors {
        match (checkpoint.tensor(name), &sizes[..]) {
            // A layer that the small model lacks: its norms are ones, its matrices zeros.
            (Err(_), [_]) => write_norm(&mut file, start, &vec![1.0; sizes[0]])?,
            (Err(_), _) => {}
            (Ok(tensor), [width]) => {
                let scale = (small_width as f64 / *width as f64).sqrt();
                let values = tensor.bytes.as_chunks().0.iter().map(|word| half::bf16::from_le_bytes(*word).to_f64());
                ensure!(tensor.bytes.len() == 2 * small_width, "{name} must be BF16");
                write_norm(&mut file, start, &values.map(|value| (value * scale) as f32).collect::<Vec<_>>())?;
            }
            (Ok(tensor), _) => {
                let (row, padded_row) = (2 * tensor.shape[1], 2 * sizes[1]);
                ensure!(tensor.bytes.len() == tensor.shape[0] * row, "{name} must be BF16");
                for (index, row) in tensor.bytes.chunks_exact(row).enumerate() {
                    file.seek(SeekFrom::Start(start + (index * padded_row) as u64))?;
                    file.write_all(row)?;
                }
            }
        }
        start += bytes(sizes) as u64;
    }
    Ok(())
}

fn write_norm(file: &mut File, start: u64, values: &[f32]) -> anyhow::Result<()> {
    file.seek(SeekFrom::Start(start))?;
    file.write_all(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>())?;
    Ok(())
}
