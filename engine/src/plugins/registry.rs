//! Which parts there are and where: the plugin folders, searched in order.
//!
//! A folder's libraries are told apart by a byte pattern that every plugin header contains, so that a stray library
//! beside them is never opened just to look whether it is one.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use foretoken_plugin_api::Kind;
use foretoken_plugin_api::abi::module::LoadedPart;
use memchr::memmem;

use super::load::{self, Library, LoadError};
use crate::config::{PartChoice, PartSource, PluginDirs};
use crate::model::nearest::nearest;

/// The environment variable with more plugin folders, separated as in `PATH`.
pub const PATH_VARIABLE: &str = "FORETOKEN_PLUGIN_PATH";

/// The program's own folder, then those of [`PATH_VARIABLE`].
pub fn default_dirs() -> Vec<PathBuf> {
    let own = env::current_exe().ok().and_then(|program| program.parent().map(Path::to_owned));
    let more = env::var_os(PATH_VARIABLE).map(|paths| env::split_paths(&paths).collect::<Vec<_>>());
    own.into_iter().chain(more.into_iter().flatten()).collect()
}

/// The plugin folders of one config.
pub struct Registry {
    dirs: PluginDirs,
    opened: Vec<Library>,
    scanned: bool,
    /// Libraries that carry our pattern but did not load, and why.
    pub broken: Vec<LoadError>,
}

impl Registry {
    /// A registry over these folders; nothing is opened yet.
    pub fn new(dirs: PluginDirs) -> Self {
        Self { dirs, opened: Vec::new(), scanned: false, broken: Vec::new() }
    }

    /// The part that `choice` names, its library opened.
    ///
    /// # Errors
    /// See [`LoadError`].
    pub fn find(&mut self, choice: &PartChoice) -> Result<LoadedPart, LoadError> {
        match &choice.source {
            PartSource::Library(path, part) => {
                let library = self.open(path, part.as_deref().or(Some(&choice.name)))?;
                library.part(part.as_deref(), choice.kind)
            }
            PartSource::Named(name) => self.find_named(name, choice.kind),
        }
    }

    fn find_named(&mut self, name: &str, kind: Kind) -> Result<LoadedPart, LoadError> {
        // The usual file name first: most runs need four libraries, not all of them.
        let usual = library_file(&format!("foretoken_{}", name.replace('-', "_")));
        let usual = self.dirs.dirs.iter().map(|dir| dir.join(&usual)).find(|path| path.is_file());
        if let Some(path) = usual {
            let library = self.open(&path, Some(name))?;
            if library.parts.iter().any(|part| part.name() == name) {
                return library.part(Some(name), kind);
            }
        }
        self.scan();
        let pin = self.dirs.sha256.get(name).cloned();
        let mut with_name = self.opened.iter().filter(|library| library.parts.iter().any(|part| part.name() == name));
        if let Some(library) = with_name.next() {
            let library = load::open(&library.path, pin.as_deref())?;
            return library.part(Some(name), kind);
        }
        Err(self.not_found(name, kind))
    }

    fn not_found(&mut self, name: &str, kind: Kind) -> LoadError {
        // A library that should have had it, and did not load, is the better answer.
        let file = format!("foretoken_{}", name.replace('-', "_"));
        if let Some(index) = self.broken.iter().position(|error| error.to_string().contains(&file)) {
            return self.broken.swap_remove(index);
        }
        let parts = self.opened.iter().flat_map(|library| &library.parts);
        // A folder may hold several copies of one library.
        let known: BTreeSet<&str> = parts.filter(|part| part.kind() == Some(kind)).map(LoadedPart::name).collect();
        let near = nearest(name, known.iter().copied());
        LoadError::NotFound {
            kind,
            name: name.to_owned(),
            dirs: self.dirs.dirs.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", "),
            nearest: near.map_or_else(String::new, |near| format!("; did you mean `{near}`?")),
            known: if known.is_empty() { "none".to_owned() } else { known.into_iter().collect::<Vec<_>>().join(", ") },
        }
    }

    fn open(&mut self, path: &Path, name: Option<&str>) -> Result<Library, LoadError> {
        let stem = path.file_stem().unwrap_or_default().to_string_lossy();
        let pins = &self.dirs.sha256;
        let pin = name.and_then(|name| pins.get(name)).or_else(|| pins.get(&*stem)).cloned();
        if let (None, Some(library)) = (&pin, self.opened.iter().find(|library| library.path == path)) {
            return Ok(library.clone());
        }
        let library = load::open(path, pin.as_deref())?;
        self.opened.push(library.clone());
        Ok(library)
    }

    /// Every plugin library of the folders.
    pub fn libraries(&mut self) -> &[Library] {
        self.scan();
        &self.opened
    }

    fn scan(&mut self) {
        if std::mem::replace(&mut self.scanned, true) {
            return;
        }
        let dirs = self.dirs.dirs.clone();
        for path in dirs.iter().flat_map(|dir| candidates(dir)) {
            if let Err(error) = self.open(&path, None) {
                self.broken.push(error);
            }
        }
    }
}

fn library_file(stem: &str) -> String {
    format!("{}{stem}{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX)
}

/// The libraries of a folder that contain a plugin header's first bytes, sorted by name.
fn candidates(dir: &Path) -> Vec<PathBuf> {
    let files = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_library = |path: &PathBuf| path.to_string_lossy().ends_with(env::consts::DLL_SUFFIX);
    let mut found: Vec<PathBuf> = files.filter(is_library).filter(|path| has_header(path)).collect();
    found.sort();
    found
}

fn has_header(path: &Path) -> bool {
    let bytes = fs::read(path).unwrap_or_default();
    memmem::find(&bytes, &foretoken_plugin_api::abi::header::MAGIC).is_some()
}
