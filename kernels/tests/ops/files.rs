//! Every op has all of its files: reference and CPU code, test and bench; a `.cu` comes with its launcher.
//!
//! The map of the crate is `ls`, so a stem that is missing somewhere is a hole in the map.

use std::path::Path;

#[test]
fn every_op_has_reference_cpu_test_and_bench() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut ops = 0;
    for entry in std::fs::read_dir(root.join("src/ops")).expect("src/ops").flatten().filter(|e| e.path().is_dir()) {
        let op = entry.file_name().into_string().expect("an ASCII name");
        let files = ["src/ops/{}/mod.rs", "src/ops/{}/reference.rs", "src/ops/{}/cpu.rs", "tests/ops/{}.rs"];
        for file in files.into_iter().chain(["benches/ops/{}.rs"]) {
            let path = root.join(file.replace("{}", &op));
            assert!(path.is_file(), "op `{op}` lacks {}", path.display());
        }
        let [kernel, launcher] = [format!("{op}.cu"), "cuda.rs".into()].map(|file| entry.path().join(file).is_file());
        assert_eq!(kernel, launcher, "op `{op}`: {op}.cu and cuda.rs come together");
        ops += 1;
    }
    assert!(ops >= 13, "found only {ops} ops");
}
