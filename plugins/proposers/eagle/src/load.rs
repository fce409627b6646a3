//! Heads from the files that people publish, by the names of their tensors.

use foretoken_kernels::plugin::{DecoderConfig, HeadTensors, LayerForm};
use foretoken_kernels::{Exec, WeightDtype};
use foretoken_plugin_api::{DType, Host, Result, TargetFacts, Tensors, Token};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::network::{Join, Module, Network, Sizes};

/// What EAGLE adds to a config.
#[derive(Deserialize)]
struct EagleConfig {
    /// EAGLE-3: tokens the head can guess; all of the target's where unset.
    draft_vocab_size: Option<usize>,
    /// EAGLE-3: the target's hidden rows, counted from the embedding: id i is what layer i reads.
    eagle_aux_hidden_state_layer_ids: Option<Vec<usize>>,
    /// EAGLE-3: whether the residual is the normed feature.
    #[serde(default)]
    norm_before_residual: bool,
}

/// What a model's config says of its multi-token-prediction modules.
#[derive(Deserialize)]
struct MtpConfig {
    /// Layers of the model; theirs follow.
    num_hidden_layers: Option<usize>,
    /// How many there are.
    #[serde(alias = "mtp_num_hidden_layers", alias = "num_mtp_modules")]
    num_nextn_predict_layers: Option<usize>,
    /// Whether they have an embedding of their own.
    #[serde(default)]
    mtp_use_dedicated_embeddings: bool,
}

/// The EAGLE head at `path` for the host's target; which EAGLE it is shows in its tensors.
///
/// # Errors
/// If it is no EAGLE head, or one for another target; the message names the tensor.
pub fn eagle(path: &str, dtype: Option<WeightDtype>, host: &Host) -> Result<Network> {
    let (tensors, exec) = (host.load_tensors(path)?, Exec::from(host));
    let (loader, config, own) =
        open::<EagleConfig>(format!("eagle: {path}"), &tensors, (dtype, &exec), &host.target())?;
    let (target, width) = (host.target(), config.hidden_size);
    let has = |prefix: &&str| loader.find(&format!("{prefix}.hidden_norm.weight")).is_some();
    let Some(prefix) = ["midlayer", "layers.0"].into_iter().find(has) else {
        let fc = loader.linear("fc", [width, 2 * width])?;
        let join = Join::Residual { fc, norms: None, feature_first: false, first_is_zero: false };
        let layer = LayerForm { attention_input: width, has_input_norm: false, norm_offset: 0.0, window: None };
        let layer = layer.load(&loader, "layers.0", &config)?;
        let module = Module { join, layer, feature_norm: None, norm: None, head: None };
        let sizes = sizes(&config, target.vocab_size, vec![target.num_layers]);
        return Ok(Network::new(vec![module], None, sizes, (config.rope()?, Vec::new()), exec.clone()));
    };
    let layers = aux_layers(&own, &target).map_err(|reason| loader.refused(reason))?;
    let fuse = loader.linear("fc", [width, layers.len() * width])?;
    let vocab_size = own.draft_vocab_size.unwrap_or(target.vocab_size);
    let vector = |name: &str| loader.vector(&format!("{prefix}.{name}.weight"), width);
    let join = Join::Attention {
        norms: [vector("input_layernorm")?, vector("hidden_norm")?],
        norm_before_residual: own.norm_before_residual,
    };
    let layer = LayerForm { attention_input: 2 * width, has_input_norm: false, norm_offset: 0.0, window: None };
    let has_head = loader.find("lm_head.weight").is_some();
    let module = Module {
        join,
        layer: layer.load(&loader, prefix, &config)?,
        feature_norm: None,
        norm: Some(loader.vector("norm.weight", width)?),
        head: has_head.then(|| loader.linear("lm_head", [vocab_size, width])).transpose()?,
    };
    let targets = targets(&loader, vocab_size, target.vocab_size)?;
    let sizes = sizes(&config, vocab_size, layers);
    Ok(Network::new(vec![module], Some(fuse), sizes, (config.rope()?, targets), exec.clone()))
}

/// How a family names the parts of a module, and what else differs.
struct MtpForm {
    /// Begins the names of the decoder layer.
    layer: String,
    fc: String,
    embedding_norm: String,
    feature_norm: String,
    norm: String,
    head: Option<String>,
    feature_first: bool,
    first_is_zero: bool,
    /// Whether the next row reads the features normed.
    norms_features: bool,
    /// Added to the weights of norms.
    norm_offset: f32,
}

impl MtpForm {
    /// DeepSeek-V3's names: a layer behind the model's own, an output norm and projection of its own.
    fn deepseek(layer: usize) -> Self {
        let layer = format!("layers.{layer}");
        Self {
            fc: format!("{layer}.eh_proj"),
            embedding_norm: format!("{layer}.enorm.weight"),
            feature_norm: format!("{layer}.hnorm.weight"),
            norm: format!("{layer}.shared_head.norm.weight"),
            head: Some(format!("{layer}.shared_head.head")),
            feature_first: false,
            first_is_zero: true,
            norms_features: false,
            norm_offset: 0.0,
            layer,
        }
    }

    /// MiMo's names, which `speculators` shares: the feature first, and normed features.
    fn mimo(module: usize) -> Self {
        let layer = format!("mtp_layers.{module}");
        Self {
            fc: format!("{layer}.input_proj"),
            embedding_norm: format!("{layer}.token_layernorm.weight"),
            feature_norm: format!("{layer}.hidden_layernorm.weight"),
            norm: format!("{layer}.final_layernorm.weight"),
            head: None,
            feature_first: true,
            first_is_zero: true,
            norms_features: true,
            norm_offset: 0.0,
            layer,
        }
    }

