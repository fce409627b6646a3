//! Which files of a folder hold its weights.

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::checkpoint::CheckpointError;

pub(super) const SINGLE: &str = "model.safetensors";
pub(super) const INDEX: &str = "model.safetensors.index.json";
/// What heads are published as where there are no safetensors.
const PICKLED: [&str; 2] = ["pytorch_model.bin", "medusa_lm_head.pt"];

/// The weight files of a folder, each existing.
pub(super) fn files_of(folder: &Path) -> Result<Vec<PathBuf>, CheckpointError> {
    let single = folder.join(SINGLE);
    if single.exists() {
        return Ok(vec![single]);
    }
    let index = folder.join(INDEX);
    let text = match std::fs::read_to_string(&index) {
        Ok(text) => text,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let pickled: Vec<PathBuf> =
                PICKLED.iter().map(|name| folder.join(name)).filter(|path| path.exists()).collect();
            if !pickled.is_empty() {
                return Ok(pickled);
            }
            return Err(CheckpointError::NoWeights { folder: folder.to_owned(), found: listing(folder) });
        }
        Err(source) => return Err(CheckpointError::Unreadable { path: index, source }),
    };
    let bad = |reason: String| CheckpointError::BadIndex { path: index.clone(), reason };
    let json: Value = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
    let map = json["weight_map"].as_object().ok_or_else(|| bad("it has no `weight_map`".into()))?;
    let mut names: Vec<&str> = map.values().filter_map(Value::as_str).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return Err(bad("its `weight_map` names no file".into()));
    }
    let shards: Vec<PathBuf> = names.into_iter().map(|name| folder.join(name)).collect();
    match shards.iter().find(|shard| !shard.exists()) {
        Some(shard) => Err(CheckpointError::MissingShard { index, shard: shard.clone() }),
        None => Ok(shards),
    }
}

/// What a folder without weights does hold, for the message.
fn listing(folder: &Path) -> String {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    if names.is_empty() { "nothing at all".into() } else { names.join(", ") }
}
