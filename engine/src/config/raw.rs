//! The file as written: every key optional, unknown keys refused with the nearest name and the line.

use serde::Deserialize;

use super::ConfigError;
use crate::model::nearest::nearest;

/// A config file.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawConfig {
    /// Threads of the pool; `"auto"` is the number of physical cores.
    pub threads: Option<Auto<usize>>,
    /// Bind each thread to a core of its own.
    pub pin_threads: bool,
    /// Integrity checks after every step.
    pub checks: bool,
    /// The target.
    pub model: RawModel,
    /// One proposer, or a list tried in order; none is plain decoding.
    pub proposer: Option<OneOrMany>,
    /// What keeps drafts; default `gumbel`.
    pub sampler: Option<RawPart>,
    /// Who runs; default `fcfs`.
    pub scheduler: Option<RawPart>,
    /// Where keys and values live; default `paged`.
    pub kv: Option<RawKv>,
    /// Defaults that a request may override.
    pub sampling: RawSampling,
    /// Where plugins are found.
    pub plugins: RawPlugins,
}

/// A value or the word `"auto"`.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum Auto<T> {
    /// Given.
    Value(T),
    /// `"auto"`, or another word, which is refused on resolving.
    Word(String),
}

/// `[model]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawModel {
    /// A Hugging Face folder or a GGUF file.
    pub path: Option<String>,
    /// How weights are held; default bf16.
    pub dtype: Option<String>,
    /// Where the model runs.
    pub device: Option<String>,
    /// Leading columns of its hidden rows that proposers see; default all.
    pub hidden_columns: Option<usize>,
}

/// `[proposer]` or `[[proposer]]`.
#[derive(Debug, Clone)]
pub struct OneOrMany(pub Vec<RawPart>);

impl<'de> Deserialize<'de> for OneOrMany {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Not `untagged`: that would swallow which key was wrong.
        struct Visitor;
        impl<'de> serde::de::Visitor<'de> for Visitor {
            type Value = OneOrMany;

            fn expecting(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                formatter.write_str("a [proposer] table or a [[proposer]] list")
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(self, map: A) -> Result<OneOrMany, A::Error> {
                let part = RawPart::deserialize(serde::de::value::MapAccessDeserializer::new(map))?;
                Ok(OneOrMany(vec![part]))
            }

            fn visit_seq<A: serde::de::SeqAccess<'de>>(self, seq: A) -> Result<OneOrMany, A::Error> {
                Vec::deserialize(serde::de::value::SeqAccessDeserializer::new(seq)).map(OneOrMany)
            }
        }
        deserializer.deserialize_any(Visitor)
    }
}

/// One part: which plugin, and its options.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPart {
    /// A part's name, looked up in the plugin folders.
    pub plugin: Option<String>,
    /// Or a library's path.
    pub path: Option<String>,
    /// What reports and requests call it; default its part name.
    pub name: Option<String>,
    /// The plugin's own options.
    pub options: toml::Table,
}

/// `[kv]`: a part, and what the engine itself needs to know of the KV.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawKv {
    /// As in [`RawPart`].
    pub plugin: Option<String>,
    /// As in [`RawPart`].
    pub path: Option<String>,
    /// As in [`RawPart`].
    pub name: Option<String>,
    /// As in [`RawPart`].
    pub options: toml::Table,
    /// How keys and values are stored.
    pub dtype: Option<String>,
    /// Slots; `"auto"` takes what a quarter of the free memory holds, at most 65536.
    pub num_slots: Option<Auto<usize>>,
}

/// `[sampling]`, and the sampling fields of a `--prompts` line.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawSampling {
    /// 0 is greedy.
    pub temperature: Option<f32>,
    /// 0 keeps all.
    pub top_k: Option<u32>,
    /// 1 keeps all.
    pub top_p: Option<f32>,
    /// 0 keeps all.
    pub min_p: Option<f32>,
    /// The key of all randomness; default 0.
    pub seed: Option<u64>,
    /// Most tokens of a completion.
    pub max_tokens: Option<usize>,
    /// Completions of one prompt.
    pub n: Option<u32>,
    /// Strings that end a completion; they are cut off.
    pub stop: Option<Vec<String>>,
    /// Go on past end-of-sequence tokens.
    pub ignore_eos: Option<bool>,
    /// Above 1 divides, below 1 multiplies the odds of tokens already seen.
    pub repetition_penalty: Option<f32>,
    /// Subtracted from the logit of tokens already generated.
    pub presence_penalty: Option<f32>,
    /// Subtracted once per occurrence among the tokens generated.
    pub frequency_penalty: Option<f32>,
    /// Classifier-free guidance: 1 is none, 0 the negative prompt alone; above 1 the prompt counts for more.
    pub guidance_scale: Option<f32>,
    /// What guidance leads away from; without it, the empty prompt.
    pub negative_prompt: Option<String>,
    /// Whether to speculate at all.
    pub speculative: Option<bool>,
    /// At most this many draft nodes a step.
    pub num_speculative_tokens: Option<u32>,
    /// Which of the loaded proposers, by name.
    pub proposer: Option<String>,
    /// Larger runs first.
    pub priority: Option<i32>,
}

/// `[plugins]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct RawPlugins {
    /// Folders searched in order.
    pub dirs: Option<Vec<String>>,
    /// Pins: part or library name to the library's SHA-256.
    pub sha256: std::collections::BTreeMap<String, String>,
    /// Faults after which a proposer is quarantined; default 3.
    pub max_faults: Option<u32>,
}

impl RawConfig {
    /// Reads a config's text; `place` names it in errors.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] with the line.
    pub fn parse(text: &str, place: &str) -> Result<Self, ConfigError> {
        toml::from_str(text).map_err(|error| syntax(&error, text, place))
    }

    /// Reads a table that overrides have changed.
    ///
    /// # Errors
    /// [`ConfigError::Syntax`] without a line, since the text is no longer the file's.
    pub fn from_table(table: toml::Table) -> Result<Self, ConfigError> {
        let text = toml::to_string(&table).unwrap_or_default();
        toml::Value::Table(table).try_into().map_err(|error: toml::de::Error| {
            let found = syntax(&error, &text, "after --set");
            match found {
                ConfigError::Syntax { message, hint, .. } => {
                    ConfigError::Syntax { place: "after --set".to_owned(), message, hint }
                }
                other => other,
            }
        })
    }
}

/// A TOML error with its line, and the nearest name where a key is unknown.
pub(super) fn syntax(error: &toml::de::Error, text: &str, place: &str) -> ConfigError {
    let line = error.span().map(|span| text[..span.start.min(text.len())].matches('\n').count() + 1);
    let place = line.map_or_else(|| place.to_owned(), |line| format!("{place}:{line}"));
    let message = error.message().to_owned();
    // serde's message is "unknown field `a`, expected one of `b`, `c`": the names are between backticks.
    let mut names = message.split('`').skip(1).step_by(2);
    let hint =
        names.next().filter(|_| message.starts_with("unknown field")).and_then(|unknown| nearest(unknown, names));
    let hint = hint.map_or_else(String::new, |name| format!("\n  fix: did you mean `{name}`?"));
    ConfigError::Syntax { place, message, hint }
}
