//! What a pass costs by its rows, measured when the engine starts and told to the scheduler.
//!
//! The scheduler hears of each size as of a step that no sequence had a part in, so a policy that weighs costs knows them
//! before the first request; real steps correct them from then on. The figures are kept in the user's cache folder under
//! all that decides them, so that a model is measured once on a machine. The cache saves time and nothing else: no failure
//! here is an error.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use foretoken_plugin_api::{ForwardSequence, LogitRows, Slot, StepReport};
use sha2::{Digest, Sha256};

use crate::engine::{Core, Target};
use crate::model::ForwardOut;

/// Rows of the passes that are timed: up to what many sequences with drafts have, since the cost of a row changes on the way.
const ROWS: [u32; 8] = [1, 2, 4, 8, 16, 32, 64, 128];
/// Tokens in front of them.
const CONTEXT: usize = 128;
/// Passes of each size, at least and at most, of which the fastest counts. They take turns, so that a disturbance hits all,
/// and two of a size follow each other: a small model's weights are not in the caches after a pass of many rows.
const PASSES: (u32, u32) = (4, 32);
/// Time after which no more than the least are made.
const ENOUGH: Duration = Duration::from_millis(400);
/// What took less is not worth a file.
const KEPT: Duration = Duration::from_millis(20);

/// Rows of a pass and its nanoseconds.
pub(crate) type Costs = Vec<(u32, u64)>;

/// Tells the scheduler what passes cost, and returns it. Without proposers there is nothing to weigh.
pub(crate) fn tell(core: &mut Core) -> Costs {
    if core.proposers.is_empty() {
        return Vec::new();
    }
    let entry = cache_entry(core);
    let costs = entry.as_ref().and_then(read).unwrap_or_else(|| {
        let start = Instant::now();
        let costs = measure(core);
        if let Some(entry) = entry.as_ref().filter(|_| start.elapsed() >= KEPT) {
            write(entry, &costs);
        }
        costs
    });
    for &(rows, took) in &costs {
        if let Err(error) = core.scheduler.observe(StepReport::new(&[], rows, 0, took)) {
            tracing::error!("scheduler `{}`: observe: {error}", core.config.scheduler.name);
        }
    }
    costs
}

/// Times passes on slots that nobody holds yet.
fn measure(core: &mut Core) -> Costs {
    let (vocab, most) = {
        let architecture = core.target.decoder.architecture();
        (architecture.vocab_size, architecture.max_positions.min(core.num_slots))
    };
    let mut logits = Vec::new();
    let mut time = |rows: u32| {
        let rows = rows as usize;
        let slots: Vec<Slot> = (0..(CONTEXT + rows).min(most) as u32).map(Slot).collect();
        let (context, own) = slots.split_at(slots.len() - rows);
        logits.resize(rows * vocab, 0.0);
        let tokens = vec![0; rows];
        let start = Instant::now();
        let sequence = ForwardSequence::chain(&tokens, context, own, LogitRows::All);
        let Target { decoder, kv, rows } = &mut core.target;
        let out = ForwardOut { logits: &mut logits, hidden: &mut () };
        rows.forward(decoder, &[sequence], &mut kv.view_mut(), out);
        start.elapsed().as_nanos() as u64
    };
    time(1);
    let sizes = ROWS.into_iter().filter(|rows| (*rows as usize) < most);
    let mut costs: Costs = sizes.map(|rows| (rows, u64::MAX)).collect();
    let start = Instant::now();
    for _ in (0..PASSES.1).step_by(2).take_while(|done| *done < PASSES.0 || start.elapsed() < ENOUGH) {
        costs.iter_mut().for_each(|(rows, least)| *least = time(*rows).min(time(*rows)).min(*least));
    }
    costs
}

/// The file for this model on this machine: `foretoken/step-costs` in `$XDG_CACHE_HOME` or `~/.cache`.
fn cache_entry(core: &Core) -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let home = variable("XDG_CACHE_HOME").or_else(|| Some(variable("HOME")?.join(".cache")))?;
    let model = std::fs::canonicalize(&core.config.model).ok()?;
    let changed = std::fs::metadata(&model).and_then(|data| data.modified()).ok()?;
    let processors = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = processors.lines().find(|line| line.starts_with("model name"));
    let exec = core.target.decoder.exec();
    let (dtype, kv_dtype, threads) = (core.config.dtype, core.config.kv_dtype, exec.pool().threads());
    // Kernels change with the program.
    let program = std::env::current_exe().and_then(std::fs::metadata).and_then(|data| data.modified()).ok()?;
    let what = (program, model, changed, dtype, kv_dtype, core.num_slots, threads, exec.simd(), processor, ROWS);
    let name: String = Sha256::digest(format!("{what:?}")).iter().map(|byte| format!("{byte:02x}")).collect();
    Some(home.join("foretoken/step-costs").join(name + ".json"))
}

fn read(entry: &PathBuf) -> Option<Costs> {
    let costs: Costs = serde_json::from_str(&std::fs::read_to_string(entry).ok()?).ok()?;
    (!costs.is_empty() && costs.iter().all(|(rows, took)| *rows > 0 && *took > 0)).then_some(costs)
}

/// In one move, so that a reader sees a whole entry or none.
fn write(entry: &PathBuf, costs: &Costs) {
    let draft = entry.with_extension(std::process::id().to_string());
    let folder = entry.parent().map(std::fs::create_dir_all);
    let text = serde_json::to_string(costs).unwrap_or_default();
    let written = folder.transpose().and_then(|_| std::fs::write(&draft, text));
    if written.and_then(|()| std::fs::rename(&draft, entry)).is_err() {
        let _ = std::fs::remove_file(&draft);
    }
}
