//! `demo`: what a newcomer runs first. Plain decoding against each built-in config, on the shipped model.
//!
//! The configs are compiled in and read relative to the checkout's `configs/` folder; plugins come from the program's
//! own folder, where the build put them. Every config runs every prompt once; outputs are compared token by token.

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use foretoken::config::{self, Override};
use foretoken::metrics::SequenceStats;
use foretoken::{Completion, Config, Engine, Event, Request};

use super::UsageError;
use crate::cli::DemoArgs;

/// Built-in configs; the first is what the others are compared with.
const CONFIGS: [(&str, &str); 3] = [
    ("plain", include_str!("../../../configs/plain.toml")),
    ("ngram", include_str!("../../../configs/ngram.toml")),
    ("draft-model", include_str!("../../../configs/draft-model.toml")),
];

const PROMPTS: [&str; 3] = [
    "import os\nimport sys\n\n\nclass Node:\n    def __init__(self, name, value):\n        self.name = name\n        self.value = value\n\n    def __repr__(self):\n        return f\"{self.__class__.__name__}({self.name!r}, {self.value!r})\"\n\n    def __eq__(self, other):\n",
    "Question: Tom has 3 boxes. Each box has 4 red balls and 5 blue balls. How many balls does Tom have?\nAnswer:",
    "    def test_append(self):\n        self.assertEqual(self.list.append(1), None)\n\n    def test_extend(self):\n        self.assertEqual(self.list.extend([1, 2]), None)\n\n    def test_insert(self):\n",
];

/// One config's run over all prompts.
struct Outcome {
    completions: Vec<Completion>,
    stats: SequenceStats,
    milliseconds: f64,
}

pub fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let folder = configs_folder()?;
    println!("Each config continues {} prompts by {} tokens, greedily, one at a time.\n", PROMPTS.len(), args.max_tokens);
    println!("{:<12} {:>7} {:>12} {:>9} {:>9}   output", "config", "passes", "tokens/pass", "ms", "speed");
    let mut plain: Option<Outcome> = None;
    let mut shown = None;
    let mut all_equal = true;
    for (name, text) in CONFIGS {
        let mut engine = Engine::new(built_in(name, text, &folder)?)?;
        let outcome = run(&mut engine, args.max_tokens)?;
        let reference = plain.as_ref().unwrap_or(&outcome);
        let equal = tokens(reference).eq(tokens(&outcome));
        all_equal &= equal;
        let verdict = match (plain.is_none(), equal) {
            (true, _) => "(the reference)",
            (_, true) => "equal, token for token",
            (_, false) => "DIFFERENT",
        };
        println!(
            "{name:<12} {:>7} {:>12.2} {:>9.0} {:>8.2}x   {verdict}",
            outcome.stats.steps,
            outcome.stats.tokens_per_step(),
            outcome.milliseconds,
            reference.milliseconds / outcome.milliseconds,
        );
        plain.get_or_insert(outcome);
        shown = Some(engine);
    }
    println!("\nA pass reads all weights once. On a model too large for the caches that read is the time, so passes saved");
    println!("are time saved; the shipped model is tiny, so here the drafts' own cost shows as well.");
    if let Some(engine) = &mut shown {
        show(engine, args.max_tokens)?;
    }
    println!("\nNext: foretoken run configs/ngram.toml --prompt \"def \" --show-drafts");
    Ok(if all_equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn tokens(outcome: &Outcome) -> impl Iterator<Item = &[u32]> {
    outcome.completions.iter().map(Completion::tokens)
}

/// The checkout's `configs` folder: beside the program's target folder, or under the current one.
fn configs_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|program| program.ancestors()).map(Path::to_owned);
    let mut roots = above.chain(std::env::current_dir());
    let found = roots.find(|root| root.join("examples/models/tiny/config.json").is_file());
    let missing = || UsageError("the shipped model examples/models/tiny is not here: run demo inside the checkout".to_owned());
    Ok(found.ok_or_else(missing)?.join("configs"))
}

fn built_in(name: &str, text: &str, folder: &Path) -> anyhow::Result<Config> {
    let dirs = foretoken::plugins::registry::default_dirs();
    let dirs: Vec<String> = dirs.iter().map(|dir| format!("{:?}", dir.to_string_lossy())).collect();
    let own: Override = format!("plugins.dirs=[{}]", dirs.join(", ")).parse()?;
    Ok(config::parse(text, &format!("the built-in config {name}"), folder, &[own])?)
}

fn run(engine: &mut Engine, max_tokens: usize) -> anyhow::Result<Outcome> {
    // The first pass pays for page faults and clock ramps; it is not part of any config's time.
    one(engine, PROMPTS[0], 8, &mut |_| ())?;
    let start = Instant::now();
    let completions = PROMPTS.iter().map(|prompt| one(engine, prompt, max_tokens, &mut |_| ()));
    let completions = completions.collect::<anyhow::Result<Vec<_>>>()?;
    let milliseconds = start.elapsed().as_secs_f64() * 1e3;
    let mut stats = SequenceStats::default();
    completions.iter().for_each(|completion| stats.merge(&completion.stats));
    Ok(Outcome { completions, stats, milliseconds })
}

fn one(
    engine: &mut Engine,
    prompt: &str,
    max_tokens: usize,
    watch: &mut dyn FnMut(&Event<'_>),
) -> anyhow::Result<Completion> {
    let mut sampling = engine.config().sampling.clone();
    sampling.max_tokens = max_tokens;
    let prompt = engine.tokenizer().encode(prompt)?;
    engine.submit(Request { prompt, sampling, text: true })?;
    let mut done = None;
    engine.run(&mut |event| {
        watch(&event);
        if let Event::Finished(completion) = event {
            done = Some(completion);
        }
    });
    done.ok_or_else(|| anyhow::anyhow!("the engine stopped without finishing the prompt"))
}

/// Prints one continuation with its kept drafts coloured.
fn show(engine: &mut Engine, max_tokens: usize) -> anyhow::Result<()> {
    let colour = stdout().is_terminal();
    let (on, off) = if colour { ("\x1b[32m", "\x1b[0m") } else { ("[", "]") };
    println!("\nThe last config again; what its drafts guessed right is {}:\n", if colour { "green" } else { "in brackets" });
    print!("{}", PROMPTS[0]);
    let mut inside = false;
    one(engine, PROMPTS[0], max_tokens, &mut |event| {
        if let Event::Token { text, drafted, .. } = event {
            if *drafted != inside {
                print!("{}", if *drafted { on } else { off });
                inside = *drafted;
            }
            print!("{text}");
            let _ = stdout().flush();
        }
    })?;
    println!("{}", if inside { off } else { "" });
    Ok(())
}
