//! Opens one library and believes it step by step; each step's failure is its own error, with path, expected, found and
//! the fix.
//!
//! abi_stable's own `load_from*` is not used: it memoises per root module type and would return the first plugin twice.
//! Here each library is opened by its own handle, which is leaked: libraries are never unloaded.
#![allow(unsafe_code)]

use std::path::{Path, PathBuf};

use foretoken_plugin_api::abi::header::{self, HeaderFacts, PluginHeader};
use foretoken_plugin_api::abi::module::LoadedPart;
use foretoken_plugin_api::{API_LEVEL, Kind};
use sha2::{Digest, Sha256};

/// Why a plugin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// Step 1: there is no such file.
    #[error(
        "plugin library {path} does not exist\n  fix: build it (cargo build --release --workspace) or correct the path"
    )]
    Missing {
        /// The file.
        path: PathBuf,
    },
    /// Step 2: the file is not the pinned one.
    #[error(
        "plugin library {path} does not match its pin\n  expected sha256 {expected}\n  found    sha256 {found}\n  fix: rebuild the pinned version, or update [plugins].sha256 if you trust this file"
    )]
    Pin {
        /// The file.
        path: PathBuf,
        /// The configured digest.
        expected: String,
        /// The file's digest.
        found: String,
    },
    /// Step 3: the system's loader refuses it.
    #[error(
        "{path} cannot be opened as a library: {reason}\n  fix: give the path of a shared library built for this machine"
    )]
    NotALibrary {
        /// The file.
        path: PathBuf,
        /// What the system says.
        reason: String,
    },
    /// Step 4: a library, but not one of ours.
    #[error(
        "{path} is a library but not a foretoken plugin: {reason}\n  fix: it must be a cdylib with an export_plugin! line"
    )]
    NotAPlugin {
        /// The file.
        path: PathBuf,
        /// What is missing.
        reason: String,
    },
    /// Step 5: another API level.
    #[error(
        "{path} was built for plugin API level {found}, this engine has level {expected}\n  fix: rebuild the plugin with foretoken-plugin-api {expected}.x"
    )]
    Level {
        /// The file.
        path: PathBuf,
        /// This engine's level.
        expected: u32,
        /// The library's level.
        found: u32,
    },
    /// Step 6: its panics would abort the process.
    #[error(
        "{path} was built with panic = \"abort\", so its panics cannot be contained\n  fix: rebuild it with panic = \"unwind\""
    )]
    Panics {
        /// The file.
        path: PathBuf,
    },
    /// Step 7: the layout of what crosses differs.
    #[error(
        "{path} (built by {rustc}): {reason}\n  fix: rebuild the plugin against a released foretoken-plugin-api of level {API_LEVEL}"
    )]
    Layout {
        /// The file.
        path: PathBuf,
        /// abi_stable's account.
        reason: String,
        /// The compiler that built the library.
        rustc: String,
    },
    /// Step 8: a part of another kind than its slot in the config.
    #[error(
        "{path}: part `{part}` is a {found}, but [{expected}] asks for a {expected}\n  fix: name it under [{found}], or choose a {expected}"
    )]
    Kind {
        /// The file.
        path: PathBuf,
        /// The part.
        part: String,
        /// The slot's kind.
        expected: Kind,
        /// The part's kind.
        found: &'static str,
    },
    /// The library has no part of that name.
    #[error("{path} has no part `{part}`; it exports: {exports}\n  fix: set plugin to one of these")]
    NoSuchPart {
        /// The file.
        path: PathBuf,
        /// The name asked for.
        part: String,
        /// What there is.
        exports: String,
    },
    /// No folder has a part of that name.
    #[error(
        "no {kind} `{name}` found in {dirs}{nearest}\n  there are: {known}\n  fix: build it (cargo build --release --workspace), correct the name, or add its folder to [plugins].dirs"
    )]
    NotFound {
        /// The slot's kind.
        kind: Kind,
        /// The name asked for.
        name: String,
        /// Folders searched.
        dirs: String,
        /// What there is of that kind.
        known: String,
        /// The nearest name, as a question.
        nearest: String,
    },
    /// Step 9: the part refused its options, or this engine.
    #[error("{kind} `{name}`: {source}")]
    Refused {
        /// The part's kind.
        kind: Kind,
        /// The part.
        name: String,
        /// Its reason.
        source: foretoken_plugin_api::Error,
    },
}

