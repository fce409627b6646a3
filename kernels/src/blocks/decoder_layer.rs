//! One layer of a Llama-like decoder: norm, attention, residual, norm, gated MLP, residual. The linears that end the two
//! halves add to the residual stream themselves.
//!
//! Qwen's biases and per-head norms are options of the same layer. The two halves, [`DecoderLayer::attend`] and
//! [`DecoderLayer::feed_forward`], are public, for heads whose attention reads something else than the residual stream
//! (EAGLE-3 feeds it twice the width). The residual stream is f32 throughout.

use super::{KvViewMut, Linear, Workspace};
use crate::error::KernelError;
use crate::exec::Exec;
use crate::ops::rmsnorm::rmsnorm_in_place;
use crate::ops::rope_kv::RopeKvRows;
use crate::ops::{
    AttentionSeq, AttentionShape, LinearJob, PackedRows, RopeRows, attention, linear, rmsnorm, rope_kv, swiglu,
};
use crate::weight::Weight;

/// Rows that go through the MLP together. Its inner rows are the widest of a pass, and many of them leave the second-level
/// cache: a pass of 2,000 rows of width 256 takes a tenth less so, and one of wide layers as long either way.
const MLP_ROWS: usize = 256;

/// Sizes of a layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LayerShape {
    /// Width of the residual stream.
    pub width: usize,
    /// Width of what q, k and v read: `width`, unless a head feeds them something else.
    pub attention_input: usize,
    /// Heads of the attention.
    pub attention: AttentionShape,
    /// Inner width of the MLP.
    pub mlp_width: usize,
    /// Epsilon of the norms.
    pub eps: f32,
}

/// A layer's parameters, as they come from a file.
#[derive(Debug, Clone)]
pub struct DecoderLayerTensors {
    /// `[attention_input]`; `None` where the layer has no norm before attention.
    pub input_norm: Option<Vec<f32>>,
    /// `[heads * head_dim, attention_input]`.
    pub q: Linear,
    /// `[kv_dim, attention_input]`.
    pub k: Linear,
    /// `[kv_dim, attention_input]`.
    pub v: Linear,
    /// `[head_dim]`, applied to every head of q before it is rotated.
    pub q_norm: Option<Vec<f32>>,
    /// `[head_dim]`, applied to every head of k before it is rotated.
    pub k_norm: Option<Vec<f32>>,
    /// `[width, heads * head_dim]`.
    pub o: Linear,
    /// `[width]`.
    pub post_attention_norm: Vec<f32>,
    /// `[mlp_width, width]`.
    pub gate: Linear,
    /// `[mlp_width, width]`.
    pub up: Linear,
    /// `[width, mlp_width]`.
    pub down: Linear,
}

/// The rows of a pass, as every layer sees them.
#[derive(Debug, Clone, Copy)]
pub struct ForwardRows<'a> {
    /// The rotation of each row's position.
    pub rope: &'a RopeRows,
    /// Slot of each row.
    pub slots: &'a [u32],
    /// The sequences whose rows these are. Their `new_slots` must be their part of `slots`.
    pub seqs: &'a [AttentionSeq<'a>],
}

/// A checked layer.
#[derive(Debug, Clone)]
pub struct DecoderLayer {
    shape: LayerShape,
    tensors: DecoderLayerTensors,
}

impl DecoderLayer {
    /// Checks every tensor against `shape`. `prefix` (such as `model.layers.3`) names them in the error.
    pub fn new(prefix: &str, shape: LayerShape, tensors: DecoderLayerTensors) -> Result<Self, KernelError> {
        let LayerShape { width, attention_input: input, attention, mlp_width, .. } = shape;
        let linears = [
            ("self_attn.q_proj", &tensors.q, attention.q_dim(), input),
            ("self_attn.k_proj", &tensors.k, attention.kv_dim(), input),
            ("self_attn.v_proj", &tensors.v, attention.kv_dim(), input),
            ("self_attn.o_proj", &tensors.o, width, attention.q_dim()),
            ("mlp.gate_proj", &tensors.gate, mlp_width, width),
            ("mlp.up_proj", &tensors.up, mlp_width, width),
            ("mlp.down_proj", &tensors.down, width, mlp_width),
        ];
        for (name, linear, outs, ins) in linears {
            linear.check(&format!("{prefix}.{name}"), outs, ins)?;
        }
        let norms = [
            ("input_layernorm", tensors.input_norm.as_ref(), input),
            ("self_attn.q_norm", tensors.q_norm.as_ref(), attention.head_dim()),
            ("self_attn.k_norm", tensors.k_norm.as_ref(), attention.head_dim()),
            ("post_attention_layernorm", Some(&tensors.post_attention_norm), width),
        ];
        for (name, norm, expected) in norms {
            if let Some(norm) = norm.filter(|norm| norm.len() != expected) {
                let tensor = format!("{prefix}.{name}.weight");
                return Err(KernelError::Shape { tensor, expected: vec![expected], got: vec![norm.len()] });
            }
        }
        Ok(Self { shape, tensors })
    }

    /// The layer's sizes.
    pub fn shape(&self) -> &LayerShape {
        &self.shape
    }

    /// Everything that a pass multiplies by.
    pub fn linears(&self) -> [&Linear; 7] {
        let DecoderLayerTensors { q, k, v, o, gate, up, down, .. } = &self.tensors;
        [q, k, v, o, gate, up, down]
    }

