//! Where a model keeps its chat template: a folder's files or a GGUF file's metadata.
//!
//! Neighbours: `chat` compiles and renders what is found here. Beside the template stand the texts of the tokens that
//! it may name. Of several named templates the one called `default` is taken, as transformers does.

use std::path::{Path, PathBuf};

use serde::Deserialize;

use super::chat::ChatError;
use crate::model::gguf::Gguf;

/// A template as found.
pub(super) struct Source {
    /// The file it was in.
    pub path: PathBuf,
    pub template: String,
    /// The tokens it may name, by the names it gives them, such as `bos_token`.
    pub tokens: Vec<(&'static str, String)>,
}

/// What this module reads of `tokenizer_config.json`.
#[derive(Debug, Default, Deserialize)]
struct TokenizerConfig {
    chat_template: Option<Templates>,
    bos_token: Option<TokenText>,
    eos_token: Option<TokenText>,
    unk_token: Option<TokenText>,
    pad_token: Option<TokenText>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Templates {
    One(String),
    Named(Vec<Named>),
}

#[derive(Debug, Deserialize)]
struct Named {
    name: String,
    template: String,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Added { content: String },
}

impl Source {
    /// A folder's `chat_template.jinja` where there is one, else the template in `tokenizer_config.json`.
    pub fn of_folder(folder: &Path) -> Result<Self, ChatError> {
        let config_path = folder.join("tokenizer_config.json");
        let config = read_optional(&config_path)?;
        let config: TokenizerConfig = match &config {
            Some(text) => serde_json::from_str(text)
                .map_err(|error| ChatError::Unreadable { path: config_path.clone(), reason: error.to_string() })?,
            None => TokenizerConfig::default(),
        };
        let own_path = folder.join("chat_template.jinja");
        let (path, template) = match (read_optional(&own_path)?, config.chat_template) {
            (Some(template), _) => (own_path, template),
            (None, Some(templates)) => (config_path.clone(), templates.pick(&config_path)?),
            (None, None) => return Err(ChatError::NoTemplate { path: folder.to_owned() }),
        };
        let tokens = [
            ("bos_token", config.bos_token),
            ("eos_token", config.eos_token),
            ("unk_token", config.unk_token),
            ("pad_token", config.pad_token),
        ];
        let text = |(TokenText::Plain(text) | TokenText::Added { content: text })| text;
        let tokens = tokens.into_iter().filter_map(|(name, token)| Some((name, token.map(text)?))).collect();
        Ok(Self { path, template, tokens })
    }

    /// A GGUF file's `tokenizer.chat_template`.
    pub fn of_gguf(path: &Path) -> Result<Self, ChatError> {
        let gguf = Gguf::open(path)?;
        let Some(template) = gguf.get("tokenizer.chat_template")? else {
            return Err(ChatError::NoTemplate { path: path.to_owned() });
        };
        let texts: Vec<String> = gguf.need("tokenizer.ggml.tokens")?;
        let mut tokens = Vec::new();
        for (name, key) in [
            ("bos_token", "tokenizer.ggml.bos_token_id"),
            ("eos_token", "tokenizer.ggml.eos_token_id"),
            ("unk_token", "tokenizer.ggml.unknown_token_id"),
            ("pad_token", "tokenizer.ggml.padding_token_id"),
        ] {
            let text = gguf.get::<usize>(key)?.and_then(|id| texts.get(id).cloned());
            tokens.extend(text.map(|text| (name, text)));
        }
        Ok(Self { path: path.to_owned(), template, tokens })
    }
}

impl Templates {
    fn pick(self, path: &Path) -> Result<String, ChatError> {
        let named = match self {
            Self::One(template) => return Ok(template),
            Self::Named(named) => named,
        };
        let names = named.iter().map(|entry| entry.name.as_str()).collect::<Vec<_>>().join(", ");
        let default = named.into_iter().find(|entry| entry.name == "default");
        default.map(|entry| entry.template).ok_or_else(|| ChatError::NoDefault { path: path.to_owned(), names })
    }
}

fn read_optional(path: &Path) -> Result<Option<String>, ChatError> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ChatError::Unreadable { path: path.to_owned(), reason: error.to_string() }),
    }
}
