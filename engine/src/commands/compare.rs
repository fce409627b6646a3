//! `compare`: the same prompts through several configs, side by side.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;

use anyhow::Context;
use foretoken::config;
use foretoken::request::RequestError;
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::contest::{self, Contender, Score};
use super::prompts::{self, Line};
use super::{UsageError, run};
use crate::cli::CompareArgs;

/// `--json`, and `report.json`.
#[derive(Serialize)]
struct Report {
    prompts: usize,
    /// Prompts left out, because a config has no room for them.
    too_long: usize,
    batch: usize,
    /// Mean share of distinct 4-grams of the first config's completions.
    distinct_4grams: f64,
    configs: Vec<ConfigReport>,
}

#[derive(Serialize)]
struct ConfigReport {
    config: String,
    #[serde(flatten)]
    score: Score,
    /// Where the file says what kind of prompts they are.
    categories: BTreeMap<String, Score>,
}

pub fn compare(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    if args.batch == 0 {
        return Err(UsageError("--batch 0: expected at least 1".to_owned()).into());
    }
    let mut lines = prompts::lines(&args.prompts)?;
    lines.truncate(args.limit.unwrap_or(lines.len()));
    let mut contenders = contenders(args)?;
    let all = lines.len();
    let lines = fitting(args, &contenders, lines)?;
    let too_long = all - lines.len();
    if lines.is_empty() {
        return Err(UsageError(format!("{}: no prompt that fits the context", args.prompts.display())).into());
    }
    if too_long > 0 {
        eprintln!("{too_long} of {all} prompts are too long for the context and left out");
    }
    take_turns(args, &mut contenders, &lines)?;
    let categories: BTreeSet<&str> = lines.iter().filter_map(|line| line.category.as_deref()).collect();
    let report = Report {
        prompts: lines.len(),
        too_long,
        batch: args.batch,
        distinct_4grams: contest::distinct(&contenders[0]),
        configs: contenders.iter().map(|contender| config_report(contender, &contenders[0], &categories)).collect(),
    };
    if let Some(folder) = &args.out {
        write(folder, &report, &contenders).with_context(|| format!("cannot write to {}", folder.display()))?;
    }
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        contest::print_table(&contenders);
        print_positions(&report);
        print_categories(&report);
    }
    Ok(ExitCode::SUCCESS)
}

/// The configs' engines, each named after its file.
fn contenders(args: &CompareArgs) -> anyhow::Result<Vec<Contender>> {
    let mut contenders: Vec<Contender> = Vec::new();
    for path in &args.configs {
        let name = path.file_stem().unwrap_or(path.as_os_str()).to_string_lossy().into_owned();
        let again = contenders.iter().filter(|contender| contender.name.split('#').next() == Some(&name)).count();
        let name = if again == 0 { name } else { format!("{name}#{}", again + 1) };
        let config = config::load(path, &args.set)?;
        contenders.push(Contender::new(name, config).with_context(|| path.display().to_string())?);
    }
    Ok(contenders)
}

/// The lines that every config has room for.
fn fitting(args: &CompareArgs, contenders: &[Contender], lines: Vec<Line>) -> anyhow::Result<Vec<Line>> {
    let mut fitting = Vec::new();
    for line in lines {
        let mut fits = true;
        for contender in contenders {
            match contender.engine.check(&request(args, contender, &line)?) {
                Err(RequestError::TooLong { .. } | RequestError::NeverFits { .. }) => fits = false,
                other => other?,
            }
        }
        if fits {
            fitting.push(line);
        }
    }
    Ok(fitting)
}

fn request(args: &CompareArgs, contender: &Contender, line: &Line) -> anyhow::Result<foretoken::Request> {
    let sampling = contender.engine.config().sampling.clone().with(args.sampling.raw())?;
    line.request(&contender.engine, &sampling, args.chat)
}

fn take_turns(args: &CompareArgs, contenders: &mut [Contender], lines: &[Line]) -> anyhow::Result<()> {
    let count = contenders.len();
    let bar = if std::io::stderr().is_terminal() {
        let style = ProgressStyle::with_template("{bar:40} {pos}/{len} {msg}, {eta} left").expect("a fixed template");
        ProgressBar::new((lines.len() * count) as u64).with_style(style)
    } else {
        ProgressBar::hidden()
    };
    // Those in flight are of one category, so that their time can be counted for it.
    for lines in lines.chunk_by(|one, next| one.category == next.category) {
        let flight = |contender: &Contender| {
            let requests = lines.iter().map(|line| request(args, contender, line)).collect::<anyhow::Result<_>>()?;
            Ok(contender.flight(requests, lines[0].category.clone(), args.batch))
        };
        let mut flights = contenders.iter().map(flight).collect::<anyhow::Result<Vec<_>>>()?;
        for first in (0..count).cycle() {
            if flights.iter().all(|flight| flight.left() == 0) {
                break;
            }
            for turn in 0..count {
                let place = (first + turn) % count;
                bar.set_message(contenders[place].name.clone());
                let left = flights[place].left();
                contenders[place].turn(&mut flights[place])?;
                bar.inc((left - flights[place].left()) as u64);
            }
        }
    }
    bar.finish_and_clear();
    Ok(())
}

fn config_report(contender: &Contender, first: &Contender, categories: &BTreeSet<&str>) -> ConfigReport {
    let of = |&category: &&str| (category.to_owned(), contender.score(first, Some(category)));
    ConfigReport {
        config: contender.name.clone(),
        score: contender.score(first, None),
        categories: categories.iter().map(of).collect(),
    }
}

fn write(folder: &Path, report: &Report, contenders: &[Contender]) -> anyhow::Result<()> {
    fs::create_dir_all(folder)?;
    fs::write(folder.join("report.json"), serde_json::to_string_pretty(report)? + "\n")?;
    for contender in contenders {
        let mut lines = String::new();
        for (number, completion) in contender.completions().enumerate() {
            lines += &serde_json::to_string(&run::Line::new(number, completion, None))?;
            lines.push('\n');
        }
        fs::write(folder.join(format!("{}.jsonl", contender.name)), lines)?;
    }
    Ok(())
}

/// What share of the passes kept a node at each position.
fn print_positions(report: &Report) {
    let drafting = || report.configs.iter().filter(|config| config.score.drafted > 0);
    if drafting().next().is_none() {
        return;
    }
    println!("\nPasses that kept a guess at position 1, 2, ..:");
    for config in drafting() {
        let shares = config.score.accepted_per_position.iter().take(16);
        let shares: Vec<String> = shares.map(|share| format!("{:3.0}", 100.0 * share)).collect();
        println!("  {:<16} {} %", config.config, shares.join(" "));
    }
}

fn print_categories(report: &Report) {
    if report.configs[0].categories.len() < 2 {
        return;
    }
    println!("\nTokens per pass, and speed, by category:");
    let names: Vec<&String> = report.configs[0].categories.keys().collect();
    let width = names.iter().map(|name| name.len()).max().unwrap_or(0);
    let heads: Vec<String> = report.configs.iter().map(|config| format!("{:>16}", config.config)).collect();
    println!("  {:<width$} {}", "", heads.join(" "));
    for name in names {
        let cells = report.configs.iter().map(|config| {
            let score = &config.categories[name];
            format!("{:>7.2} {:>7.2}x", score.tokens_per_step, score.speed)
        });
        println!("  {name:<width$} {}", cells.collect::<Vec<_>>().join(" "));
    }
}