    /// The whole layer on the residual stream `hidden` (`[rows, width]`), in place. The rows' keys and values are
    /// stored in layer `index` of `kv`.
    pub fn forward(
        &self,
        exec: &Exec,
        rows: &ForwardRows<'_>,
        hidden: &mut [f32],
        (kv, index): (&mut KvViewMut<'_>, usize),
        workspace: &mut Workspace,
    ) {
        let (shape, tensors) = (&self.shape, &self.tensors);
        assert_eq!(shape.attention_input, shape.width, "a layer with an input of its own is run by its halves");
        assert_eq!(hidden.len(), rows.slots.len() * shape.width, "hidden must be [rows, width]");
        let mut normed = std::mem::take(&mut workspace.normed);
        normed.sized(hidden.len());
        match &tensors.input_norm {
            Some(weight) => rmsnorm(exec, hidden, weight, shape.eps, &mut normed),
            None => normed.copy_from_slice(hidden),
        }
        self.attend(exec, rows, &normed, hidden, (kv, index), workspace);
        workspace.normed = normed;
        self.feed_forward(exec, hidden, workspace);
    }

    /// What follows [`DecoderLayer::attend`]: the residual stream `hidden` (`[rows, width]`) takes in what the normed MLP adds.
    pub fn feed_forward(&self, exec: &Exec, hidden: &mut [f32], workspace: &mut Workspace) {
        let weight = &self.tensors.post_attention_norm;
        let mut normed = std::mem::take(&mut workspace.normed);
        for hidden in hidden.chunks_mut(MLP_ROWS * self.shape.width) {
            let normed = normed.sized(hidden.len());
            rmsnorm(exec, hidden, weight, self.shape.eps, normed);
            self.mlp(exec, normed, hidden, workspace);
        }
        workspace.normed = normed;
    }

    /// Attention on `input` (`[rows, attention_input]`, normed), added to the residual stream `hidden` (`[rows, width]`).
    pub fn attend(
        &self,
        exec: &Exec,
        rows: &ForwardRows<'_>,
        input: &[f32],
        hidden: &mut [f32],
        (kv, index): (&mut KvViewMut<'_>, usize),
        workspace: &mut Workspace,
    ) {
        let (shape, tensors, count) = (&self.shape, &self.tensors, rows.slots.len());
        assert_eq!(input.len(), count * shape.attention_input, "input must be [rows, attention_input]");
        let Workspace { packed, q, k, v, .. } = workspace;
        let q = q.sized(count * shape.attention.q_dim());
        let k = k.sized(count * shape.attention.kv_dim());
        let v = v.sized(count * shape.attention.kv_dim());
        let jobs = [(&tensors.q, &mut *q), (&tensors.k, &mut *k), (&tensors.v, &mut *v)];
        shared_input(exec, packed, input, jobs);
        for (norm, heads) in [(&tensors.q_norm, &mut *q), (&tensors.k_norm, &mut *k)] {
            if let Some(weight) = norm {
                rmsnorm_in_place(exec, heads, weight, shape.eps);
            }
        }
        rope_kv(exec, rows.rope, RopeKvRows { q, k, v, slots: rows.slots }, kv, index);
        attention(exec, &shape.attention, q, kv.layer(index), rows.seqs);
        tensors.o.add(exec, q, packed, hidden);
    }

    /// Keys and values of `input` (`[rows, attention_input]`) into layer `index` of `kv`, and nothing else: for heads whose
    /// context is not what their own layers made (DFlash injects the target's hidden rows).
    pub fn store(
        &self,
        exec: &Exec,
        (rope, slots): (&RopeRows, &[u32]),
        input: &[f32],
        (kv, index): (&mut KvViewMut<'_>, usize),
        workspace: &mut Workspace,
    ) {
        let (shape, tensors) = (&self.shape, &self.tensors);
        assert_eq!(input.len(), slots.len() * shape.attention_input, "input must be [rows, attention_input]");
        let Workspace { packed, k, v, .. } = workspace;
        let k = k.sized(slots.len() * shape.attention.kv_dim());
        let v = v.sized(slots.len() * shape.attention.kv_dim());
        shared_input(exec, packed, input, [(&tensors.k, &mut *k), (&tensors.v, &mut *v)]);
        if let Some(weight) = &tensors.k_norm {
            rmsnorm_in_place(exec, k, weight, shape.eps);
        }
        rope_kv(exec, rope, RopeKvRows { q: &mut [], k, v, slots }, kv, index);
    }

    /// The gated MLP on `input`, normed, added to the residual stream `hidden`. Both are `[rows, width]`.
    fn mlp(&self, exec: &Exec, input: &[f32], hidden: &mut [f32], workspace: &mut Workspace) {
        let (shape, tensors) = (&self.shape, &self.tensors);
        let count = input.len() / shape.width;
        let Workspace { packed, gate, up, .. } = workspace;
        let gate = gate.sized(count * shape.mlp_width);
        let up = up.sized(count * shape.mlp_width);
        shared_input(exec, packed, input, [(&tensors.gate, &mut *gate), (&tensors.up, &mut *up)]);
        swiglu(exec, gate, up);
        tensors.down.add(exec, gate, packed, hidden);
    }
}

/// Several linears on one input in one parallel region, if their weights are stored alike.
fn shared_input<const N: usize>(exec: &Exec, packed: &mut PackedRows, input: &[f32], jobs: [(&Linear, &mut [f32]); N]) {
    let first = jobs[0].0.weight();
    let stored = |weight: &Weight| (weight.dtype(), weight.folds(), weight.arrangement());
    if jobs.iter().all(|(linear, _)| stored(linear.weight()) == stored(first)) {
        packed.pack(exec, first, input);
        linear(exec, packed, &mut jobs.map(|(linear, out)| LinearJob { linear, out, adds: false }));
    } else {
        jobs.into_iter().for_each(|(linear, out)| linear.forward(exec, input, packed, out));
    }
}
