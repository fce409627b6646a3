//! The head's network: rows of embeddings and features in, rows of new features and logits out.
//!
//! Row s stands for token s of a sequence. It reads the embedding of that token and the feature of the position before:
//! the target's where the target has been there, else the head's own from its last pass. What it gives is a feature of
//! position s, and logits of token s + 1.

use foretoken_kernels::blocks::{
    DecoderLayer, DecoderLayerTensors, ForwardRows, KvDtype, KvShape, KvViewMut, LayerShape, Linear, Workspace,
};
use foretoken_kernels::ops::{AttentionSeq, AttentionShape, RopeRows, RopeTable, rmsnorm};
use foretoken_kernels::plugin::HeadTensors;
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{DType, Host, Result, TargetFacts, Token};

use crate::config::HeadConfig;

/// Which network it is.
enum Form {
    /// EAGLE-1 and 2: `fc` joins embedding and feature; the target's own projection.
    Eagle,
    /// EAGLE-3: attention reads both side by side; norm and projection of its own.
    Eagle3 {
        input_norm: Vec<f32>,
        hidden_norm: Vec<f32>,
        norm: Vec<f32>,
        /// The head's projection; the target's where it has none.
        head: Option<Linear>,
        norm_before_residual: bool,
    },
}

/// The rows of a pass.
pub struct HeadRows<'a> {
    /// Embeddings, `[rows, hidden_size]`.
    pub embeddings: &'a [f32],
    /// Features, `[rows, hidden_size]`; new ones when the pass is done.
    pub features: &'a mut Vec<f32>,
    /// Rotary position of each row.
    pub positions: &'a [u32],
    /// Lane row of each row.
    pub slots: &'a [u32],
    /// The sequences whose rows these are.
    pub seqs: &'a [AttentionSeq<'a>],
}

/// A loaded head.
pub struct Network {
    form: Form,
    fc: Linear,
    layer: DecoderLayer,
    rope: RopeTable,
    kv: KvShape,
    width: usize,
    eps: f32,
    vocab_size: usize,
    /// The target's token for each of the head's; empty where they are the same.
    targets: Vec<Token>,
    hidden_layers: Vec<usize>,
    exec: Exec,
    workspace: Workspace,
    rope_rows: RopeRows,
    joined: Vec<f32>,
    normed: Vec<f32>,
}

impl Network {
    /// Loads the head at `path` for the host's target.
    ///
    /// # Errors
    /// If it is no EAGLE head, or one for another target; the message names the tensor.
    pub fn load(path: &str, dtype: Option<WeightDtype>, host: &Host) -> Result<Self> {
        let tensors = host.load_tensors(path)?;
        let config = HeadConfig::read(path, &tensors.config())?;
        let exec = Exec::from(host);
        let loader = HeadTensors::new(format!("eagle: {path}"), &*tensors, (dtype, &exec));
        let target = host.target();
        if config.hidden_size != target.hidden_size {
            let (ours, theirs) = (config.hidden_size, target.hidden_size);
            let message =
                format!("hidden_size is {ours}, of the target {} {theirs}; it is a head for another", target.path);
            return Err(loader.refused(message));
        }
        let width = config.hidden_size;
        let third =
            ["midlayer", "layers.0"].into_iter().find(|it| loader.find(&format!("{it}.hidden_norm.weight")).is_some());
        let layers = match third {
            Some(_) => aux_layers(&config, &target).map_err(|reason| loader.refused(reason))?,
            None => vec![target.num_layers],
        };
        let prefix = third.unwrap_or("layers.0");
        let fc = match third {
            Some(_) => loader.linear("fc", [width, layers.len() * width])?,
            None => loader.linear("fc", [width, 2 * width])?,
        };
        let (form, vocab_size) = match third {
            None => (Form::Eagle, target.vocab_size),
            Some(_) => {
                let vocab_size = config.draft_vocab_size.unwrap_or(target.vocab_size);
                let has_head = loader.find("lm_head.weight").is_some();
                let head = has_head.then(|| loader.linear("lm_head", [vocab_size, width])).transpose()?;
                let form = Form::Eagle3 {
                    input_norm: loader.vector(&format!("{prefix}.input_layernorm.weight"), width)?,
                    hidden_norm: loader.vector(&format!("{prefix}.hidden_norm.weight"), width)?,
                    norm: loader.vector("norm.weight", width)?,
                    head,
                    norm_before_residual: config.norm_before_residual,
                };
                (form, vocab_size)
            }
        };
        let targets = targets(&loader, vocab_size, target.vocab_size)?;
        let attention_input = if third.is_some() { 2 * width } else { width };
        let layer = layer(&loader, prefix, &config, attention_input)?;
        let (theta, scaling) = config.scaling().map_err(|reason| loader.refused(reason))?;
        let kv = KvShape {
            layers: 1,
            heads: config.kv_heads(),
            head_dim: config.head_dim(),
            dtype: if layer.linears()[0].weight().dtype() == WeightDtype::F32 { KvDtype::F32 } else { KvDtype::Bf16 },
        };
        Ok(Self {
            form,
            fc,
            layer,
            rope: RopeTable::new(config.head_dim(), theta, scaling),
            kv,
            width,
            eps: config.rms_norm_eps as f32,
            vocab_size,
            targets,
            hidden_layers: layers,
            exec: exec.clone(),
            workspace: Workspace::new(),
            rope_rows: RopeRows::new(),
            joined: Vec::new(),
            normed: Vec::new(),
        })
    }

