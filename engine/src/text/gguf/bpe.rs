//! Byte-level BPE (`tokenizer.ggml.model = "gpt2"`): Llama 3, Qwen, SmolLM, Mistral NeMo and GPT-2 themselves.
//!
//! Neighbours: `gguf` reads the vocabulary and assembles the stages. The file holds tokens and merges as tokenizer.json
//! does, but of the pre-tokenizer only a name; the expressions behind the names are those of the models' own
//! tokenizer.json, in which llama.cpp's table (llama-vocab.cpp) differs by spelling only. Qwen's NFC normalisation,
//! which llama.cpp leaves out, is applied: the reference is what the model was trained with.

use serde_json::{Value, json};
use tokenizers::models::bpe::BPE;

use super::{Kind, Stages, Vocabulary, malformed, unsupported};
use crate::model::Gguf;
use crate::text::tokenizer::TokenizerError;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const QWEN2: &str =
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
const TEKKEN: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// The names of `tokenizer.ggml.pre` that can be read.
const NAMES: [&str; 9] =
    ["default", "gpt-2", "llama-bpe", "llama3", "llama-v3", "qwen2", "deepseek-r1-qwen", "smollm", "tekken"];

/// What a name of `tokenizer.ggml.pre` stands for.
struct Pre {
    /// Expressions that split a text, one after the other.
    splits: &'static [&'static str],
    nfc: bool,
    /// Whether a word that is a token is taken whole, before any merge.
    ignore_merges: bool,
    /// Whether a text begins with BOS where the file does not say.
    add_bos: bool,
}

fn pre_of(name: &str) -> Option<Pre> {
    let plain = |splits| Pre { splits, nfc: false, ignore_merges: false, add_bos: false };
    Some(match name {
        // Not GPT-2's: llama.cpp splits off punctuation and runs of digits first.
        "default" => plain(&[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"]),
        "gpt-2" => plain(&[GPT2]),
        "smollm" => plain(&[r"\p{N}", GPT2]),
        "qwen2" => Pre { nfc: true, ..plain(&[QWEN2]) },
        "deepseek-r1-qwen" => plain(&[QWEN2]),
        "llama-bpe" | "llama3" | "llama-v3" => Pre { ignore_merges: true, add_bos: true, ..plain(&[LLAMA3]) },
        "tekken" => Pre { ignore_merges: true, add_bos: true, ..plain(&[TEKKEN]) },
        _ => return None,
    })
}

pub(super) fn stages(gguf: &Gguf, vocabulary: &Vocabulary) -> Result<Stages, TokenizerError> {
    let name = gguf.get::<String>("tokenizer.ggml.pre")?.unwrap_or_else(|| "default".to_owned());
    let Some(pre) = pre_of(&name) else {
        return Err(unsupported(gguf.path(), "tokenizer.ggml.pre", name, &NAMES));
    };
    let merges: Vec<String> = gguf.need("tokenizer.ggml.merges")?;
    let pairs = merges.iter().map(|merge| {
        // A token is never empty, so a space that begins the line belongs to the left one.
        let at = merge.char_indices().skip(1).find(|(_, letter)| *letter == ' ').map(|(at, _)| at);
        let (left, right) = at.map(|at| (&merge[..at], &merge[at + 1..]))?;
        Some((left.to_owned(), right.to_owned()))
    });
    let pairs = pairs.collect::<Option<Vec<_>>>();
    let pairs = pairs.ok_or_else(|| malformed(gguf.path(), "tokenizer.ggml.merges has a line without a space"))?;
    // Unused entries only pad the vocabulary to the embedding's size; the model's own tokenizer does not have them.
    let used = vocabulary.iter().filter(|(_, _, kind)| *kind != Kind::Unused);
    let model = BPE::builder()
        .vocab_and_merges(
            used.map(|(id, text, _)| (text.to_owned(), id)).collect::<tokenizers::models::bpe::Vocab>(),
            pairs,
        )
        .ignore_merges(pre.ignore_merges)
        .build()
        .map_err(|error| malformed(gguf.path(), error))?;
    let split = |pattern: &&str| {
        json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
        "invert": false})
    };
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false});
    let stages: Vec<Value> = pre.splits.iter().map(split).chain([byte_level.clone()]).collect();
    Ok(Stages {
        model,
        normalizer: if pre.nfc { json!({"type": "NFC"}) } else { Value::Null },
        pre_tokenizer: json!({"type": "Sequence", "pretokenizers": stages}),
        decoder: byte_level,
        add_bos: pre.add_bos,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_listed_has_its_rules() {
        assert!(NAMES.into_iter().all(|name| pre_of(name).is_some()));
        assert!(pre_of("falcon").is_none());
    }
}
