//! The tokenizer of a model: `tokenizer.json` or a GGUF file's metadata as a pipeline of the `tokenizers` crate, and
//! the ids around it.
//!
//! Neighbours: `gguf` builds the pipeline of a GGUF file; `model::architectures` gives the vocabulary to check against
//! and the ids in `config.json`; `detokenize` streams through `decode`; `chat` renders text for `encode_rendered`. Ids
//! that end a sequence are the union of `generation_config.json` and `config.json`, because published models disagree
//! with themselves and missing one means text that never ends. A tokenizer smaller than the model's vocabulary is legal
//! (padding rows); a larger one is not.

use std::path::{Path, PathBuf};

use foretoken_plugin_api::TokenText;
use sha2::{Digest, Sha256};

use super::gguf;
use crate::model::architectures::{Architecture, TokenIds};
use crate::model::gguf::{GgufError, is_gguf};

#[derive(Debug, thiserror::Error)]
pub enum TokenizerError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "{path}: `{key}` is `{got}`, which this build cannot read. Supported: {supported}; the nearest is `{nearest}`. \
        Use the model's Hugging Face folder instead"
    )]
    Unsupported { path: PathBuf, key: &'static str, got: String, supported: String, nearest: &'static str },
    #[error(
        "no tokenizer at {path}: {source}. A Hugging Face folder needs tokenizer.json (convert older models with \
        transformers' `save_pretrained`)"
    )]
    Missing { path: PathBuf, source: std::io::Error },
    #[error("{path} is not a tokenizer this build can read: {reason}")]
    Malformed { path: PathBuf, reason: String },
    #[error(
        "{path} does not fit the model: its highest token id is {highest}, but the model's vocab_size is \
        {vocab_size}. Take the tokenizer that belongs to the model"
    )]
    LargerThanVocab { path: PathBuf, highest: u32, vocab_size: usize },
    #[error(
        "{path}: special token id {id} ({role}) is outside the model's vocabulary of {vocab_size}. Correct it in the \
        file"
    )]
    SpecialOutsideVocab { path: PathBuf, role: &'static str, id: u32, vocab_size: usize },
    #[error(
        "the prompt is empty, and the model at {path} has neither a BOS nor an EOS token to stand for it. Give at \
        least one character"
    )]
    EmptyPrompt { path: PathBuf },
    #[error("cannot encode the text: {reason}")]
    Encode { reason: String },
    #[error("cannot decode {count} tokens: {reason}")]
    Decode { count: usize, reason: String },
}

/// Text to tokens and back, with the ids that begin and end a sequence.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: tokenizers::Tokenizer,
    path: PathBuf,
    bos: Option<u32>,
    eos: Vec<u32>,
    special: Vec<u32>,
    byte_fallback: bool,
    byte_level: bool,
}

impl Tokenizer {
    /// Opens the tokenizer of the model at `path`, which has this architecture: `tokenizer.json` and (optional)
    /// `generation_config.json` of a folder, or the metadata of a GGUF file.
    pub fn open(path: &Path, architecture: &Architecture) -> Result<Self, TokenizerError> {
        let (file, ids_file, inner, generation) = if is_gguf(path) {
            let (inner, ids) = gguf::open(path)?;
            (path.to_owned(), path.to_owned(), inner, ids)
        } else {
            let (file, inner) = from_folder(path)?;
            (file, path.join("config.json or generation_config.json"), inner, generation_ids(path)?)
        };
        let highest = inner.get_vocab(true).into_values().max();
        let empty = || TokenizerError::Malformed { path: file.clone(), reason: "its vocabulary is empty".into() };
        let highest = highest.ok_or_else(empty)?;
        let vocab_size = architecture.vocab_size;
        if highest as usize >= vocab_size {
            return Err(TokenizerError::LargerThanVocab { path: file, highest, vocab_size });
        }
        let mut special: Vec<u32> =
            inner.get_added_tokens_decoder().iter().filter(|(_, token)| token.special).map(|(&id, _)| id).collect();
        special.sort_unstable();
        let mut eos = [generation.eos.as_slice(), &architecture.token_ids.eos].concat();
        eos.sort_unstable();
        eos.dedup();
        let bos = architecture.token_ids.bos.or(generation.bos);
        let roles = bos.iter().map(|&id| ("bos", id)).chain(eos.iter().map(|&id| ("eos", id)));
        for (role, id) in roles {
            if id as usize >= vocab_size {
                return Err(TokenizerError::SpecialOutsideVocab { path: ids_file, role, id, vocab_size });
            }
        }
        let decoder = inner.get_decoder().and_then(|decoder| serde_json::to_string(decoder).ok()).unwrap_or_default();
        let [byte_fallback, byte_level] = ["\"ByteFallback\"", "\"ByteLevel\""].map(|name| decoder.contains(name));
        Ok(Self { inner, path: path.to_owned(), bos, eos, special, byte_fallback, byte_level })
    }

