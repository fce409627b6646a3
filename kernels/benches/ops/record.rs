//! Keeps the results of a run: one table a machine, with its ceilings and the commit.
//!
//! `FORETOKEN_RECORD=NAME cargo bench -p foretoken-kernels --bench ops` writes `benches/results/NAME.md` from what
//! criterion left in its folder.

use crate::machine::Ceilings;
use foretoken_kernels::WeightDtype;
use serde_json::Value;
use std::fmt::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::SystemTime;

/// Writes the table, if the environment asks for one.
pub fn record(ceilings: &Ceilings, started: SystemTime) {
    let Ok(name) = std::env::var("FORETOKEN_RECORD") else { return };
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let path = package.join("benches/results").join(format!("{name}.md"));
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| package.join("../target"), PathBuf::from);
    let mut cells = Vec::new();
    collect(&target.join("criterion"), started, &mut cells);
    cells.sort_by(|a, b| a.order.cmp(&b.order));
    let mut text = header(&name, ceilings);
    for cell in cells {
        let _ = writeln!(text, "{}", cell.line(ceilings));
    }
    std::fs::write(&path, text).expect("benches/results can be written");
    println!("wrote {}", path.display());
}

fn header(name: &str, ceilings: &Ceilings) -> String {
    let cpuinfo = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let field = |field: &str| {
        let line = cpuinfo.lines().find(|line| line.starts_with(field));
        line.and_then(|line| line.split_once(": ")).map_or("?", |(_, value)| value).to_owned()
    };
    let commit = Command::new("git").args(["describe", "--always", "--dirty"]).output();
    let commit = commit.map_or_else(|_| "?".into(), |output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let rates: String = ceilings.rates.iter().map(|(dtype, rate)| format!(" {dtype} {:.0},", rate / 1e9)).collect();
    format!(
        "# {name}\n\n{}, family {} model {}, {} threads, {}; commit {commit}.\nReading memory {:.1} GB/s; multiply-adds in \
         registers, G/s:{}; empty region {:.2} us.\nOf the ceiling: of reading for GB/s (above 100 % where the \
         caches hold it), of multiplying for G/s.\n\n| op | case | us | rate | of the ceiling |\n|---|---|---|---|---|\n",
        field("model name"),
        field("cpu family"),
        field("model\t"),
        ceilings.exec.threads(),
        ceilings.exec.simd(),
        ceilings.read / 1e9,
        rates.trim_end_matches(','),
        ceilings.region * 1e6,
    )
}

/// One benchmark.
struct Cell {
    /// By op, then case, then the numbers in the parameter.
    order: (String, String, Vec<u64>),
    case: String,
    seconds: f64,
    bytes: Option<f64>,
    elements: Option<f64>,
}

impl Cell {
    fn read(folder: &Path) -> Option<Self> {
        let json = |file: &str| -> Option<Value> {
            serde_json::from_str(&std::fs::read_to_string(folder.join(file)).ok()?).ok()
        };
        let (benchmark, estimates) = (json("benchmark.json")?, json("estimates.json")?);
        let part = |name: &str| benchmark[name].as_str().unwrap_or_default().to_owned();
        let (op, function, value) = (part("group_id"), part("function_id"), part("value_str"));
        let numbers = value.split(|c: char| !c.is_ascii_digit()).filter_map(|part| part.parse().ok()).collect();
        Some(Self {
            case: format!("{function} {value}").trim().to_owned(),
            order: (op, function, numbers),
            seconds: estimates["median"]["point_estimate"].as_f64()? / 1e9,
            bytes: benchmark["throughput"]["Bytes"].as_f64(),
            elements: benchmark["throughput"]["Elements"].as_f64(),
        })
    }

    fn line(&self, ceilings: &Ceilings) -> String {
        // Cases that multiply begin with the dtype of the instructions they use.
        let dtype = self.case.split(' ').next().unwrap_or_default();
        let peak = |rates: &[(WeightDtype, f64)]| rates.iter().find(|(of, _)| of.to_string() == dtype).map(|(_, r)| *r);
        let of = |amount: f64, unit: &str, ceiling: Option<f64>| {
            let rate = amount / self.seconds;
            let share = ceiling.map_or_else(String::new, |ceiling| format!("{:.0} %", 100.0 * rate / ceiling));
            format!("{:.1} {unit} | {share}", rate / 1e9)
        };
        let rate = match (self.bytes, self.elements) {
            (Some(bytes), _) => of(bytes, "GB/s", Some(ceilings.read)),
            (_, Some(elements)) => of(elements, "G/s", peak(&ceilings.rates)),
            _ => " | ".to_owned(),
        };
        format!("| {} | {} | {:.2} | {rate} |", self.order.0, self.case, self.seconds * 1e6)
    }
}

/// Every benchmark below `folder` that was measured since `started`: criterion keeps those of earlier runs.
fn collect(folder: &Path, started: SystemTime, cells: &mut Vec<Cell>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.file_name().is_some_and(|name| name == "new") {
            let measured = path.join("estimates.json").metadata().and_then(|file| file.modified());
            if measured.is_ok_and(|measured| measured >= started) {
                cells.extend(Cell::read(&path));
            }
        } else if path.is_dir() {
            collect(&path, started, cells);
        }
    }
}
