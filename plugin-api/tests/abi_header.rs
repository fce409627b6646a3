//! What `export_plugin!` generates, read as the engine's loader reads it: header, level, parts, layout.
//!
//! This test links the export into itself instead of loading a library, so the header under test is the macro's own.

mod parts;

use foretoken_plugin_api::abi::header::{self, API_LEVEL, HeaderError, PluginHeader};
use foretoken_plugin_api::{Kind, RUSTC, export_plugin};
use parts::kv::Stack;
use parts::proposer::Drafter;
use parts::sampler::{Rejecting, Sampled};
use parts::scheduler::Fcfs;

export_plugin! {
    proposer "drafter" => Drafter, "drafts with the toy";
    sampler "sampled" => Sampled;
    sampler "rejecting" => Rejecting, "rejection sampling";
    scheduler "fcfs" => Fcfs;
    kv "stack" => Stack;
}

// The header ends in a pointer to abi_stable's own, which the lint looks behind.
#[allow(improper_ctypes)]
unsafe extern "C" {
    static FORETOKEN_PLUGIN: PluginHeader;
}

fn exported() -> *const PluginHeader {
    &raw const FORETOKEN_PLUGIN
}

/// The header's bytes, with the first of them replaced: what a foreign symbol, or one of another level, looks like.
fn altered(offset: usize, bytes: &[u8]) -> Vec<u64> {
    let words = size_of::<PluginHeader>() / 8;
    // SAFETY: the header is plain data, a whole number of words long and aligned like one.
    let mut copy = unsafe { std::slice::from_raw_parts(exported().cast::<u64>(), words) }.to_vec();
    let mut raw: Vec<u8> = copy.iter().flat_map(|word| word.to_ne_bytes()).collect();
    raw[offset..offset + bytes.len()].copy_from_slice(bytes);
    copy.iter_mut().zip(raw.as_chunks().0).for_each(|(word, raw)| *word = u64::from_ne_bytes(*raw));
    copy
}

const LEVEL_OFFSET: usize = 16;

#[test]
fn the_header_says_what_the_library_is() {
    // SAFETY: the symbol of this very binary.
    let facts = unsafe { header::read(exported()) }.unwrap();
    assert_eq!((facts.api_level, facts.unwinds), (API_LEVEL, true));
    assert_eq!(facts.parts, "proposer drafter,sampler sampled,sampler rejecting,scheduler fcfs,kv stack,");
    assert_eq!(facts.rustc, RUSTC.trim_end_matches('\0'));
}

#[test]
fn other_bytes_are_not_a_plugin() {
    let foreign = altered(0, b"some-other-thing");
    // SAFETY: `foreign` is as long and as aligned as a header, and only its magic is read.
    let error = unsafe { header::read(foreign.as_ptr().cast()) }.unwrap_err();
    assert!(matches!(error, HeaderError::NotAPlugin), "{error}");
    assert!(error.to_string().contains("foretoken-plugin"), "{error}");
}

#[test]
fn another_level_is_visible_before_anything_is_called() {
    let later = altered(LEVEL_OFFSET, &(API_LEVEL + 1).to_ne_bytes());
    // SAFETY: a copy of the real header but for its level.
    let facts = unsafe { header::read(later.as_ptr().cast()) }.unwrap();
    assert_eq!(facts.api_level, API_LEVEL + 1);
}

#[test]
fn the_layout_check_passes_and_lists_the_parts() {
    // SAFETY: the symbol of this very binary, which `read` accepts.
    let module = unsafe { header::check(exported()) }.unwrap();
    let parts: Vec<_> = module.list().collect();
    let listed: Vec<_> = parts.iter().map(|part| (part.kind().unwrap(), part.name(), part.about())).collect();
    let expected = [
        (Kind::Proposer, "drafter", "drafts with the toy"),
        (Kind::Sampler, "sampled", ""),
        (Kind::Sampler, "rejecting", "rejection sampling"),
        (Kind::Scheduler, "fcfs", ""),
        (Kind::Kv, "stack", ""),
    ];
    assert_eq!(listed, expected);
    for part in &parts {
        assert_eq!(part.version(), env!("CARGO_PKG_VERSION"));
        assert!(part.schema().contains("What to get wrong"), "{}", part.schema());
        let makes =
            [part.proposer().is_some(), part.sampler().is_some(), part.scheduler().is_some(), part.kv().is_some()];
        assert_eq!(makes.into_iter().filter(|&makes| makes).count(), 1, "{}", part.name());
    }
}

#[test]
fn checking_twice_gives_the_same_parts() {
    // SAFETY: as above.
    let names = || unsafe { header::check(exported()) }.unwrap().list().map(|part| part.name()).collect::<Vec<_>>();
    assert_eq!(names(), names());
}
