//! A run's configuration, in two stages: [`raw`] is the file as written, [`resolved`] is what the engine runs.
//!
//! Nothing downstream reads a raw value, and a resolved one never changes. Plugin options pass through untouched as
//! TOML text: only the plugin knows its keys, and it refuses unknown ones itself.

mod overrides;
pub mod raw;
pub mod resolved;

pub use overrides::Override;
pub use raw::RawConfig;
pub use resolved::{Config, PartChoice, PartSource, PluginDirs, Sampling};
pub(crate) use resolved::{DTYPE_NAMES, dtype_named};

use std::path::{Path, PathBuf};

/// Why a configuration cannot be used. All of these are exit status 2.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the config {path}: {source}\n  fix: give the path of a TOML file, such as configs/ngram.toml")]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The text is not TOML, or a key or a value's type is wrong.
    #[error("{place}: {message}{hint}")]
    Syntax {
        /// `file:line` or the `--set` that said it.
        place: String,
        /// What is wrong.
        message: String,
        /// The nearest name, if one was meant.
        hint: String,
    },
    /// A value is out of its range.
    #[error("{key} = {found}: expected {expected}")]
    Value {
        /// The key, dotted.
        key: &'static str,
        /// The value found.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A `--set` that is not `key=value`.
    #[error(
        "--set {text}: {problem}\n  fix: write it as --set a.b=VALUE with VALUE in TOML, as in --set sampler.plugin='\"gumbel\"'"
    )]
    Override {
        /// What was given.
        text: String,
        /// What is wrong with it.
        problem: String,
    },
}

/// Reads a config file, applies `--set` overrides in order, and resolves it.
///
/// # Errors
/// See [`ConfigError`].
pub fn load(path: &Path, overrides: &[Override]) -> Result<Config, ConfigError> {
    let text =
        std::fs::read_to_string(path).map_err(|source| ConfigError::Unreadable { path: path.to_owned(), source })?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
    parse(&text, &path.display().to_string(), folder, overrides)
}

/// The same from text; relative paths start at `folder`.
///
/// # Errors
/// See [`ConfigError`].
pub fn parse(text: &str, place: &str, folder: &Path, overrides: &[Override]) -> Result<Config, ConfigError> {
    let mut raw = RawConfig::parse(text, place)?;
    if !overrides.is_empty() {
        let mut table: toml::Table = toml::from_str(text).map_err(|error| raw::syntax(&error, text, place))?;
        for change in overrides {
            change.apply(&mut table)?;
        }
        raw = RawConfig::from_table(table)?;
    }
    Config::resolve(raw, folder)
}
