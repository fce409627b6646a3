//! Whether an ELF file holds all the bytes its program headers promise.
//!
//! The system's loader maps a cut-off library without a word and the process dies at the first missing page; a copy that
//! broke off must be an error that names the file instead. Files of other formats pass: their loaders check.

/// What is wrong with `bytes` as a library, if they are ELF and cut off.
pub fn truncated(bytes: &[u8]) -> Option<String> {
    // 64-bit little-endian ELF, the only one this program is built for.
    if bytes.get(..6)? != b"\x7fELF\x02\x01" {
        return None;
    }
    let header = |offset: u64, len: usize| bytes.get(usize::try_from(offset).ok()?..)?.get(..len);
    let number = |bytes: &[u8]| bytes.iter().rev().fold(0_u64, |number, byte| number << 8 | u64::from(*byte));
    let short = || Some(format!("it is cut off: its headers lie beyond its end at {} bytes", bytes.len()));
    let (Some(table), Some(entry), Some(count)) = (header(32, 8), header(54, 2), header(56, 2)) else { return short() };
    let (table, entry, count) = (number(table), number(entry), number(count));
    for index in 0..count {
        let start = table.saturating_add(index * entry);
        let (Some(offset), Some(size)) = (header(start.saturating_add(8), 8), header(start.saturating_add(32), 8))
        else {
            return short();
        };
        let end = number(offset).saturating_add(number(size));
        if end > bytes.len() as u64 {
            return Some(format!("it is cut off: a segment ends at byte {end}, the file at {}", bytes.len()));
        }
    }
    None
}
