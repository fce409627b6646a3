//! `run`: generates with the parts that a config names.
//!
//! A single completion streams as it comes; several are printed as they end, each under its number, since interleaved
//! streams cannot be read. The table at the end goes to stderr, so that stdout is the text alone.

use std::io::{IsTerminal, Write, stdout};
use std::process::ExitCode;

use foretoken::config;
use foretoken::metrics::SequenceStats;
use foretoken::{Completion, Engine, Event, FinishReason};
use indicatif::{ProgressBar, ProgressStyle};
use serde::Serialize;

use super::{prompts, table};
use crate::cli::RunArgs;

const DRAFTED: &str = "\x1b[32m";
const PLAIN: &str = "\x1b[0m";

/// One line of `--json`.
#[derive(Serialize)]
pub struct Line<'a> {
    request: usize,
    index: u32,
    prompt_tokens: &'a [u32],
    tokens: &'a [u32],
    text: &'a str,
    finish_reason: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    stats: foretoken::metrics::StatsReport,
}

impl<'a> Line<'a> {
    /// A completion of request number `request`.
    pub fn new(request: usize, completion: &'a Completion, plain_step_ms: Option<f64>) -> Self {
        Self {
            request,
            index: completion.index,
            prompt_tokens: completion.prompt(),
            tokens: completion.tokens(),
            text: &completion.text,
            finish_reason: completion.reason.name(),
            error: match &completion.reason {
                FinishReason::Error(error) => Some(error),
                _ => None,
            },
            stats: completion.stats.report(plain_step_ms),
        }
    }
}

pub fn run(args: &RunArgs) -> anyhow::Result<ExitCode> {
    let config = config::load(&args.config.path, &args.config.set)?;
    let mut engine = Engine::new(config)?;
    let requests = prompts::requests(&engine, &args.prompt, &args.sampling, args.chat)?;
    let completions: u32 = requests.iter().map(|request| request.sampling.n).sum();
    let plain_step_ms = engine.measure_plain_step(requests.iter().map(|request| request.prompt.len()).max());
    let ids = requests.into_iter().map(|request| engine.submit(request)).collect::<Result<Vec<_>, _>>()?;
    let mut output = Output {
        json: args.json,
        show_drafts: args.show_drafts,
        streams: completions == 1 && !args.json,
        several: completions > 1,
        streamed: 0,
        plain_step_ms,
        total: SequenceStats::default(),
        failed: false,
        progress: progress(u64::from(completions)),
    };
    let number = |request| ids.iter().position(|id| *id == request).unwrap_or(0);
    let mut broken = None;
    engine.run(&mut |event| {
        let result = match event {
            Event::Token { text, drafted, .. } => output.token(text, drafted),
            Event::Finished(completion) => output.finished(number(completion.request), &completion),
        };
        broken = broken.take().or(result.err());
    });
    output.progress.finish_and_clear();
    if let Some(error) = broken {
        return Err(error.into());
    }
    if !args.json {
        eprintln!("\n{}", table::run_report(&output.total.report(plain_step_ms), &engine));
    }
    Ok(if output.failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// A bar on stderr, on a terminal, for more than one completion.
fn progress(completions: u64) -> ProgressBar {
    if completions < 2 || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{bar:40} {pos}/{len} completions, {eta} left").expect("a fixed template");
    ProgressBar::new(completions).with_style(style)
}

struct Output {
    json: bool,
    show_drafts: bool,
    streams: bool,
    several: bool,
    /// Bytes of the single completion already on stdout.
    streamed: usize,
    plain_step_ms: Option<f64>,
    total: SequenceStats,
    failed: bool,
    progress: ProgressBar,
}

impl Output {
    fn token(&mut self, text: &str, drafted: bool) -> std::io::Result<()> {
        if !self.streams || text.is_empty() {
            return Ok(());
        }
        self.streamed += text.len();
        let mut out = stdout().lock();
        if self.show_drafts && drafted {
            write!(out, "{DRAFTED}{text}{PLAIN}")?;
        } else {
            write!(out, "{text}")?;
        }
        out.flush()
    }

    fn finished(&mut self, request: usize, completion: &Completion) -> std::io::Result<()> {
        self.total.merge(&completion.stats);
        self.progress.inc(1);
        let error = match &completion.reason {
            FinishReason::Error(error) => Some(error.as_str()),
            _ => None,
        };
        self.failed |= error.is_some();
        let mut out = stdout().lock();
        if self.json {
            let line = Line::new(request, completion, self.plain_step_ms);
            return writeln!(out, "{}", serde_json::to_string(&line)?);
        }
        if self.several {
            self.progress.suspend(|| writeln!(out, "--- request {request}, completion {}", completion.index))?;
        }
        writeln!(out, "{}", completion.text.get(self.streamed..).unwrap_or(""))?;
        if let Some(error) = error {
            eprintln!("error: request {request}, completion {}: {error}", completion.index);
        }
        Ok(())
    }
}