/// An open plugin library.
#[derive(Clone)]
pub struct Library {
    /// The file.
    pub path: PathBuf,
    /// What its C header says.
    pub facts: HeaderFacts,
    /// Its parts.
    pub parts: Vec<LoadedPart>,
}

/// Opens the library at `path`, checking it against `pin` (hex SHA-256) first.
///
/// # Errors
/// The first step of [`LoadError`] that fails.
pub fn open(path: &Path, pin: Option<&str>) -> Result<Library, LoadError> {
    let file = path.to_owned();
    if !path.is_file() {
        return Err(LoadError::Missing { path: file });
    }
    check_pin(path, pin)?;
    let symbol = open_symbol(path)?;
    // SAFETY: `symbol` is the address of the header symbol in a library that is never unloaded.
    let facts = unsafe { header::read(symbol) }
        .map_err(|error| LoadError::NotAPlugin { path: file.clone(), reason: error.to_string() })?;
    if facts.api_level != API_LEVEL {
        return Err(LoadError::Level { path: file, expected: API_LEVEL, found: facts.api_level });
    }
    if !facts.unwinds {
        return Err(LoadError::Panics { path: file });
    }
    // SAFETY: as above; the level was found equal.
    let module = unsafe { header::check(symbol) }.map_err(|error| LoadError::Layout {
        path: file.clone(),
        reason: error.to_string(),
        rustc: facts.rustc.clone(),
    })?;
    Ok(Library { path: file, facts, parts: module.list().collect() })
}

fn check_pin(path: &Path, pin: Option<&str>) -> Result<(), LoadError> {
    let Some(pin) = pin else { return Ok(()) };
    let found =
        sha256(path).map_err(|error| LoadError::NotALibrary { path: path.to_owned(), reason: error.to_string() })?;
    if found.eq_ignore_ascii_case(pin) {
        return Ok(());
    }
    Err(LoadError::Pin { path: path.to_owned(), expected: pin.to_owned(), found })
}

/// A file's SHA-256 in hex.
///
/// # Errors
/// If it cannot be read.
pub fn sha256(path: &Path) -> std::io::Result<String> {
    let digest = Sha256::digest(std::fs::read(path)?);
    Ok(digest.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn open_symbol(path: &Path) -> Result<*const PluginHeader, LoadError> {
    // A bare file name would be searched in the system's library folders.
    let absolute = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let not_a_library = |reason: String| LoadError::NotALibrary { path: path.to_owned(), reason };
    match std::fs::File::open(&absolute).and_then(super::elf::truncated) {
        Ok(None) => {}
        Ok(Some(reason)) => return Err(not_a_library(reason)),
        Err(error) => return Err(not_a_library(error.to_string())),
    }
    // SAFETY: opening runs the library's initialisers; a plugin is code the user chose to run.
    let library = unsafe { libloading::Library::new(&absolute) }.map_err(|error| not_a_library(error.to_string()))?;
    // SAFETY: the symbol is only taken as an address; `header::read` checks what is behind it.
    let symbol = unsafe { library.get::<*const PluginHeader>(header::SYMBOL.as_bytes()) };
    // A symbol read as a pointer is the symbol's own address: the header itself.
    let symbol = symbol.map(|symbol| *symbol).map_err(|_| LoadError::NotAPlugin {
        path: path.to_owned(),
        reason: format!("it has no symbol {}", header::SYMBOL),
    })?;
    std::mem::forget(library);
    Ok(symbol)
}

impl Library {
    /// The part named `name`, or the only part if no name is given.
    ///
    /// # Errors
    /// [`LoadError::NoSuchPart`], [`LoadError::Kind`].
    pub fn part(&self, name: Option<&str>, kind: Kind) -> Result<LoadedPart, LoadError> {
        let wanted = |part: &&LoadedPart| match name {
            Some(name) => part.name() == name && part.kind() == Some(kind),
            None => part.kind() == Some(kind),
        };
        if let Some(part) = self.parts.iter().find(wanted) {
            return Ok(*part);
        }
        match self.parts.iter().find(|part| name.is_none_or(|name| part.name() == name)) {
            Some(part) => Err(LoadError::Kind {
                path: self.path.clone(),
                part: part.name().to_owned(),
                expected: kind,
                found: part.kind().map_or("part of a later kind", Kind::name),
            }),
            None => Err(LoadError::NoSuchPart {
                path: self.path.clone(),
                part: name.unwrap_or_default().to_owned(),
                exports: self.facts.parts.trim_end_matches(',').to_owned(),
            }),
        }
    }
}
