//! Finds a plugin's built library, and refuses one older than its sources.
//!
//! Cargo does not rebuild a `cdylib` for tests, so a test could load yesterday's plugin and pass. The test's own
//! executable says where the libraries are: one profile, one folder.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

const BUILD: &str = "run `cargo build --release --workspace` first";

/// Why a library cannot be tested.
#[derive(Debug, thiserror::Error)]
pub enum StaleLibrary {
    /// It is not there.
    #[error("no library at {path}: {BUILD}")]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// Something of its sources is newer.
    #[error("{path} is older than {source_file}: {BUILD}")]
    Stale {
        /// The library.
        path: PathBuf,
        /// The newest of its sources.
        source_file: PathBuf,
    },
    /// Files cannot be read.
    #[error("{path}: {error}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
}

/// The library of `package`, whose `Cargo.toml` is in `manifest_dir`, beside the running test.
///
/// # Errors
/// If it is not built, or older than `Cargo.toml` or anything under `src`.
///
/// ```no_run
/// use foretoken_plugin_api::testkit::library;
///
/// let path = library("foretoken-ngram", env!("CARGO_MANIFEST_DIR")).unwrap_or_else(|error| panic!("{error}"));
/// ```
pub fn library(package: &str, manifest_dir: impl AsRef<Path>) -> Result<PathBuf, StaleLibrary> {
    let unreadable = |error| StaleLibrary::Unreadable { path: PathBuf::from("the running test"), error };
    let test = std::env::current_exe().map_err(unreadable)?;
    // target/<profile>/deps/<test>, or target/<profile>/<program>.
    let mut folder = test.parent().unwrap_or(Path::new("."));
    if folder.ends_with("deps") {
        folder = folder.parent().unwrap_or(folder);
    }
    library_in(folder, package, manifest_dir.as_ref())
}

fn library_in(folder: &Path, package: &str, manifest_dir: &Path) -> Result<PathBuf, StaleLibrary> {
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    let path = folder.join(format!("{DLL_PREFIX}{}{DLL_SUFFIX}", package.replace('-', "_")));
    if !path.is_file() {
        return Err(StaleLibrary::Missing { path });
    }
    let built = modified(&path)?;
    let mut newest = (modified(&manifest_dir.join("Cargo.toml"))?, manifest_dir.join("Cargo.toml"));
    walk(&manifest_dir.join("src"), &mut newest)?;
    if newest.0 > built {
        return Err(StaleLibrary::Stale { path, source_file: newest.1 });
    }
    Ok(path)
}

fn modified(path: &Path) -> Result<SystemTime, StaleLibrary> {
    let metadata = std::fs::metadata(path).and_then(|metadata| metadata.modified());
    metadata.map_err(|error| StaleLibrary::Unreadable { path: path.to_owned(), error })
}

fn walk(folder: &Path, newest: &mut (SystemTime, PathBuf)) -> Result<(), StaleLibrary> {
    let unreadable = |error| StaleLibrary::Unreadable { path: folder.to_owned(), error };
    for entry in std::fs::read_dir(folder).map_err(unreadable)? {
        let path = entry.map_err(unreadable)?.path();
        if path.is_dir() {
            walk(&path, newest)?;
        } else if modified(&path)? > newest.0 {
            *newest = (modified(&path)?, path);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::env::consts::{DLL_PREFIX, DLL_SUFFIX};
    use std::fs::File;
    use std::time::Duration;

    fn touch(path: &Path, seconds: u64) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        File::create(path).unwrap().set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    }

    #[test]
    fn a_library_older_than_any_source_is_refused_by_name() {
        let dir = tempfile::tempdir().unwrap();
        let (out, manifest) = (dir.path().join("out"), dir.path().join("crate"));
        let built = out.join(format!("{DLL_PREFIX}my_part{DLL_SUFFIX}"));
        touch(&manifest.join("Cargo.toml"), 50);
        touch(&manifest.join("src/deep/part.rs"), 100);
        let missing = library_in(&out, "my-part", &manifest).unwrap_err().to_string();
        assert!(missing.contains("cargo build --release --workspace"), "{missing}");

        touch(&built, 101);
        assert_eq!(library_in(&out, "my-part", &manifest).unwrap(), built);

        touch(&manifest.join("src/deep/part.rs"), 102);
        let stale = library_in(&out, "my-part", &manifest).unwrap_err().to_string();
        assert!(stale.contains("part.rs") && stale.contains("cargo build --release --workspace"), "{stale}");
        touch(&built, 103);
        touch(&manifest.join("Cargo.toml"), 104);
        assert!(matches!(library_in(&out, "my-part", &manifest), Err(StaleLibrary::Stale { .. })));
    }
}
