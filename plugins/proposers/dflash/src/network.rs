//! The network: the target's hidden rows become keys and values of every layer, and a block of rows behind them, the anchor
//! and masks, becomes logits in one pass.
//!
//! Every row of the block sees the whole context and the whole block, so a mask knows how many places it is from the
//! anchor and that its neighbours are being guessed too. The context's keys and values never change: a token's depend on
//! the target's hidden row alone.

use foretoken_kernels::blocks::{DecoderLayer, ForwardRows, KvDtype, KvShape, KvViewMut, Linear, Workspace};
use foretoken_kernels::ops::{AttentionSeq, RopeRows, RopeTable, TreePaths, rmsnorm};
use foretoken_kernels::plugin::{DecoderConfig, HeadTensors, LayerForm};
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{Host, Result, TargetFacts, Token};
use serde::Deserialize;

/// What DFlash adds to a config, at its top or in `dflash_config`.
#[derive(Deserialize)]
struct BlockConfig {
    num_hidden_layers: usize,
    /// Rows of a block, the anchor's among them.
    #[serde(default = "default_block_size")]
    block_size: usize,
    mask_token_id: Option<Token>,
    /// Layers of the target whose outputs are read, counted from 0.
    target_layer_ids: Option<Vec<i64>>,
    /// The same in `speculators`' files, counted from the embedding.
    aux_hidden_state_layer_ids: Option<Vec<i64>>,
    layer_types: Option<Vec<String>>,
    sliding_window: Option<usize>,
    /// Whether a row sees only the rows of the block before it.
    #[serde(alias = "is_causal")]
    causal: Option<bool>,
    #[serde(default)]
    attention_sink_bias: bool,
    projector_type: Option<String>,
}

fn default_block_size() -> usize {
    16
}

/// One layer, and whether its rows see only what comes before them in the block.
struct Layer {
    layer: DecoderLayer,
    is_causal: bool,
}

/// A loaded network.
pub struct Network {
    fc: Linear,
    hidden_norm: Vec<f32>,
    layers: Vec<Layer>,
    norm: Vec<f32>,
    rope: RopeTable,
    kv: KvShape,
    width: usize,
    eps: f32,
    block_size: usize,
    mask: Token,
    hidden_layers: Vec<usize>,
    exec: Exec,
    workspace: Workspace,
    rope_rows: RopeRows,
    fused: Vec<f32>,
    normed: Vec<f32>,
}

/// Where rows of a pass belong.
#[derive(Clone, Copy)]
pub struct RowPlaces<'a> {
    /// Place of each row's token in its sequence.
    pub positions: &'a [u32],
    /// Lane row of each row.
    pub slots: &'a [u32],
}

impl Network {
    /// Loads the network at `path` for the host's target.
    ///
    /// # Errors
    /// If it is none, one for another target, or a later version's; the message names the tensor or key.
    pub fn load(path: &str, dtype: Option<WeightDtype>, host: &Host) -> Result<Self> {
        let (tensors, exec, target) = (host.load_tensors(path)?, Exec::from(host), host.target());
        let label = format!("dflash: {path}");
        let (config, own) = DecoderConfig::read::<BlockConfig>(&label, &tensors.config())?;
        let loader = HeadTensors::new(label, &*tensors, (dtype, &exec));
        let refused = |reason: String| loader.refused(reason);
        let width = config.hidden_size;
        if width != target.hidden_size {
            let theirs = target.hidden_size;
            let what = format!("hidden_size is {width}, of the target {} {theirs}; it is for another", target.path);
            return Err(refused(what));
        }
        let later = ["candidate_selector.", "markov_head.", "confidence_head."];
        if let Some(name) = loader.names().find(|name| later.iter().any(|part| name.contains(part))) {
            return Err(refused(format!("{name} belongs to a later form (DFlash 2 or DSpark), expected DFlash's own")));
        }
        if own.attention_sink_bias || own.projector_type.is_some() {
            let what = "attention_sink_bias or projector_type is set, expected neither";
            return Err(refused(what.to_owned()));
        }
        if own.block_size < 2 {
            return Err(refused(format!("block_size is {}, expected an anchor and at least one mask", own.block_size)));
        }
        let mask = own.mask_token_id.ok_or_else(|| refused("mask_token_id is missing from the config".to_owned()))?;
        if mask as usize >= target.vocab_size {
            let what = format!("mask_token_id is {mask}, outside of the target's vocabulary of {}", target.vocab_size);
            return Err(refused(what));
        }
        let hidden_layers = hidden_layers(&own, &target).map_err(refused)?;
        let layers = (0..own.num_hidden_layers).map(|index| layer(&loader, index, &config, &own));
        let layers = layers.collect::<Result<Vec<_>>>()?;
        let Some(first) = layers.first() else { return Err(refused("num_hidden_layers is 0".to_owned())) };
        let weights = first.layer.linears()[0].weight().dtype();
        let kv = KvShape {
            layers: layers.len(),
            heads: config.kv_heads(),
            head_dim: config.head_dim(),
            dtype: if weights == WeightDtype::F32 { KvDtype::F32 } else { KvDtype::Bf16 },
        };
        let (workspace, rope_rows) = (Workspace::new(), RopeRows::new());
        let (fused, normed) = Default::default();
        Ok(Self {
            fc: loader.linear("fc", [width, hidden_layers.len() * width])?,
            hidden_norm: loader.vector("hidden_norm.weight", width)?,
            layers,
            norm: loader.vector("norm.weight", width)?,
            rope: config.rope()?,
            kv,
            width,
            eps: config.eps(),
            block_size: own.block_size,
            mask,
            hidden_layers,
            exec: exec.clone(),
            workspace,
            rope_rows,
            fused,
            normed,
        })
    }

