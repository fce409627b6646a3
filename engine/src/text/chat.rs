//! Chat templates: a conversation becomes prompt text, as the model's makers wrote it in Jinja.
//!
//! Neighbours: `chat_source` finds the template, `Tokenizer::encode_rendered` takes the result (the template writes BOS
//! itself), the `run --chat` command and the server bring the messages. The environment mimics transformers'
//! (trim_blocks, lstrip_blocks, Python's string methods, `raise_exception`, `strftime_now`, a `tojson` that leaves `<`
//! alone), since templates are written against that one. A template is a stranger's program, so it runs on fuel: an
//! endless loop ends with an error.

use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind, context};
use serde::Deserialize;

use super::chat_source::Source;
use super::dates;
use crate::model::gguf::{GgufError, is_gguf};

/// Instructions a template may execute; real ones need a few thousand per message.
const FUEL: u64 = 50_000_000;
const TEMPLATE: &str = "chat_template";

#[derive(Debug, thiserror::Error)]
pub enum ChatError {
    #[error(transparent)]
    Gguf(#[from] GgufError),
    #[error(
        "the model at {path} has no chat template: neither chat_template.jinja nor `chat_template` in \
        tokenizer_config.json, nor `tokenizer.chat_template` in a GGUF file. Use a raw prompt without --chat, or an \
        instruction-tuned model"
    )]
    NoTemplate { path: PathBuf },
    #[error("{path} has several chat templates ({names}) but none named `default`. Name one of them `default`")]
    NoDefault { path: PathBuf, names: String },
    #[error("cannot read {path}: {reason}")]
    Unreadable { path: PathBuf, reason: String },
    #[error("the chat template in {path} is not valid Jinja: {reason}")]
    Syntax { path: PathBuf, reason: String },
    #[error("the chat template in {path} refused the conversation: {reason}")]
    Refused { path: PathBuf, reason: String },
}

/// One turn; `role` is what the template knows, usually `system`, `user` or `assistant`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct ChatMessage {
    pub role: String,
    pub content: String,
}

impl ChatMessage {
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Self { role: role.into(), content: content.into() }
    }
}

/// A model's chat template, compiled.
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
}

impl ChatTemplate {
    /// Takes a folder's `chat_template.jinja` where there is one, else the template in `tokenizer_config.json`; or the
    /// one in a GGUF file.
    pub fn open(path: &Path) -> Result<Self, ChatError> {
        let Source { path, template, tokens } =
            if is_gguf(path) { Source::of_gguf(path) } else { Source::of_folder(path) }?;
        let mut environment = environment();
        for (name, text) in tokens {
            environment.add_global(name, text);
        }
        environment
            .add_template_owned(TEMPLATE, template)
            .map_err(|error| ChatError::Syntax { path: path.clone(), reason: describe(&error) })?;
        Ok(Self { environment, path })
    }

    /// The prompt text; `add_generation_prompt` ends it with the header of the answer to come.
    pub fn render(&self, messages: &[ChatMessage], add_generation_prompt: bool) -> Result<String, ChatError> {
        let messages: Vec<Value> =
            messages.iter().map(|message| context! { role => &message.role, content => &message.content }).collect();
        let rendered = self
            .environment
            .get_template(TEMPLATE)
            .and_then(|template| template.render(context! { messages, add_generation_prompt }));
        rendered.map_err(|error| ChatError::Refused { path: self.path.clone(), reason: describe(&error) })
    }
}

fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
    environment.set_syntax(syntax.expect("Jinja's own delimiters"));
    environment.set_fuel(Some(FUEL));
    environment.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
    environment.add_filter("tojson", tojson);
    environment.add_function("raise_exception", |message: String| -> Result<String, Error> {
        Err(Error::new(ErrorKind::InvalidOperation, message))
    });
    environment.add_function("strftime_now", |format: String| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        dates::format_utc(now.as_secs(), &format)
    });
    environment
}