    /// Qwen3-Next's names: one module, whose norms multiply by 1 + weight.
    fn qwen() -> Self {
        Self {
            layer: "mtp.layers.0".to_owned(),
            fc: "mtp.fc".to_owned(),
            embedding_norm: "mtp.pre_fc_norm_embedding.weight".to_owned(),
            feature_norm: "mtp.pre_fc_norm_hidden.weight".to_owned(),
            norm: "mtp.norm.weight".to_owned(),
            head: None,
            feature_first: false,
            first_is_zero: false,
            norms_features: true,
            norm_offset: 1.0,
        }
    }

    /// The modules of a file.
    fn find(loader: &HeadTensors<'_>, config: &MtpConfig) -> Result<Vec<Self>> {
        let count = config.num_nextn_predict_layers.unwrap_or(1);
        let own = config.num_hidden_layers.unwrap_or(0);
        let has = |form: &Self| loader.find(&format!("{}.weight", form.fc)).is_some();
        if count == 0 {
            return Err(loader.refused("the config says that it has no multi-token-prediction modules"));
        }
        if has(&Self::qwen()) {
            let message = || loader.refused(format!("{count} multi-token-prediction layers, expected 1 in this form"));
            return if count == 1 { Ok(vec![Self::qwen()]) } else { Err(message()) };
        }
        if has(&Self::mimo(0)) {
            return Ok((0..count).map(Self::mimo).collect());
        }
        if has(&Self::deepseek(own)) {
            return Ok((own..own + count).map(Self::deepseek).collect());
        }
        let [deepseek, mimo, qwen] = [Self::deepseek(own), Self::mimo(0), Self::qwen()].map(|form| form.fc);
        Err(loader.refused(format!(
            "no multi-token-prediction module: none of model.{deepseek}.weight, model.{mimo}.weight and {qwen}.weight"
        )))
    }

    fn load(&self, loader: &HeadTensors<'_>, config: &DecoderConfig, vocab_size: usize) -> Result<Module> {
        let width = config.hidden_size;
        let norm = |name: &str| loader.norm(name, width, self.norm_offset);
        let join = Join::Residual {
            fc: loader.linear(&self.fc, [width, 2 * width])?,
            norms: Some([norm(&self.embedding_norm)?, norm(&self.feature_norm)?]),
            feature_first: self.feature_first,
            first_is_zero: self.first_is_zero,
        };
        let layer =
            LayerForm { attention_input: width, has_input_norm: true, norm_offset: self.norm_offset, window: None };
        let layer = layer.load(loader, &self.layer, config)?;
        let (feature_norm, norm) = match self.norms_features {
            true => (Some(norm(&self.norm)?), None),
            false => (None, Some(norm(&self.norm)?)),
        };
        let has_head = |name: &&String| loader.find(&format!("{name}.weight")).is_some();
        let head = self.head.as_ref().filter(has_head).map(|name| loader.linear(name, [vocab_size, width]));
        Ok(Module { join, layer, feature_norm, norm, head: head.transpose()? })
    }
}

/// The multi-token-prediction modules in the file at `path`, which may be the target's own.
///
/// # Errors
/// If there are none, or they are for another target; the message names the tensor.
pub fn mtp(path: &str, dtype: Option<WeightDtype>, host: &Host) -> Result<Network> {
    let (tensors, exec) = (host.load_tensors(path)?, Exec::from(host));
    let target = host.target();
    let (loader, config, own) = open::<MtpConfig>(format!("mtp: {path}"), &tensors, (dtype, &exec), &target)?;
    if own.mtp_use_dedicated_embeddings {
        return Err(loader.refused("mtp_use_dedicated_embeddings is true, expected the target's embedding"));
    }
    let forms = MtpForm::find(&loader, &own)?;
    let modules = forms.iter().map(|form| form.load(&loader, &config, target.vocab_size)).collect::<Result<_>>()?;
    let sizes = sizes(&config, target.vocab_size, vec![target.num_layers]);
    Ok(Network::new(modules, None, sizes, (config.rope()?, Vec::new()), exec.clone()))
}

/// A file's tensors and its config, which must be as wide as the target.
fn open<'a, T: DeserializeOwned>(
    label: String,
    tensors: &'a Tensors,
    (dtype, exec): (Option<WeightDtype>, &'a Exec),
    target: &TargetFacts,
) -> Result<(HeadTensors<'a>, DecoderConfig, T)> {
    let (config, own) = DecoderConfig::read(&label, &tensors.config())?;
    let loader = HeadTensors::new(label, &**tensors, (dtype, exec));
    if config.hidden_size != target.hidden_size {
        let (ours, theirs) = (config.hidden_size, target.hidden_size);
        let message =
            format!("hidden_size is {ours}, of the target {} {theirs}; it is a head for another", target.path);
        return Err(loader.refused(message));
    }
    Ok((loader, config, own))
}

fn sizes(config: &DecoderConfig, vocab_size: usize, hidden_layers: Vec<usize>) -> Sizes {
    Sizes {
        width: config.hidden_size,
        eps: config.eps(),
        kv_heads: config.kv_heads(),
        head_dim: config.head_dim(),
        vocab_size,
        hidden_layers,
    }
}

/// The layers whose outputs EAGLE-3 reads; the reference's where the config does not name them.
fn aux_layers(config: &EagleConfig, target: &TargetFacts) -> Result<Vec<usize>, String> {
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
