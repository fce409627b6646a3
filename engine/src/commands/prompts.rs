//! Requests from the command line: one prompt, a file, or a file of JSON lines.
//!
//! A line is `{"prompt": ..}` with any sampling field beside it. Lines of the usual benchmark files are taken as they
//! are: `turns` (the first one is the prompt), and their bookkeeping fields are passed over.

use std::fs;
use std::path::Path;

use anyhow::Context;
use foretoken::config::Sampling;
use foretoken::config::raw::RawSampling;
use foretoken::model::nearest::nearest;
use foretoken::{Engine, Request};
use serde_json::{Map, Value};

use super::UsageError;
use crate::cli::{PromptArgs, SamplingArgs};

/// Fields of benchmark files that say nothing about sampling.
const BOOKKEEPING: [&str; 9] =
    ["question_id", "category", "task_id", "entry_point", "canonical_solution", "test", "reference", "source", "id"];
/// What a line may say of sampling.
const SAMPLING: [&str; 19] = [
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "seed",
    "max_tokens",
    "n",
    "stop",
    "ignore_eos",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "guidance_scale",
    "negative_prompt",
    "speculative",
    "num_speculative_tokens",
    "proposer",
    "priority",
    "prompt_tokens",
];

/// What to continue.
#[derive(Clone)]
enum Prompt {
    Text(String),
    Tokens(Vec<u32>),
}

/// The requests that the flags ask for.
pub fn requests(
    engine: &Engine,
    args: &PromptArgs,
    sampling: &SamplingArgs,
    chat: bool,
) -> anyhow::Result<Vec<Request>> {
    let defaults = engine.config().sampling.clone().with(sampling.raw())?;
    let one = |text: String| request(engine, Prompt::Text(text), defaults.clone(), chat);
    match (&args.prompt, &args.prompt_file, &args.prompts) {
        (Some(text), _, _) => Ok(vec![one(text.clone())?]),
        (_, Some(path), _) => Ok(vec![one(read(path)?)?]),
        (_, _, Some(path)) => lines(path)?.iter().map(|line| line.request(engine, &defaults, chat)).collect(),
        _ => Err(UsageError("give one of --prompt, --prompt-file, --prompts".to_owned()).into()),
    }
}

/// A line of a file of JSON lines.
pub struct Line {
    /// File and line, for errors.
    place: String,
    /// What kind of prompt the file says it is.
    pub category: Option<String>,
    prompt: Prompt,
    raw: RawSampling,
}

impl Line {
    /// A line that says nothing but its prompt.
    pub fn text(prompt: &str) -> Self {
        let prompt = Prompt::Text(prompt.to_owned());
        Self { place: "a built-in prompt".to_owned(), category: None, prompt, raw: RawSampling::default() }
    }

    /// The request that it is, `defaults` where it says nothing.
    pub fn request(&self, engine: &Engine, defaults: &Sampling, chat: bool) -> anyhow::Result<Request> {
        let place = || self.place.clone();
        let sampling = defaults.clone().with(self.raw.clone()).with_context(place)?;
        request(engine, self.prompt.clone(), sampling, chat).with_context(place)
    }
}

/// The prompts of a file of JSON lines.
pub fn lines(path: &Path) -> anyhow::Result<Vec<Line>> {
    let text = read(path)?;
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let lines = lines.map(|(number, line)| {
        let place = format!("{}:{}", path.display(), number + 1);
        let (prompt, raw, category) = parse_line(line).map_err(UsageError).with_context(|| place.clone())?;
        Ok(Line { place, category, prompt, raw })
    });
    lines.collect()
}

fn read(path: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(path).map_err(|error| UsageError(format!("cannot read {}: {error}", path.display())))?;
    let wrong = |error: std::string::FromUtf8Error| {
        let at = error.utf8_error().valid_up_to();
        UsageError(format!("{} is not UTF-8 text: byte {at} is not; save it as UTF-8", path.display()))
    };
    Ok(String::from_utf8(bytes).map_err(wrong)?)
}

fn request(engine: &Engine, prompt: Prompt, sampling: Sampling, chat: bool) -> anyhow::Result<Request> {
    let prompt = match prompt {
        Prompt::Tokens(tokens) => tokens,
        Prompt::Text(text) if chat => engine.chat_tokens(&text)?,
        Prompt::Text(text) => engine.tokenizer().encode(&text)?,
    };
    Ok(Request { prompt, sampling, text: true })
}

fn parse_line(line: &str) -> Result<(Prompt, RawSampling, Option<String>), String> {
    let mut fields: Map<String, Value> =
        serde_json::from_str(line).map_err(|error| format!("expected a JSON object with \"prompt\": {error}"))?;
    let prompt = take_prompt(&mut fields)?;
    let category = fields.get("category").and_then(Value::as_str).map(str::to_owned);
    fields.retain(|key, _| !BOOKKEEPING.contains(&key.as_str()));
    if let Some(unknown) = fields.keys().find(|key| !SAMPLING.contains(&key.as_str())) {
        let near = nearest(unknown, SAMPLING).map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        return Err(format!("unknown field {unknown:?}{near}"));
    }
    let raw = serde_json::from_value(Value::Object(fields)).map_err(|error| error.to_string())?;
    Ok((prompt, raw, category))
}

fn take_prompt(fields: &mut Map<String, Value>) -> Result<Prompt, String> {
    if let Some(tokens) = fields.remove("prompt_tokens") {
        let tokens = serde_json::from_value(tokens).map_err(|error| format!("\"prompt_tokens\": {error}"))?;
        return Ok(Prompt::Tokens(tokens));
    }
    let turns = fields.remove("turns");
    let first = turns.as_ref().and_then(|turns| turns.get(0)).cloned();
    match fields.remove("prompt").or(first) {
        Some(Value::String(text)) => Ok(Prompt::Text(text)),
        Some(other) => Err(format!("\"prompt\" must be a string, found {other}")),
        None => Err("there is no \"prompt\"".to_owned()),
    }
}