/// Python's `json.dumps(ensure_ascii=False)`. minijinja's own filter escapes for HTML, which prompts must not show.
fn tojson(value: &Value, indent: Option<Value>, options: Kwargs) -> Result<Value, Error> {
    let indent = indent.or_else(|| options.get::<Option<Value>>("indent").ok().flatten());
    let escaped = minijinja::filters::tojson(value, indent, Kwargs::from_iter([] as [(String, Value); 0]))?;
    let mut plain = String::new();
    let mut rest = escaped.as_str().unwrap_or_default();
    // Escapes are taken one by one, since `\\u003c` is an escaped backslash, not a `<`.
    while let Some(at) = rest.find('\\') {
        plain.push_str(&rest[..at]);
        let html = [("\\u003c", '<'), ("\\u003e", '>'), ("\\u0026", '&'), ("\\u0027", '\'')];
        if let Some((code, character)) = html.iter().find(|(code, _)| rest[at..].starts_with(code)) {
            plain.push(*character);
            rest = &rest[at + code.len()..];
        } else {
            plain.push_str(&rest[at..at + 2]);
            rest = &rest[at + 2..];
        }
    }
    plain.push_str(rest);
    Ok(Value::from(plain))
}

/// The message with its line and its causes, as one line.
fn describe(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn open(config: &serde_json::Value, own: Option<&str>) -> Result<ChatTemplate, ChatError> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("tokenizer_config.json"), config.to_string()).unwrap();
        if let Some(own) = own {
            std::fs::write(folder.path().join("chat_template.jinja"), own).unwrap();
        }
        ChatTemplate::open(folder.path())
    }

    fn render(template: &str) -> Result<String, ChatError> {
        let turns = [ChatMessage::new("system", " Be brief. "), ChatMessage::new("user", "a < 'b'\\u003c")];
        open(&json!({"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}), None)?
            .render(&turns, true)
    }

    #[test]
    fn a_chatml_template_renders_as_in_transformers() {
        let template = "{{ bos_token }}{% for message in messages %}
    {% if loop.first and message['role'] != 'system' %}
        {{ raise_exception('no system') }}
    {% endif %}
    {{- '<|' + message.role + '|>' + message.content | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}
<|assistant|>
{% endif %}
";
        // Made with jinja2's ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).
        assert_eq!(
            render(template).unwrap(),
            "<s><|system|>Be brief.</s>\n<|user|>a < 'b'\\u003c</s>\n<|assistant|>\n"
        );
    }

    #[test]
    fn pythons_helpers_work() {
        let template = "{% set parts = messages[1:][0].content.split(' ') %}{{ parts[0].upper() }}\
            {{ messages[0].content.strip().startswith('Be') }}{% for key, value in messages[0].items() %}\
            {% if key == 'role' %}{% continue %}{% endif %}{{ key }}{% endfor %}";
        assert_eq!(render(template).unwrap(), "ATruecontent");
        assert_eq!(render("{{ messages[1].content | tojson }}").unwrap(), r#""a < 'b'\\u003c""#);
        assert_eq!(render("{{ {'a': [1, true]} | tojson }}").unwrap(), r#"{"a": [1, true]}"#);
        assert_eq!(render("{{ {'a': 1} | tojson(indent=2) }}").unwrap(), "{\n  \"a\": 1\n}");
        assert_eq!(render("{{ strftime_now('%Y') | length }}").unwrap(), "4");
        assert_eq!(render("{{ tools is defined }}{% if not tools %}x{% endif %}").unwrap(), "Falsex");
    }

    #[test]
    fn refusals_loops_and_syntax_errors_are_named() {
        let error = render("{{ raise_exception('roles must alternate') }}").unwrap_err();
        assert!(matches!(error, ChatError::Refused { .. }) && error.to_string().contains("roles must alternate"));
        let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}";
        assert!(render(endless).unwrap_err().to_string().contains("fuel"));
        assert!(matches!(render("{% if %}").unwrap_err(), ChatError::Syntax { .. }));
    }

    #[test]
    fn the_template_is_found_or_its_absence_explained() {
        let named =
            json!({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]});
        assert_eq!(open(&named, None).unwrap().render(&[], false).unwrap(), "d");
        assert_eq!(open(&named, Some("own")).unwrap().render(&[], false).unwrap(), "own");
        assert!(matches!(open(&json!({}), None).unwrap_err(), ChatError::NoTemplate { .. }));
        let error = open(&json!({"chat_template": [{"name": "rag", "template": "t"}]}), None).unwrap_err();
        assert!(error.to_string().contains("rag"), "{error}");
    }
}
