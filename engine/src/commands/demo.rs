//! `demo`: what a newcomer runs first. Plain decoding against each built-in config, on the shipped model.
//!
//! The configs are compiled in and read relative to the checkout's `configs/` folder; plugins come from the program's
//! own folder, where the build put them. Every config runs every prompt once, in turn; outputs are compared by token.

use std::io::{IsTerminal, Write, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use foretoken::config::{self, Override, Sampling};
use foretoken::{Config, Engine, Event};

use super::contest::{self, Contender};
use super::{UsageError, prompts};
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

pub fn demo(args: &DemoArgs) -> anyhow::Result<ExitCode> {
    let folder = configs_folder()?;
    let mut contenders = CONFIGS
        .iter()
        .map(|(name, text)| Contender::new((*name).to_owned(), built_in(name, text, &folder, &args.set)?))
        .collect::<anyhow::Result<Vec<_>>>()?;
    let prompts = match &args.prompts {
        Some(path) => prompts::lines(path)?,
        None => PROMPTS.iter().map(|text| prompts::Line::text(text)).collect(),
    };
    println!(
        "Each config continues {} prompts by {} tokens, greedily, one at a time.\n",
        prompts.len(),
        args.max_tokens
    );
    for (number, prompt) in prompts.iter().enumerate() {
        let count = contenders.len();
        for turn in 0..count {
            let contender = &mut contenders[(number + turn) % count];
            let sampling = sampling(&contender.engine, args.max_tokens);
            let request = prompt.request(&contender.engine, &sampling, false)?;
            contender.run(vec![request], None)?;
        }
    }
    contest::print_table(&contenders);
    let all_equal = contenders.iter().all(|contender| {
        let score = contender.score(&contenders[0], None);
        score.equal == score.completions
    });
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

/// The config's sampling, with this many tokens.
fn sampling(engine: &Engine, max_tokens: usize) -> Sampling {
    Sampling { max_tokens, ..engine.config().sampling.clone() }
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
    let request = contest::text_request(engine, PROMPTS[0], sampling(engine, max_tokens))?;
    contest::complete(engine, vec![request], &mut |event| {
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
