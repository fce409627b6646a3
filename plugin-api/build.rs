//! Records the compiler's version: the loader shows it when a plugin and the engine do not fit.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    let rustc = std::env::var("RUSTC").unwrap_or_else(|_| "rustc".to_owned());
    let version = Command::new(rustc).arg("--version").output().ok().and_then(|out| String::from_utf8(out.stdout).ok());
    println!("cargo::rustc-env=FORETOKEN_RUSTC={}", version.as_deref().map_or("unknown", str::trim));
}