    /// Layers of the target whose hidden rows it reads.
    pub fn hidden_layers(&self) -> &[usize] {
        &self.hidden_layers
    }

    /// What a lane row holds.
    pub fn kv(&self) -> KvShape {
        self.kv
    }

    /// Width of a feature.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Width of a row of logits.
    pub fn vocab_size(&self) -> usize {
        self.vocab_size
    }

    /// The target's token for each of the head's; empty where they are the same.
    pub fn targets(&self) -> &[Token] {
        &self.targets
    }

    /// The target's hidden rows (`[rows, hidden layers * hidden_size]`) as features, `[rows, hidden_size]`.
    pub fn fuse(&mut self, hidden: &[f32], features: &mut Vec<f32>) {
        features.resize(hidden.len() / self.hidden_layers.len(), 0.0);
        match self.form {
            Form::Eagle => features.copy_from_slice(hidden),
            Form::Eagle3 { .. } => self.fc.forward(&self.exec, hidden, &mut self.workspace.packed, features),
        }
    }

    /// One pass.
    pub fn forward(&mut self, rows: HeadRows<'_>, kv: &mut KvViewMut<'_>) {
        let HeadRows { embeddings, features, positions, slots, seqs } = rows;
        let Self { form, fc, layer, exec, workspace, joined, normed, width, .. } = self;
        self.rope_rows.fill(&self.rope, positions);
        let forward = ForwardRows { rope: &self.rope_rows, slots, seqs };
        joined.clear();
        match form {
            Form::Eagle => {
                join(embeddings, features, *width, joined);
                fc.forward(exec, joined, &mut workspace.packed, features);
                layer.forward(exec, &forward, features, (kv, 0), workspace);
            }
            Form::Eagle3 { input_norm, hidden_norm, norm_before_residual, .. } => {
                normed.resize(2 * features.len(), 0.0);
                let (embedded, residual) = normed.split_at_mut(features.len());
                rmsnorm(exec, embeddings, input_norm, self.eps, embedded);
                rmsnorm(exec, features, hidden_norm, self.eps, residual);
                join(embedded, residual, *width, joined);
                if *norm_before_residual {
                    features.copy_from_slice(residual);
                }
                layer.attend(exec, &forward, joined, (kv, 0), workspace);
                layer.feed_forward(exec, features, workspace);
            }
        }
    }

    /// Logits of `features` (`[rows, hidden_size]`) into `out`, `[rows, vocab_size]`.
    ///
    /// # Errors
    /// The host's, where the target's projection is used.
    pub fn logits(&mut self, features: &[f32], host: &Host, out: &mut [f32]) -> Result<()> {
        match &self.form {
            Form::Eagle => host.lm_head(features, out),
            Form::Eagle3 { norm, head, .. } => {
                self.normed.resize(features.len(), 0.0);
                rmsnorm(&self.exec, features, norm, self.eps, &mut self.normed);
                match head {
                    Some(head) => head.forward(&self.exec, &self.normed, &mut self.workspace.packed, out),
                    None => host.lm_head(&self.normed, out)?,
                }
                Ok(())
            }
        }
    }
}

