//! Compiled kernels on disk, so that a machine compiles each once.
//!
//! An entry is named by the hash of everything that decides its content, and begins with the hash of that content: an
//! entry that was cut short or damaged is a miss, and is written anew. NVRTC's own version is not part of the name:
//! old code stays right, and a machine needs no NVRTC for what is cached. The cache saves time and nothing else, so
//! no failure here is an error.

use super::compile::{HEADERS, Source};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of a SHA-256.
const HASH: usize = 32;

/// A folder of compiled kernels, or none.
pub(super) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// `foretoken/cuda` in the user's cache folder: `$XDG_CACHE_HOME`, or `~/.cache`.
    pub(super) fn of_user() -> Self {
        let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
        let home = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")));
        Self { folder: home.map(|home| home.join("foretoken/cuda")) }
    }

    /// The code stored under `key`, if it is there and whole.
    pub(super) fn get(&self, key: &str) -> Option<Vec<u8>> {
        let entry = std::fs::read(self.folder.as_ref()?.join(key)).ok()?;
        let (hash, code) = entry.split_at_checked(HASH)?;
        (Sha256::digest(code)[..] == *hash).then(|| code.to_vec())
    }

    /// Stores `code`, in one move, so that a reader sees the old entry, the new one, or none.
    pub(super) fn put(&self, key: &str, code: &[u8]) {
        if let Some(folder) = &self.folder {
            // See the module: without a cache the next process compiles again.
            let _ = write(folder, key, code);
        }
    }
}

fn write(folder: &Path, key: &str, code: &[u8]) -> std::io::Result<()> {
    static WRITES: AtomicU64 = AtomicU64::new(0);
    std::fs::create_dir_all(folder)?;
    let unique = format!("{key}.{}.{}", std::process::id(), WRITES.fetch_add(1, Ordering::Relaxed));
    let draft = folder.join(unique);
    let written = std::fs::File::create(&draft).and_then(|mut file| {
        file.write_all(&Sha256::digest(code))?;
        file.write_all(code)
    });
    written.and_then(|()| std::fs::rename(&draft, folder.join(key))).inspect_err(|_| {
        let _ = std::fs::remove_file(&draft);
    })
}

/// Name of the entry for `source`, the headers it may include, and the options, which name the architecture.
pub(super) fn key(source: &Source, options: &[String]) -> String {
    let texts = std::iter::once(source).chain(&HEADERS).flat_map(|source| [source.name, source.text]);
    let mut hasher = Sha256::new();
    for part in texts.chain(options.iter().map(String::as_str)) {
        hasher.update((part.len() as u64).to_le_bytes());
        hasher.update(part);
    }
    let hash: String = hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{hash}.cubin")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let names = std::fs::read_dir(folder).expect("the folder").flatten().map(|entry| entry.file_name());
        names.map(|name| name.into_string().expect("an ASCII name")).collect()
    }

    #[test]
    fn an_entry_comes_back_and_leaves_no_draft() {
        let folder = tempfile::tempdir().expect("a folder");
        let cache = Cache { folder: Some(folder.path().join("new")) };
        assert_eq!(cache.get("k.cubin"), None);
        cache.put("k.cubin", b"code");
        assert_eq!(cache.get("k.cubin"), Some(b"code".to_vec()));
        assert_eq!(files(&folder.path().join("new")), ["k.cubin"]);
    }

    #[test]
    fn a_damaged_entry_is_a_miss_and_is_replaced() {
        let folder = tempfile::tempdir().expect("a folder");
        let (cache, path) = (Cache { folder: Some(folder.path().to_owned()) }, folder.path().join("k.cubin"));
        cache.put("k.cubin", b"code");
        let whole = std::fs::read(&path).expect("the entry");
        let mut flipped = whole.clone();
        *flipped.last_mut().expect("a byte") ^= 1;
        for broken in [&whole[..whole.len() - 1], &whole[..10], &[], &flipped] {
            std::fs::write(&path, broken).expect("a write");
            assert_eq!(cache.get("k.cubin"), None, "{} of {} bytes", broken.len(), whole.len());
        }
        cache.put("k.cubin", b"code");
        assert_eq!(cache.get("k.cubin"), Some(b"code".to_vec()));
    }

    #[test]
    fn without_a_folder_nothing_is_kept_and_nothing_fails() {
        let blocked = tempfile::NamedTempFile::new().expect("a file");
        for folder in [None, Some(blocked.path().join("below-a-file"))] {
            let cache = Cache { folder };
            cache.put("k.cubin", b"code");
            assert_eq!(cache.get("k.cubin"), None);
        }
    }

    #[test]
    fn the_key_tells_source_name_and_options_apart() {
        let key_of = |name, text, options: &[&str]| {
            key(&Source { name, text }, &options.iter().map(|option| option.to_string()).collect::<Vec<_>>())
        };
        let keys = [
            key_of("a.cu", "x", &["-1"]),
            key_of("b.cu", "x", &["-1"]),
            key_of("a.cu", "y", &["-1"]),
            key_of("a.cu", "x", &["-2"]),
            key_of("a.cu", "x", &["-", "1"]),
        ];
        assert_eq!(keys.iter().collect::<std::collections::BTreeSet<_>>().len(), keys.len(), "{keys:?}");
        assert_eq!(keys[0], key_of("a.cu", "x", &["-1"]));
    }
}
