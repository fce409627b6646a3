//! The one plain C symbol of a plugin library, read before anything of abi_stable is believed.
//!
//! A library of another API level, another panic strategy, or no plugin at all is told apart by fixed bytes at a fixed
//! place, so its refusal can say what was found. abi_stable's own header hangs behind it.

use std::ffi::CStr;

use abi_stable::library::CheckTypeLayout;
pub use abi_stable::library::{LibHeader, RootModuleResult};

use super::module::PluginModuleRef;

/// The API level of this crate: a plugin built for a level loads in every engine of that level.
pub const API_LEVEL: u32 = 1;

/// The name of the symbol.
pub const SYMBOL: &str = "FORETOKEN_PLUGIN";

/// The first bytes behind the symbol.
pub const MAGIC: [u8; 16] = *b"foretoken-plugin";

/// The bytes behind the symbol. Frozen for all levels up to and including `root`.
#[repr(C)]
pub struct PluginHeader {
    magic: [u8; 16],
    api_level: u32,
    unwinds: u32,
    parts: *const std::ffi::c_char,
    rustc: *const std::ffi::c_char,
    root: *const LibHeader,
}

// SAFETY: the header is read-only and points to statics.
unsafe impl Sync for PluginHeader {}

impl PluginHeader {
    /// A header for `export_plugin!`. `parts` lists `kind name` pairs separated by commas.
    pub const fn new(parts: &'static str, rustc: &'static str, root: &'static LibHeader) -> Self {
        assert!(ends_with_nul(parts) && ends_with_nul(rustc));
        Self {
            magic: MAGIC,
            api_level: API_LEVEL,
            unwinds: cfg!(panic = "unwind") as u32,
            parts: parts.as_ptr().cast(),
            rustc: rustc.as_ptr().cast(),
            root,
        }
    }
}

const fn ends_with_nul(text: &str) -> bool {
    matches!(text.as_bytes(), [.., 0])
}

/// What a header says, before the layout is checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HeaderFacts {
    /// The API level it was built for.
    pub api_level: u32,
    /// Whether its panics unwind (they must, to be contained).
    pub unwinds: bool,
    /// Its parts as `kind name`, comma-separated; empty for a library of another level.
    pub parts: String,
    /// The compiler that built it.
    pub rustc: String,
}

/// Why a header cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum HeaderError {
    /// The symbol is there, its bytes are not ours.
    #[error("its symbol {SYMBOL} does not start with the bytes \"foretoken-plugin\"")]
    NotAPlugin,
    /// abi_stable refuses the header or the layout.
    #[error("its interface does not match this engine's: {0}")]
    Layout(String),
}

/// Reads the header behind the symbol.
///
/// # Errors
/// [`HeaderError::NotAPlugin`].
///
/// # Safety
/// `symbol` is the address of the symbol [`SYMBOL`] in a library that stays loaded.
pub unsafe fn read(symbol: *const PluginHeader) -> Result<HeaderFacts, HeaderError> {
    // SAFETY: only the magic is read until it is known.
    let magic = unsafe { std::ptr::addr_of!((*symbol).magic).read_unaligned() };
    if magic != MAGIC {
        return Err(HeaderError::NotAPlugin);
    }
    // SAFETY: the magic says that the rest is there, in this layout at every level.
    let header = unsafe { &*symbol };
    let text = |pointer: *const std::ffi::c_char| {
        // SAFETY: the macro stores pointers to static C strings.
        unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
    };
    Ok(HeaderFacts {
        api_level: header.api_level,
        unwinds: header.unwinds != 0,
        parts: text(header.parts),
        rustc: text(header.rustc),
    })
}

/// Checks abi_stable's header and the layout of everything that crosses, and returns the library's parts.
///
/// # Errors
/// [`HeaderError::Layout`] with abi_stable's account of the difference.
///
/// # Safety
/// As [`read`], which has been called and found this [`API_LEVEL`].
pub unsafe fn check(symbol: *const PluginHeader) -> Result<PluginModuleRef, HeaderError> {
    // SAFETY: `AbiHeaderRef` is a transparent reference to the start of the header, valid at every abi_stable version.
    let header = unsafe { &*std::ptr::from_ref(&(*symbol).root).cast::<abi_stable::library::AbiHeaderRef>() };
    let layout = |error: abi_stable::library::LibraryError| HeaderError::Layout(error.to_string());
    header.upgrade().map_err(layout)?.check_layout::<PluginModuleRef>().map_err(layout)
}

/// Used by `export_plugin!`: abi_stable's header for a module constructor.
pub const fn lib_header(constructor: extern "C" fn() -> RootModuleResult) -> LibHeader {
    // SAFETY: `construct` below returns a `PluginModuleRef`, erased.
    unsafe { LibHeader::from_constructor::<PluginModuleRef>(constructor, CheckTypeLayout::Yes) }
}

/// Used by `export_plugin!`: calls the module's constructor, catching its panics.
pub fn construct(module: fn() -> PluginModuleRef) -> RootModuleResult {
    abi_stable::library::__call_root_module_loader(module)
}
