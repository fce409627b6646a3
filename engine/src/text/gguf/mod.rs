//! The tokenizer inside a GGUF file, as the same pipeline that its `tokenizer.json` would be.
//!
//! Neighbours: `bpe` and `spm` make the model, `text::tokenizer` wraps the result and so shares decoding, streaming and
//! stops. The stages around the model are written as in a tokenizer.json, because that is what they must equal. candle
//! has a reader of these keys too, but it takes unknown pre-tokenizers for GPT-2's (llama-bpe among them), which gives
//! other tokens without a word; here a name that is not known is refused. Keys: ggml's docs/gguf.md.

mod bpe;
mod spm;

use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;
use tokenizers::{
    AddedToken, DecoderWrapper, NormalizerWrapper, PostProcessorWrapper, PreTokenizerWrapper, Tokenizer as Pipeline,
};

use super::tokenizer::TokenizerError;
use crate::model::nearest::nearest;
use crate::model::{Gguf, TokenIds};

/// `tokenizer.ggml.model` of the families that can be read.
const MODELS: [&str; 2] = ["llama", "gpt2"];
/// Texts of tokens that end a turn where no key says so, as in llama.cpp's llama-vocab.cpp.
const END_TEXTS: [&str; 7] =
    ["<|eot_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|eom_id|>", "<EOT>"];

/// `tokenizer.ggml.token_type`, as ggml's format defines it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Normal,
    Unknown,
    Control,
    UserDefined,
    Unused,
    Byte,
}

/// The entries in id order.
struct Vocabulary {
    texts: Vec<String>,
    kinds: Vec<Kind>,
}

/// A model and the stages around it, each as tokenizer.json writes it.
struct Stages {
    model: BPE,
    normalizer: Value,
    pre_tokenizer: Value,
    decoder: Value,
    add_bos: bool,
}

/// The file's tokenizer, and the ids that begin and end a sequence.
pub(super) fn open(path: &Path) -> Result<(Pipeline, TokenIds), TokenizerError> {
    let gguf = Gguf::open(path)?;
    let model: String = gguf.need("tokenizer.ggml.model")?;
    let vocabulary = Vocabulary::read(&gguf)?;
    let stages = match model.as_str() {
        "llama" => spm::stages(&gguf, &vocabulary)?,
        "gpt2" => bpe::stages(&gguf, &vocabulary)?,
        _ => return Err(unsupported(path, "tokenizer.ggml.model", model, &MODELS)),
    };
    let ids = vocabulary.ids(&gguf)?;
    let pipeline = stages.assemble(&gguf, &vocabulary, &ids);
    Ok((pipeline.map_err(|error| malformed(path, error))?, ids))
}

fn malformed(path: &Path, reason: impl ToString) -> TokenizerError {
    TokenizerError::Malformed { path: path.to_owned(), reason: reason.to_string() }
}

fn unsupported(path: &Path, key: &'static str, got: String, supported: &[&'static str]) -> TokenizerError {
    let nearest = nearest(&got, supported.iter().copied()).unwrap_or(supported[0]);
    TokenizerError::Unsupported { path: path.to_owned(), key, got, supported: supported.join(", "), nearest }
}

impl Vocabulary {
    fn read(gguf: &Gguf) -> Result<Self, TokenizerError> {
        let texts: Vec<String> = gguf.need("tokenizer.ggml.tokens")?;
        let kinds = match gguf.get::<Vec<usize>>("tokenizer.ggml.token_type")? {
            None => vec![Kind::Normal; texts.len()],
            Some(kinds) => kinds.into_iter().map(Kind::from_number).collect(),
        };
        if kinds.len() != texts.len() {
            let reason =
                format!("tokenizer.ggml.token_type has {} entries, expected {} as tokens", kinds.len(), texts.len());
            return Err(malformed(gguf.path(), reason));
        }
        Ok(Self { texts, kinds })
    }

    fn iter(&self) -> impl Iterator<Item = (u32, &str, Kind)> {
        (0..).zip(&self.texts).zip(&self.kinds).map(|((id, text), kind)| (id, text.as_str(), *kind))
    }

    /// BOS, and everything that ends a sequence: the keys that say so and the texts that are known to.
    fn ids(&self, gguf: &Gguf) -> Result<TokenIds, TokenizerError> {
        let mut eos = Vec::new();
        for key in ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"] {
            eos.extend(gguf.get::<u32>(key)?);
        }
        let marks = self.iter().filter(|(_, text, kind)| *kind != Kind::Normal && END_TEXTS.contains(text));
        eos.extend(marks.map(|(id, ..)| id));
        Ok(TokenIds { bos: gguf.get("tokenizer.ggml.bos_token_id")?, eos })
    }
}

impl Kind {
    fn from_number(number: usize) -> Self {
        match number {
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            5 => Self::Unused,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

impl Stages {
    fn assemble(self, gguf: &Gguf, vocabulary: &Vocabulary, ids: &TokenIds) -> tokenizers::Result<Pipeline> {
        let mut pipeline = Pipeline::new(self.model);
        pipeline.with_normalizer(stage::<NormalizerWrapper>(self.normalizer)?)?;
        pipeline.with_pre_tokenizer(stage::<PreTokenizerWrapper>(self.pre_tokenizer)?);
        pipeline.with_decoder(stage::<DecoderWrapper>(self.decoder)?);
        let is_special = |kind| matches!(kind, Kind::Control | Kind::Unknown);
        let added = vocabulary.iter().filter(|(_, _, kind)| is_special(*kind) || *kind == Kind::UserDefined);
        pipeline.add_tokens(added.map(|(_, text, kind)| AddedToken::from(text, is_special(kind)).normalized(false)))?;
        let bos = gguf.get("tokenizer.ggml.add_bos_token")?.unwrap_or(self.add_bos).then_some(ids.bos).flatten();
        let eos: Option<u32> = gguf.get("tokenizer.ggml.eos_token_id")?;
        let eos = gguf.get("tokenizer.ggml.add_eos_token")?.unwrap_or(false).then_some(eos).flatten();
        pipeline.with_post_processor(stage::<PostProcessorWrapper>(template(&vocabulary.texts, bos, eos))?);
        Ok(pipeline)
    }
}

fn stage<T: DeserializeOwned>(json: Value) -> serde_json::Result<Option<T>> {
    serde_json::from_value(json)
}

/// A template that puts `bos` before and `eos` after a text; ids outside the vocabulary are refused later, by role.
fn template(texts: &[String], bos: Option<u32>, eos: Option<u32>) -> Value {
    let known = |id: &u32| texts.get(*id as usize);
    let (bos, eos) = (bos.filter(|id| known(id).is_some()), eos.filter(|id| known(id).is_some()));
    if bos.or(eos).is_none() {
        return Value::Null;
    }
    let special = |id: u32| json!({"SpecialToken": {"id": known(&id), "type_id": 0}});
    let sequence = |name: &str| json!({"Sequence": {"id": name, "type_id": 0}});
    let around = |name: &str| -> Vec<Value> {
        bos.map(special).into_iter().chain([sequence(name)]).chain(eos.map(special)).collect()
    };
    let tokens = [bos, eos].into_iter().flatten().filter_map(|id| Some((known(&id)?.clone(), id)));
    let tokens: serde_json::Map<String, Value> =
        tokens.map(|(text, id)| (text.clone(), json!({"id": text, "ids": [id], "tokens": [text]}))).collect();
    let (single, pair) = (around("A"), [around("A"), around("B")].concat());
    json!({"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens})
}