    /// Layers of the target whose hidden rows it reads.
    pub fn hidden_layers(&self) -> &[usize] {
        &self.hidden_layers
    }

    /// The keys and values of a row.
    pub fn kv(&self) -> KvShape {
        self.kv
    }

    /// Width of a row.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Rows of the blocks it was trained on.
    pub fn block_size(&self) -> usize {
        self.block_size
    }

    /// The token that stands for one to be guessed.
    pub fn mask(&self) -> Token {
        self.mask
    }

    /// Stores keys and values of committed tokens, from the target's hidden rows (`[rows, hidden layers * hidden_size]`).
    pub fn store(&mut self, hidden: &[f32], places: RowPlaces<'_>, kv: &mut KvViewMut<'_>) {
        let Self { exec, workspace, fused, normed, .. } = self;
        let len = places.slots.len() * self.width;
        fused.resize(len, 0.0);
        normed.resize(len, 0.0);
        self.fc.forward(exec, hidden, &mut workspace.packed, fused);
        rmsnorm(exec, fused, &self.hidden_norm, self.eps, normed);
        self.rope_rows.fill(&self.rope, places.positions);
        for (index, layer) in self.layers.iter().enumerate() {
            layer.layer.store(exec, (&self.rope_rows, places.slots), normed, (kv, index), workspace);
        }
    }

    /// One pass over blocks of `block` rows each, one for each context: `rows` (`[blocks * block, hidden_size]`) holds their
    /// tokens' embeddings, and afterwards what the target's projection makes logits of.
    pub fn fill(
        &mut self,
        rows: &mut [f32],
        (places, block): (RowPlaces<'_>, usize),
        contexts: &[&[u32]],
        kv: &mut KvViewMut<'_>,
    ) {
        let Self { exec, workspace, normed, .. } = self;
        self.rope_rows.fill(&self.rope, places.positions);
        // A row attends to itself last.
        let others = |row: u32| (0..block as u32).filter(move |other| *other != row).chain([row]);
        let everyone: Vec<u32> = (0..block as u32).flat_map(others).collect();
        let offsets: Vec<u32> = (0..=block as u32).map(|row| row * block as u32).collect();
        let tree = TreePaths { offsets: &offsets, rows: &everyone };
        let whole = sequences(contexts, (places.slots, block), Some(tree));
        let causal = sequences(contexts, (places.slots, block), None);
        for (index, Layer { layer, is_causal }) in self.layers.iter().enumerate() {
            let seqs = if *is_causal { &causal } else { &whole };
            let forward = ForwardRows { rope: &self.rope_rows, slots: places.slots, seqs };
            layer.forward(exec, &forward, rows, (kv, index), workspace);
        }
        normed.resize(rows.len(), 0.0);
        rmsnorm(exec, rows, &self.norm, self.eps, normed);
        rows.copy_from_slice(normed);
    }
}

/// Blocks as the attention sees them, each with its context.
fn sequences<'a>(
    contexts: &[&'a [u32]],
    (slots, block): (&'a [u32], usize),
    tree: Option<TreePaths<'a>>,
) -> Vec<AttentionSeq<'a>> {
    let blocks = slots.chunks_exact(block).zip(contexts).enumerate();
    let seq = |(index, (new_slots, &context))| {
        let rows = index * block..(index + 1) * block;
        AttentionSeq { context, rows, new_slots, tree }
    };
    blocks.map(seq).collect()
}

/// The layers whose outputs are read; the reference's where the config names none: as many as the network has layers,
/// spread evenly over all but the target's first one and last three.
fn hidden_layers(config: &BlockConfig, target: &TargetFacts) -> Result<Vec<usize>, String> {
    let (layers, count) = (target.num_layers as i64, config.num_hidden_layers);
    let ids = match (&config.target_layer_ids, &config.aux_hidden_state_layer_ids) {
        (Some(ids), _) => ids.clone(),
        (None, Some(ids)) => ids.iter().map(|id| id - 1).collect(),
        (None, None) if count == 1 => vec![layers / 2],
        (None, None) => {
            let place = |index: usize| 1.0 + index as f64 * (layers - 4) as f64 / (count - 1) as f64;
            (0..count).map(|index| place(index).round_ties_even() as i64).collect()
        }
    };
    if ids.is_empty() || ids.iter().any(|id| !(0..layers).contains(id)) {
        return Err(format!(
            "target_layer_ids is {ids:?}, expected outputs of the target's layers 0 to {}",
            layers - 1
        ));
    }
    Ok(ids.iter().map(|id| *id as usize).collect())
}

fn layer(loader: &HeadTensors<'_>, index: usize, config: &DecoderConfig, own: &BlockConfig) -> Result<Layer> {
    let kind = own.layer_types.as_ref().and_then(|types| types.get(index)).map_or("full_attention", String::as_str);
    let window = match (kind, own.sliding_window) {
        ("full_attention", _) => None,
        ("sliding_attention", Some(_)) if own.causal == Some(false) => {
            let what = "a window over a block whose rows all see each other is not supported, expected causal";
            return Err(loader.refused(format!("layer_types[{index}] is {kind:?}: {what}")));
        }
        ("sliding_attention", Some(window)) if window > 0 => Some(window),
        (kind, window) => {
            let what = "expected full_attention, or sliding_attention with a sliding_window";
            return Err(loader.refused(format!("layer_types[{index}] is {kind:?}, sliding_window {window:?}; {what}")));
        }
    };
    let form = LayerForm { attention_input: config.hidden_size, has_input_norm: true, norm_offset: 0.0, window };
    let layer = form.load(loader, &format!("layers.{index}"), config)?;
    Ok(Layer { layer, is_causal: own.causal.unwrap_or(window.is_some()) })
}
