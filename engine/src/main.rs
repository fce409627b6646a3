//! The `foretoken` program: parses, dispatches, and turns errors into an exit status.
//!
//! Results go to stdout, logs and progress to stderr. Exit status: 0 done, 1 failed, 2 bad usage or config.

mod cli;
mod commands;

use std::process::ExitCode;

use clap::Parser;
use foretoken::build::BuildError;
use foretoken::config::ConfigError;
use foretoken::plugins::load::LoadError;
use foretoken::request::RequestError;

use cli::{Cli, Command};

fn main() -> ExitCode {
    let cli = Cli::parse();
    start_log();
    end_quietly_when_nobody_reads();
    let result = match cli.command {
        None => {
            commands::welcome();
            Ok(ExitCode::SUCCESS)
        }
        Some(Command::Run(args)) => commands::run::run(&args),
        Some(Command::Demo(args)) => commands::demo::demo(&args),
        Some(Command::Compare(args)) => commands::compare::compare(&args),
        Some(Command::Score(args)) => commands::score::score(&args),
        Some(Command::Bench(args)) => commands::bench::bench(&args),
        Some(Command::Plugins(args)) => commands::plugins::plugins(&args),
    };
    result.unwrap_or_else(|error| {
        eprintln!("error: {}", in_words(&error));
        ExitCode::from(status(&error))
    })
}

/// `foretoken .. | head` closes stdout early; `println!` would panic over it.
fn end_quietly_when_nobody_reads() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if panic.payload_as_str().is_some_and(|text| text.contains("Broken pipe")) {
            std::process::exit(0);
        }
        report(panic);
    }));
}

/// The error and its causes; what a message has said already is not said again.
fn in_words(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |text, cause| match text.as_str() {
        "" => cause,
        said if said.contains(&cause) => text,
        _ => format!("{text}: {cause}"),
    })
}

/// 2 for what the user can mend in the command line or the config, 1 for everything else.
fn status(error: &anyhow::Error) -> u8 {
    let is_usage = error.chain().any(|cause| {
        let build = cause.downcast_ref::<BuildError>();
        let mendable = build.is_some_and(|error| !matches!(error, BuildError::Model(_) | BuildError::Tokenizer(_)));
        mendable
            || cause.is::<ConfigError>()
            || cause.is::<LoadError>()
            || cause.is::<RequestError>()
            || cause.is::<commands::UsageError>()
    });
    if is_usage { 2 } else { 1 }
}

/// Logs to stderr; `FORETOKEN_LOG` filters them (default `warn`).
fn start_log() {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FORETOKEN_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("warn"));
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).without_time();
    log.with_target(false).init();
}
