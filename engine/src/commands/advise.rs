//! `bench --advise`: does speculation pay here, with this proposer, and how far?
//!
//! Two tables. What was measured: the config beside itself without proposers, on the same prompts, for several batches.
//! And what the costs say: for each batch and each chance that a guess is right, the draft length that would pay most. The
//! costs are those that the scheduler is told of, so where it says `none`, `cost-aware` does not draft.

use std::path::Path;
use std::process::ExitCode;

use foretoken::config::{self, Sampling};
use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;

use super::UsageError;
use super::contest::{Contender, Score};
use super::prompts::Line;
use crate::cli::BenchArgs;

/// Prompts, and how many of their first tokens are read.
const PROMPTS: &str = include_str!("../../../examples/prompts/python.jsonl");
const PROMPT_TOKENS: usize = 64;
/// New tokens of a prompt.
const NEW_TOKENS: usize = 48;
/// Chances that a guess is right, if those before it were.
const RIGHT: [f64; 5] = [0.3, 0.5, 0.7, 0.8, 0.9];
/// The longest draft that is thought about.
const LONGEST: u32 = 16;

#[derive(Serialize)]
struct Advice {
    /// Milliseconds of a pass, by rows.
    pass_ms: Vec<(u32, f64)>,
    measured: Vec<Measured>,
    predicted: Vec<Predicted>,
}

/// The config against plain decoding.
#[derive(Serialize)]
struct Measured {
    batch: usize,
    tokens_per_pass: f64,
    drafted_per_pass: f64,
    /// Chance that a guess is right, if those before it were; none without drafts.
    right: Option<f64>,
    /// Of drafting, in each step.
    draft_ms: f64,
    predicted_speedup: f64,
    speedup: f64,
}

/// The best draft length.
#[derive(Serialize)]
struct Predicted {
    batch: usize,
    right: f64,
    num_speculative_tokens: u32,
    speedup: f64,
}

