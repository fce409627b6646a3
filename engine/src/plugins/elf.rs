//! Whether an ELF file holds all the bytes its program headers promise.
//!
//! The system's loader maps a cut-off library without a word and the process dies at the first missing page; a copy that
//! broke off must be an error that names the file instead. Files of other formats pass: their loaders check.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

/// Bytes of the header of a 64-bit ELF file, and of one that says where a segment lies.
const HEADER: u64 = 64;
const SEGMENT: usize = 56;

/// What is wrong with `file` as a library, if it is ELF and cut off.
///
/// # Errors
/// If it cannot be read.
pub fn truncated(mut file: File) -> io::Result<Option<String>> {
    let len = file.metadata()?.len();
    let header = read(&mut file, 0, HEADER)?;
    // 64-bit little-endian ELF, the only one this program is built for.
    if !header.starts_with(b"\x7fELF\x02\x01") {
        return Ok(None);
    }
    let short = || Some(format!("it is cut off: its headers lie beyond its end at {len} bytes"));
    if (header.len() as u64) < HEADER {
        return Ok(short());
    }
    let (table, entry, count) = (number(&header[32..40]), number(&header[54..56]), number(&header[56..58]));
    let segments = read(&mut file, table, entry * count)?;
    if entry < SEGMENT as u64 || (segments.len() as u64) < entry * count {
        return Ok(short());
    }
    let ends = segments.chunks_exact(entry as usize).map(|segment| {
        let (offset, size) = (number(&segment[8..16]), number(&segment[32..40]));
        offset.saturating_add(size)
    });
    let end = ends.max().unwrap_or(0);
    Ok((end > len).then(|| format!("it is cut off: a segment ends at byte {end}, the file at {len}")))
}

/// Up to `len` bytes from `start` on, fewer at the end of the file.
fn read(file: &mut File, start: u64, len: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(start))?;
    file.take(len).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// A little-endian number.
fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}