    /// Raw text with the tokenizer's own rule for BOS. An empty prompt is BOS, else the lowest EOS id.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        let tokens = self.encode_with(text, true)?;
        if !tokens.is_empty() {
            return Ok(tokens);
        }
        let stand_in = self.bos.or(self.eos.first().copied());
        stand_in.map(|id| vec![id]).ok_or_else(|| TokenizerError::EmptyPrompt { path: self.path.clone() })
    }

    /// Text that already carries its special tokens, as a rendered chat template does: nothing is added.
    pub fn encode_rendered(&self, text: &str) -> Result<Vec<u32>, TokenizerError> {
        self.encode_with(text, false)
    }

    /// Text of the tokens, special ones left out. Incomplete UTF-8 shows as U+FFFD; `StreamDecoder` waits for the rest.
    pub fn decode(&self, tokens: &[u32]) -> Result<String, TokenizerError> {
        let decoded = self.inner.decode(tokens, true);
        decoded.map_err(|error| TokenizerError::Decode { count: tokens.len(), reason: error.to_string() })
    }

    /// Ids that end a sequence, ascending: those of `generation_config.json` and of `config.json`, or of the metadata.
    pub fn eos(&self) -> &[u32] {
        &self.eos
    }

    pub fn is_eos(&self, token: u32) -> bool {
        self.eos.contains(&token)
    }

    pub fn bos(&self) -> Option<u32> {
        self.bos
    }

    /// All tokens marked special (in a GGUF file: control and unknown ones), ascending.
    pub fn special(&self) -> &[u32] {
        &self.special
    }

    pub fn is_special(&self, token: u32) -> bool {
        self.special.binary_search(&token).is_ok()
    }

    /// SHA-256 over the vocabulary in id order, as hex: equal for models whose tokens mean the same.
    pub fn vocabulary_digest(&self) -> String {
        let mut entries: Vec<(u32, String)> =
            self.inner.get_vocab(true).into_iter().map(|(token, id)| (id, token)).collect();
        entries.sort_unstable();
        let mut hasher = Sha256::new();
        for (id, token) in entries {
            hasher.update(id.to_le_bytes());
            hasher.update((token.len() as u64).to_le_bytes());
            hasher.update(token);
        }
        hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }

    /// What every id below `vocab_size` stands for: bytes of text, whatever alphabet the vocabulary writes them in.
    pub fn token_texts(&self, vocab_size: usize) -> Vec<TokenText> {
        let mut texts = vec![TokenText::default(); vocab_size];
        let added = self.inner.get_added_tokens_decoder();
        for (name, id) in self.inner.get_vocab(true) {
            let Some(text) = texts.get_mut(id as usize) else { continue };
            text.is_special = self.is_special(id);
            text.bytes = match added.contains_key(&id) {
                true => name.into_bytes(),
                false if self.byte_level => name.chars().flat_map(byte_level_bytes).collect(),
                false => match byte_of(&name).filter(|_| self.byte_fallback) {
                    Some(byte) => vec![byte],
                    None => name.replace('\u{2581}', " ").into_bytes(),
                },
            };
        }
        texts
    }

    pub fn token_id(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The entry in the vocabulary, as written there (not decoded).
    pub fn token_name(&self, token: u32) -> Option<String> {
        self.inner.id_to_token(token)
    }

    /// Whether bytes outside the vocabulary are tokens such as `<0xE2>` (SentencePiece), which decode run by run.
    pub(super) fn byte_fallback(&self) -> bool {
        self.byte_fallback
    }

    fn encode_with(&self, text: &str, add_special_tokens: bool) -> Result<Vec<u32>, TokenizerError> {
        let encoding = self.inner.encode_fast(text, add_special_tokens);
        let encoding = encoding.map_err(|error| TokenizerError::Encode { reason: error.to_string() })?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// `folder/tokenizer.json`, and its path.
fn from_folder(folder: &Path) -> Result<(PathBuf, tokenizers::Tokenizer), TokenizerError> {
    let path = folder.join("tokenizer.json");
    let bytes = std::fs::read(&path).map_err(|source| TokenizerError::Missing { path: path.clone(), source })?;
    let malformed =
        |error: tokenizers::Error| TokenizerError::Malformed { path: path.clone(), reason: error.to_string() };
    let mut inner = tokenizers::Tokenizer::from_bytes(&bytes).map_err(malformed)?;
    // Some published files carry the settings of their training script; a prompt must arrive whole.
    inner.with_padding(None).with_truncation(None).map_err(malformed)?;
    Ok((path, inner))
}

/// `generation_config.json` is optional; one that is there but unreadable is an error, not silence.
fn generation_ids(folder: &Path) -> Result<TokenIds, TokenizerError> {
    let path = folder.join("generation_config.json");
    match std::fs::read_to_string(&path) {
        Ok(text) => {
            serde_json::from_str(&text).map_err(|error| TokenizerError::Malformed { path, reason: error.to_string() })
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(TokenIds::default()),
        Err(error) => Err(TokenizerError::Malformed { path, reason: error.to_string() }),
    }
}

/// The byte that a character of the byte-level alphabet (GPT-2's) stands for; one outside of it stands for itself.
fn byte_level_bytes(character: char) -> Vec<u8> {
    let printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let code = character as u32;
    if let Some(byte) = u8::try_from(code).ok().filter(|byte| printable(*byte)) {
        return vec![byte];
    }
    // The other bytes are written as 256 and up, in order.
    let hidden =
        code.checked_sub(256).and_then(|place| (0..=255u8).filter(|byte| !printable(*byte)).nth(place as usize));
    hidden.map_or_else(|| character.to_string().into_bytes(), |byte| vec![byte])
}

/// The byte of a token such as `<0x0A>`.
fn byte_of(name: &str) -> Option<u8> {
    u8::from_str_radix(name.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::fixtures;

    #[test]
    fn encodes_with_the_tokenizers_own_bos_rule_and_decodes_without_specials() {
        let tokenizer = fixtures::byte_level();
        let tokens = tokenizer.encode("hello €").unwrap();
        assert_eq!(tokens[0], fixtures::BOS);
        assert_eq!(tokenizer.decode(&tokens).unwrap(), "hello €");
        assert_eq!(tokenizer.encode_rendered("hello €").unwrap(), tokens[1..]);
    }

    #[test]
    fn truncation_and_padding_in_the_file_are_ignored() {
        let mut json = fixtures::byte_level_json(false);
        json["truncation"] =
            serde_json::json!({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0});
        json["padding"] = serde_json::json!({"strategy": {"Fixed": 9}, "direction": "Right", "pad_to_multiple_of": null,
            "pad_id": 0, "pad_type_id": 0, "pad_token": "<s>"});
        let folder = fixtures::folder_with(&json);
        let tokenizer = Tokenizer::open(folder.path(), &fixtures::architecture(300)).unwrap();
        assert_eq!(tokenizer.encode("abcd").unwrap().len(), 4);
    }

    #[test]
    fn eos_is_the_union_of_both_files_and_an_int_or_a_list() {
        let folder = fixtures::folder_with(&fixtures::byte_level_json(false));
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": [258, 3]}"#).unwrap();
        let mut architecture = fixtures::architecture(300);
        architecture.token_ids.eos = vec![257, 3];
        let tokenizer = Tokenizer::open(folder.path(), &architecture).unwrap();
        assert_eq!(tokenizer.eos(), [3, 257, 258]);
        assert!(tokenizer.is_eos(258) && !tokenizer.is_eos(256));
        assert!(tokenizer.is_special(fixtures::BOS) && !tokenizer.is_special(65));
    }

    #[test]
    fn an_empty_prompt_is_bos_else_eos_else_an_error() {
        let folder = fixtures::folder_with(&fixtures::byte_level_json(false));
        let mut architecture = fixtures::architecture(300);
        architecture.token_ids = TokenIds { bos: Some(256), eos: vec![257] };
        assert_eq!(Tokenizer::open(folder.path(), &architecture).unwrap().encode("").unwrap(), [256]);
        architecture.token_ids.bos = None;
        assert_eq!(Tokenizer::open(folder.path(), &architecture).unwrap().encode("").unwrap(), [257]);
        architecture.token_ids.eos.clear();
        let error = Tokenizer::open(folder.path(), &architecture).unwrap().encode("").unwrap_err();
        assert!(matches!(error, TokenizerError::EmptyPrompt { .. }), "{error}");
    }

    #[test]
    fn the_digest_tells_vocabularies_apart() {
        let digest = fixtures::byte_level().vocabulary_digest();
        assert_eq!((digest.len(), &digest), (64, &fixtures::byte_level().vocabulary_digest()));
        assert_ne!(digest, fixtures::sentencepiece().vocabulary_digest());
    }

    #[test]
    fn token_texts_are_bytes_in_either_alphabet() {
        for tokenizer in [fixtures::byte_level(), fixtures::sentencepiece()] {
            let texts = tokenizer.token_texts(400);
            assert_eq!(texts.len(), 400);
            for text in [" a b", "\n\t", "caf\u{e9} \u{1f600}"] {
                let tokens = tokenizer.encode(text).unwrap();
                let kept = tokens.iter().filter(|token| !texts[**token as usize].is_special);
                let bytes: Vec<u8> = kept.flat_map(|token| texts[*token as usize].bytes.clone()).collect();
                let spelled = String::from_utf8_lossy(&bytes);
                assert_eq!(spelled.trim_start(), text.trim_start(), "{tokens:?}");
            }
        }
        assert!(fixtures::byte_level().token_texts(400)[399].bytes.is_empty());
    }

    #[test]
    fn bad_files_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let open = |vocab| Tokenizer::open(folder.path(), &fixtures::architecture(vocab)).unwrap_err().to_string();
        assert!(open(300).contains("tokenizer.json"), "{}", open(300));
        std::fs::write(folder.path().join("tokenizer.json"), "{").unwrap();
        assert!(open(300).contains("not a tokenizer"), "{}", open(300));
        std::fs::write(folder.path().join("tokenizer.json"), fixtures::byte_level_json(true).to_string()).unwrap();
        let error = open(200);
        assert!(error.contains("262") && error.contains("vocab_size is 200"), "{error}");
        std::fs::write(folder.path().join("generation_config.json"), r#"{"eos_token_id": 900}"#).unwrap();
        let error = open(300);
        assert!(error.contains("900") && error.contains("eos"), "{error}");
    }
}
