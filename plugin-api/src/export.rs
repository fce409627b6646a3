//! The one line that makes a crate a plugin.

/// Exports parts from a `cdylib` crate, a line each:
///
/// ```ignore
/// export_plugin! {
///     proposer "ngram" => Ngram, "prompt lookup: what followed the same words before";
/// }
/// ```
///
/// It generates the library's one C symbol and the adapters that catch panics in this library. The crate must be built
/// with `panic = "unwind"`, or it does not compile.
#[macro_export]
macro_rules! export_plugin {
    ($($kind:ident $name:literal => $part:ty $(, $about:literal)?);+ $(;)?) => {
        #[cfg(not(panic = "unwind"))]
        compile_error!("a foretoken plugin needs panic = \"unwind\": its panics are caught and contained");

        #[doc(hidden)]
        mod foretoken_export {
            use super::*;

            fn module() -> $crate::abi::module::PluginModuleRef {
                let version = env!("CARGO_PKG_VERSION");
                $crate::abi::module::PluginModule::leak(vec![$($crate::abi::module::PartEntry::$kind::<$part>($crate::abi::module::PartName {
                    name: $name,
                    version,
                    about: concat!($($about)?),
                })),+])
            }

            extern "C" fn construct() -> $crate::abi::header::RootModuleResult {
                $crate::abi::header::construct(module)
            }

            static ROOT: $crate::abi::header::LibHeader = $crate::abi::header::lib_header(construct);

            const PARTS: &str = concat!($(stringify!($kind), " ", $name, ","),+, "\0");

            #[unsafe(no_mangle)]
            #[used]
            static FORETOKEN_PLUGIN: $crate::abi::header::PluginHeader =
                $crate::abi::header::PluginHeader::new(PARTS, $crate::RUSTC, &ROOT);
        }
    };
}