pub fn advise(path: &Path, args: &BenchArgs) -> anyhow::Result<ExitCode> {
    let config = config::load(path, &args.set)?;
    if config.proposers.is_empty() {
        let what = format!(
            "{}: no proposer, so there is nothing to advise on\n  fix: a config with a [proposer] table",
            path.display()
        );
        return Err(UsageError(what).into());
    }
    if args.batch.contains(&0) {
        return Err(UsageError("--batch 0: expected at least 1".to_owned()).into());
    }
    let mut plain = config.clone();
    plain.proposers.clear();
    let mut pair = [Contender::new("plain".to_owned(), plain)?, Contender::new("own".to_owned(), config)?];
    let costs = Costs::new(pair[1].engine.step_costs());
    let bar = ProgressBar::with_draw_target(Some(args.batch.len() as u64), ProgressDrawTarget::stderr());
    let mut measured = Vec::new();
    for &batch in &args.batch {
        measured.push(measure(&mut pair, &costs, batch)?);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let cells = args.batch.iter().flat_map(|batch| RIGHT.map(|right| (*batch, right)));
    let predicted = cells.map(|(batch, right)| costs.best(batch, right, node_ms(&measured, batch))).collect();
    let advice = Advice { pass_ms: costs.0, measured, predicted };
    if args.json {
        println!("{}", serde_json::to_string(&advice)?);
    } else {
        print(&advice);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs `batch` prompts through both, plain decoding first and last.
fn measure(pair: &mut [Contender; 2], costs: &Costs, batch: usize) -> anyhow::Result<Measured> {
    let texts: Vec<String> = PROMPTS
        .lines()
        .filter_map(|line| Some(serde_json::from_str::<serde_json::Value>(line).ok()?["prompt"].as_str()?.to_owned()))
        .collect();
    let category = Some(format!("batch {batch}"));
    for turn in [0, 1, 1, 0] {
        let contender = &mut pair[turn];
        let sampling =
            Sampling { max_tokens: NEW_TOKENS, n: 1, ignore_eos: true, ..contender.engine.config().sampling.clone() };
        let requests = texts.iter().cycle().take(batch).map(|text| {
            let mut request = Line::text(text).request(&contender.engine, &sampling, false)?;
            request.prompt.truncate(PROMPT_TOKENS);
            Ok(request)
        });
        let requests = requests.collect::<anyhow::Result<Vec<_>>>()?;
        contender.run(requests, category.clone())?;
    }
    let [plain, own] = pair;
    let Score { tokens_per_step, steps, drafted, draft_ms, speed, .. } = own.score(plain, category.as_deref());
    // Sequences share steps.
    let shared_steps = (steps as f64 / batch as f64).max(1.0);
    let (each, draft_ms) = (drafted as f64 / steps.max(1) as f64, draft_ms / shared_steps);
    let rows = batch as f64;
    Ok(Measured {
        batch,
        tokens_per_pass: tokens_per_step,
        drafted_per_pass: each,
        right: (drafted > 0).then(|| right(tokens_per_step, each)),
        draft_ms,
        predicted_speedup: tokens_per_step * costs.pass(rows) / (costs.pass(rows * (1.0 + each)) + draft_ms),
        speedup: speed,
    })
}

/// Tokens of a step with a chain of `length` guesses that are right by chance.
fn tokens(right: f64, length: f64) -> f64 {
    (1.0 - right.powf(length + 1.0)) / (1.0 - right)
}

/// The chance with which chains of `length` give so many tokens.
fn right(tokens_per_step: f64, length: f64) -> f64 {
    let (mut low, mut high) = (0.0, 0.999);
    for _ in 0..40 {
        let middle = f64::midpoint(low, high);
        if tokens(middle, length) < tokens_per_step { low = middle } else { high = middle }
    }
    low
}

/// Milliseconds that a step takes longer for each guess of every sequence: as measured with this batch, or in proportion
/// to the nearest one that drafted.
fn node_ms(measured: &[Measured], batch: usize) -> f64 {
    let drafting = measured.iter().filter(|measured| measured.drafted_per_pass > 0.0);
    let nearest = drafting.min_by_key(|measured| measured.batch.abs_diff(batch));
    nearest.map_or(0.0, |nearest| {
        let times = (batch as f64 / nearest.batch as f64).max(1.0);
        nearest.draft_ms / nearest.drafted_per_pass * times
    })
}

/// Milliseconds of passes, by rows: of two sizes at least, since an engine with slots for less has refused the first prompt.
struct Costs(Vec<(u32, f64)>);

impl Costs {
    fn new(costs: &[(u32, u64)]) -> Self {
        Self(costs.iter().map(|(rows, nanoseconds)| (*rows, *nanoseconds as f64 / 1e6)).collect())
    }

    /// On lines between what was timed, and on beyond it.
    fn pass(&self, rows: f64) -> f64 {
        let behind = self.0.partition_point(|(timed, _)| f64::from(*timed) < rows).clamp(1, self.0.len() - 1);
        let ((low, before), (high, after)) = (self.0[behind - 1], self.0[behind]);
        let share = (rows - f64::from(low)) / f64::from(high - low);
        before + share * (after - before).max(0.0)
    }

    /// The draft length that makes tokens come fastest.
    fn best(&self, batch: usize, right: f64, node_ms: f64) -> Predicted {
        let speedup = |length: u32| {
            let (rows, length) = (batch as f64, f64::from(length));
            let took = self.pass(rows * (1.0 + length)) + length * node_ms;
            tokens(right, length) * self.pass(rows) / took
        };
        let best = (0..=LONGEST).max_by(|a, b| speedup(*a).total_cmp(&speedup(*b))).unwrap_or(0);
        Predicted { batch, right, num_speculative_tokens: best, speedup: speedup(best) }
    }
}

fn print(advice: &Advice) {
    let passes: Vec<String> = advice.pass_ms.iter().map(|(rows, time)| format!("{rows} {time:.2} ms")).collect();
    println!("A pass by rows: {}\n", passes.join(", "));
    println!("Measured with this config, against the same without proposers:\n");
    println!("batch  tokens/pass  drafted/pass  right  draft ms  predicted  measured");
    for Measured { batch, tokens_per_pass, drafted_per_pass, right, draft_ms, predicted_speedup, speedup } in
        &advice.measured
    {
        let right = right.map_or("-".to_owned(), |right| format!("{:.0} %", 100.0 * right));
        println!(
            "{batch:>5} {tokens_per_pass:>12.2} {drafted_per_pass:>13.2} {right:>6} {draft_ms:>9.3} {predicted_speedup:>9.2}x {speedup:>8.2}x"
        );
    }
    println!("\nWhat drafts of the best length would give, by batch and by how often a guess is right:\n");
    print!("batch");
    RIGHT.iter().for_each(|right| print!("{:>15}", format!("{:.0} %", 100.0 * right)));
    for (number, Predicted { batch, num_speculative_tokens, speedup, .. }) in advice.predicted.iter().enumerate() {
        if number % RIGHT.len() == 0 {
            print!("\n{batch:>5}");
        }
        let cell = match num_speculative_tokens {
            0 => "none".to_owned(),
            length => format!("{speedup:.2}x of {length}"),
        };
        print!("{cell:>15}");
    }
    println!("\n\n`1.80x of 4`: drafts of 4 tokens make decoding 1.8 times as fast; `none`: no draft pays.");
}
