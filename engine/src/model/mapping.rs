//! Read-only memory maps of weight files: the engine's only `unsafe` code outside the plugin loader.
//!
//! Neighbours: `checkpoint` parses what is mapped, and `Weight`s point into it for as long as a model lives. Reading
//! into memory instead would double the start-up time of a large model and forbid sharing it between processes.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use memmap2::{Advice, Mmap, UncheckedAdvice};

/// Maps the whole file and asks the system to read ahead.
#[allow(unsafe_code)]
pub(super) fn map(path: &Path) -> io::Result<Arc<Mmap>> {
    let file = File::open(path)?;
    // SAFETY: the map is read-only and private, and plain bytes admit every pattern, so what remains to rely on is that
    // nobody truncates or rewrites the file while the model is loaded. That cannot be enforced; it is what every engine
    // that maps weights asks of its users, and the ARCHITECTURE names it.
    let mapping = unsafe { Mmap::map(&file) }?;
    // Only a hint: where it is refused, pages come in on first use.
    let _ = mapping.advise(Advice::WillNeed);
    Ok(Arc::new(mapping))
}

/// Gives the memory of bytes that were converted back to the system, which would read them from the file again.
#[allow(unsafe_code)]
pub(super) fn forget(mapping: &Mmap, range: Range<usize>) {
    // SAFETY: the mapping is of a file, private and never written, so its pages can be dropped and come back the same.
    // A hint like the other: where it is refused, the pages stay until the mapping goes.
    #[cfg(unix)]
    let _ = unsafe { mapping.unchecked_advise_range(UncheckedAdvice::DontNeed, range.start, range.len()) };
}