/// Rows of `left` and `right` (`[rows, width]` each) side by side.
fn join(left: &[f32], right: &[f32], width: usize, out: &mut Vec<f32>) {
    for (left, right) in left.chunks_exact(width).zip(right.chunks_exact(width)) {
        out.extend_from_slice(left);
        out.extend_from_slice(right);
    }
}

/// The layers whose outputs EAGLE-3 reads; the reference's where the config does not name them.
fn aux_layers(config: &HeadConfig, target: &TargetFacts) -> Result<Vec<usize>, String> {
    let layers = target.num_layers;
    let default = || vec![2, layers / 2, layers.saturating_sub(3)];
    let ids = config.eagle_aux_hidden_state_layer_ids.clone().unwrap_or_else(default);
    if ids.is_empty() || ids.iter().any(|&id| id == 0 || id > layers) {
        return Err(format!(
            "eagle_aux_hidden_state_layer_ids is {ids:?}, expected inputs of layers 1 to {layers} (the last: the output \
            of the target's {layers} layers); the embedding, 0, is not supported"
        ));
    }
    Ok(ids.iter().map(|id| id - 1).collect())
}

fn layer(loader: &HeadTensors<'_>, prefix: &str, config: &HeadConfig, attention_input: usize) -> Result<DecoderLayer> {
    let (width, inner) = (config.hidden_size, config.intermediate_size);
    let attention = AttentionShape::new(config.num_attention_heads, config.kv_heads(), config.head_dim());
    let attention = attention.map_err(|error| loader.refused(error))?;
    let linear = |name: &str, outs: usize, ins: usize| loader.linear(&format!("{prefix}.{name}"), [outs, ins]);
    let tensors = DecoderLayerTensors {
        input_norm: None,
        q: linear("self_attn.q_proj", attention.q_dim(), attention_input)?,
        k: linear("self_attn.k_proj", attention.kv_dim(), attention_input)?,
        v: linear("self_attn.v_proj", attention.kv_dim(), attention_input)?,
        q_norm: None,
        k_norm: None,
        o: linear("self_attn.o_proj", width, attention.q_dim())?,
        post_attention_norm: loader.vector(&format!("{prefix}.post_attention_layernorm.weight"), width)?,
        gate: linear("mlp.gate_proj", inner, width)?,
        up: linear("mlp.up_proj", inner, width)?,
        down: linear("mlp.down_proj", width, inner)?,
    };
    let eps = config.rms_norm_eps as f32;
    let shape = LayerShape { width, attention_input, attention, mlp_width: inner, eps };
    DecoderLayer::new(prefix, shape, tensors).map_err(|error| loader.refused(error))
}

/// The target's token for each of the head's: `d2t` holds offsets.
fn targets(loader: &HeadTensors<'_>, len: usize, vocab_size: usize) -> Result<Vec<Token>> {
    let Some(name) = loader.find("d2t") else {
        let message =
            format!("draft_vocab_size is {len} and the target's vocabulary {vocab_size}, but there is no d2t");
        return if len == vocab_size { Ok(Vec::new()) } else { Err(loader.refused(message)) };
    };
    let view = loader.view(&name)?;
    let bytes: Vec<u8> = (0..view.rows()).flat_map(|row| view.row_bytes(row)).copied().collect();
    let offsets = bytes.as_chunks::<8>().0;
    if view.dtype() != DType::I64 || offsets.len() != len {
        return Err(loader.refused(format!("d2t: expected {len} i64, got {} {:?}", offsets.len(), view.dtype())));
    }
    let target = |(id, offset): (usize, &[u8; 8])| {
        let token = (id as i64).checked_add(i64::from_le_bytes(*offset)).unwrap_or(-1);
        let fits = (0..vocab_size as i64).contains(&token);
        let wrong = || loader.refused(format!("d2t: token {id} of the head is {token}, outside of {vocab_size}"));
        fits.then_some(token as Token).ok_or_else(wrong)
    };
    offsets.iter().enumerate().map(target).collect()
}
