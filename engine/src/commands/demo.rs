//! `demo`: what a newcomer runs first. Plain decoding against each built-in config, on the shipped model.
//!
//! The configs are compiled in and read relative to the checkout's `configs/` folder; plugins come from the program's
//! own folder, where the build put them. Every config runs every prompt once, in turn; outputs are compared by token.

use std::collections::HashSet;
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

/// One config and what it has done so far.
struct Contender {
    name: &'static str,
    engine: Engine,
    completions: Vec<Completion>,
    stats: SequenceStats,
    /// Time between the first token of each output and its last.
    milliseconds: f64,
}

pub fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let folder = configs_folder()?;
    let mut contenders = CONFIGS
        .iter()
        .map(|(name, text)| Contender::new(name, built_in(name, text, &folder, &args.set)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let prompts = match &args.prompts {
        Some(path) => super::prompts::texts(path)?,
        None => PROMPTS.iter().map(ToString::to_string).collect(),
    };
    println!(
        "Each config continues {} prompts by {} tokens, greedily, one at a time.\n",
        prompts.len(),
        args.max_tokens
    );
    // Interleaved, so that a machine that speeds up or slows down does so for all.
    for (number, prompt) in prompts.iter().enumerate() {
        let count = contenders.len();
        (0..count).try_for_each(|turn| contenders[(number + turn) % count].run(prompt, args.max_tokens))?;
    }
    let all_equal = print_table(&contenders);
    println!(
        "\nA pass reads all weights once. On a model too large for the caches that read is the time, so passes saved"
    );
    println!("are time saved; the shipped model is tiny, so here the drafts' own cost shows as well.");
    if args.prompts.is_none() {
        let last = contenders.last_mut().expect("there are three");
        show(&mut last.engine, args.max_tokens)?;
        println!("\nNext: foretoken run configs/ngram.toml --prompt \"def \" --show-drafts");
    }
    Ok(if all_equal { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Prints a row per config; returns whether all outputs are equal.
fn print_table(contenders: &[Contender]) -> bool {
    let plain = &contenders[0];
    println!(
        "{:<12} {:>7} {:>12} {:>9} {:>10} {:>8}   output",
        "config", "passes", "tokens/pass", "drafting", "tokens/s", "speed"
    );
    let mut all_equal = true;
    for contender in contenders {
        let equal = plain.tokens().eq(contender.tokens());
        all_equal &= equal;
        let verdict = match (contender.name == plain.name, equal) {
            (true, _) => "(the reference)",
            (_, true) => "equal, token for token",
            (_, false) => "DIFFERENT",
        };
        // The first token of an output comes with the prompt's pass, before the time starts.
        let count: usize = contender.tokens().map(|tokens| tokens.len().saturating_sub(1)).sum();
        println!(
            "{:<12} {:>7} {:>12.2} {:>7.1} % {:>10.1} {:>7.2}x   {verdict}",
            contender.name,
            contender.stats.steps,
            contender.stats.tokens_per_step(),
            contender.stats.draft_ns as f64 / 1e4 / contender.milliseconds,
            count as f64 * 1e3 / contender.milliseconds,
            plain.milliseconds / contender.milliseconds,
        );
    }
    println!(
        "\nDrafting, tokens/s and speed: from the first token of an output to its last, without the prompt's pass."
    );
    println!(
        "{:.0} % of the 4-grams of an output are distinct (text that repeats itself is easy to guess).",
        100.0 * distinct(plain)
    );
    all_equal
}

/// The mean share of distinct 4-grams of the completions.
fn distinct(contender: &Contender) -> f64 {
    let share = |tokens: &[u32]| {
        let all = tokens.windows(4).count().max(1);
        tokens.windows(4).collect::<HashSet<_>>().len() as f64 / all as f64
    };
    contender.tokens().map(share).sum::<f64>() / contender.completions.len().max(1) as f64
}

impl Contender {
    fn new(name: &'static str, config: Config) -> anyhow::Result<Self> {
        let mut engine = Engine::new(config)?;
        // The first pass pays for page faults and clock ramps; it is not part of any config's time.
        one(&mut engine, PROMPTS[0], 8, &mut |_| ())?;
        Ok(Self { name, engine, completions: Vec::new(), stats: SequenceStats::default(), milliseconds: 0.0 })
    }

    fn run(&mut self, prompt: &str, max_tokens: usize) -> anyhow::Result<()> {
        let mut first = None;
        let completion = one(&mut self.engine, prompt, max_tokens, &mut |event| {
            if let Event::Token { .. } = event {
                first.get_or_insert_with(Instant::now);
            }
        })?;
        self.milliseconds += first.map_or(0.0, |first| first.elapsed().as_secs_f64() * 1e3);
        self.stats.merge(&completion.stats);
        self.completions.push(completion);
        Ok(())
    }

    fn tokens(&self) -> impl Iterator<Item = &[u32]> {
        self.completions.iter().map(Completion::tokens)
    }
}

/// The checkout's `configs` folder: beside the program's target folder, or under the current one.
fn configs_folder() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().ok();
    let above = program.iter().flat_map(|program| program.ancestors()).map(Path::to_owned);
    let mut roots = above.chain(std::env::current_dir());
    let found = roots.find(|root| root.join("examples/models/tiny/config.json").is_file());
    let missing =
        || UsageError("the shipped model examples/models/tiny is not here: run demo inside the checkout".to_owned());
    Ok(found.ok_or_else(missing)?.join("configs"))
}

fn built_in(name: &str, text: &str, folder: &Path, set: &[Override]) -> anyhow::Result<Config> {
    let dirs = foretoken::plugins::registry::default_dirs();
    let dirs: Vec<String> = dirs.iter().map(|dir| format!("{:?}", dir.to_string_lossy())).collect();
    let own: Override = format!("plugins.dirs=[{}]", dirs.join(", ")).parse()?;
    let overrides: Vec<Override> = std::iter::once(own).chain(set.iter().cloned()).collect();
    Ok(config::parse(text, &format!("the built-in config {name}"), folder, &overrides)?)
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
    println!(
        "\nThe last config again; what its drafts guessed right is {}:\n",
        if colour { "green" } else { "in brackets" }
    );
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
