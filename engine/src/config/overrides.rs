//! `--set a.b=v`: changes to a config from the command line, in TOML.
//!
//! A path in a config is relative to its file, a path in `--set` to the current folder; so a string that looks like a
//! path is made absolute here, before the file's folder can claim it.

use std::path::Path;
use std::str::FromStr;

use toml::{Table, Value};

use super::ConfigError;

/// One `key=value`.
#[derive(Debug, Clone)]
pub struct Override {
    text: String,
    keys: Vec<String>,
    value: Value,
}

impl FromStr for Override {
    type Err = ConfigError;

    fn from_str(text: &str) -> Result<Self, ConfigError> {
        let problem = |problem: &str| ConfigError::Override { text: text.to_owned(), problem: problem.to_owned() };
        let (key, value) = text.split_once('=').ok_or_else(|| problem("there is no ="))?;
        let keys: Vec<String> = key.trim().split('.').map(|part| part.trim().to_owned()).collect();
        if keys.iter().any(String::is_empty) {
            return Err(problem("the key has an empty part"));
        }
        let parsed: Result<Table, _> = toml::from_str(&format!("value = {value}"));
        let value = match parsed {
            Ok(mut table) => table.remove("value").ok_or_else(|| problem("the value is empty"))?,
            Err(_) => return Err(problem("the value is not TOML (strings need quotes)")),
        };
        Ok(Self { text: text.to_owned(), keys, value: absolute(value) })
    }
}

/// Strings that name something that exists from the current folder, and look like paths, become absolute.
fn absolute(value: Value) -> Value {
    match value {
        Value::String(text) if text.contains('/') && Path::new(&text).exists() => {
            let path = std::path::absolute(&text).map(|path| path.to_string_lossy().into_owned());
            Value::String(path.unwrap_or(text))
        }
        Value::Array(items) => Value::Array(items.into_iter().map(absolute).collect()),
        Value::Table(table) => Value::Table(table.into_iter().map(|(key, value)| (key, absolute(value))).collect()),
        other => other,
    }
}

impl Override {
    /// Sets the value; setting `x.plugin` or `x.path` of a part drops the options of the part it replaces.
    pub(super) fn apply(&self, table: &mut Table) -> Result<(), ConfigError> {
        let (last, path) = self.keys.split_last().expect("from_str refuses empty keys");
        let mut table = table;
        for key in path {
            let entry = table.entry(key.clone()).or_insert_with(|| Value::Table(Table::new()));
            table = entry.as_table_mut().ok_or_else(|| ConfigError::Override {
                text: self.text.clone(),
                problem: format!("`{key}` is not a table in this config"),
            })?;
        }
        let is_part = matches!(path, [part] if ["proposer", "sampler", "scheduler", "kv"].contains(&part.as_str()));
        if is_part && (last == "plugin" || last == "path") {
            table.remove("options");
            table.remove(if last == "plugin" { "path" } else { "plugin" });
        }
        table.insert(last.clone(), self.value.clone());
        Ok(())
    }
}
