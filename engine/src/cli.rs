//! The command line, as clap reads it. What a flag means is said in its help text; what it does is in `commands`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};
use foretoken::config::Override;
use foretoken::config::raw::RawSampling;

/// Speculative decoding in which every decision is a plugin: faster text, not one token changed.
#[derive(Parser)]
#[command(name = "foretoken", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
}

#[derive(Subcommand)]
pub enum Command {
    /// Generate text with the parts that a config names
    Run(Box<RunArgs>),
    /// Plain decoding against each built-in config, on the shipped model
    Demo(DemoArgs),
    /// The same prompts through several configs, side by side
    Compare(Box<CompareArgs>),
    /// Log-probabilities of given tokens under the target
    Score(ScoreArgs),
    /// What decoding, verifying and prefill cost on this machine, against what it could do at most
    Bench(BenchArgs),
    /// What plugins there are, what they do, whether they behave
    Plugins(PluginsArgs),
}

/// A config and changes to it.
#[derive(Args)]
pub struct ConfigArgs {
    /// A TOML file, such as configs/ngram.toml
    #[arg(value_name = "CONFIG")]
    pub path: PathBuf,
    /// Change a key, with the value in TOML: --set sampler.plugin='"gumbel"' (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
}

#[derive(Args)]
pub struct RunArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub prompt: PromptArgs,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Apply the model's chat template to the prompt
    #[arg(long)]
    pub chat: bool,
    /// Colour the tokens that were kept drafts
    #[arg(long)]
    pub show_drafts: bool,
    /// One JSON object a completion, one per line
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct PromptArgs {
    /// The prompt's text
    #[arg(long, value_name = "TEXT")]
    pub prompt: Option<String>,
    /// A file that is the prompt
    #[arg(long, value_name = "FILE")]
    pub prompt_file: Option<PathBuf>,
    /// One request a line: {"prompt": ..} and any sampling field; all are submitted at once
    #[arg(long, value_name = "FILE.jsonl")]
    pub prompts: Option<PathBuf>,
}

#[derive(Args)]
pub struct SamplingArgs {
    /// Most tokens of a completion
    #[arg(long, value_name = "N")]
    pub max_tokens: Option<usize>,
    /// 0 is greedy
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    pub temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all
    #[arg(long, value_name = "K")]
    pub top_k: Option<u32>,
    /// Keep the smallest set of tokens with this much probability; 1 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub top_p: Option<f32>,
    /// Keep tokens at least this share of the most probable one; 0 keeps all
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    pub min_p: Option<f32>,
    /// The key of all randomness
    #[arg(long, value_name = "S")]
    pub seed: Option<u64>,
    /// Completions of each prompt
    #[arg(long, value_name = "N")]
    pub n: Option<u32>,
    /// Classifier-free guidance; 1 is none
    #[arg(long, value_name = "G", allow_negative_numbers = true)]
    pub guidance_scale: Option<f32>,
    /// What guidance leads away from
    #[arg(long, value_name = "TEXT")]
    pub negative_prompt: Option<String>,
    /// Go on past end-of-sequence tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

impl SamplingArgs {
    /// The flags as they would stand in a config.
    pub fn raw(&self) -> RawSampling {
        RawSampling {
            max_tokens: self.max_tokens,
            temperature: self.temperature,
            top_k: self.top_k,
            top_p: self.top_p,
            min_p: self.min_p,
            seed: self.seed,
            n: self.n,
            guidance_scale: self.guidance_scale,
            negative_prompt: self.negative_prompt.clone(),
            ignore_eos: self.ignore_eos.then_some(true),
            ..RawSampling::default()
        }
    }
}

#[derive(Args)]
pub struct DemoArgs {
    /// Tokens per prompt
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub max_tokens: usize,
    /// Prompts of your own, a JSON line each, instead of the built-in ones
    #[arg(long, value_name = "FILE.jsonl")]
    pub prompts: Option<PathBuf>,
    /// Change a key of all configs: --set model.dtype='"q8_0"' (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
}

#[derive(Args)]
pub struct CompareArgs {
    /// TOML files; the first is what the others are held against
    #[arg(value_name = "CONFIG", required = true)]
    pub configs: Vec<PathBuf>,
    /// Change a key of all configs: --set model.dtype='"q8_0"' (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
    /// One request a line: {"prompt": ..} and any sampling field; lines with a "category" are also counted by it
    #[arg(long, value_name = "FILE.jsonl")]
    pub prompts: PathBuf,
    /// Only the first N prompts of the file
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
    /// Prompts in flight: one that ends makes room for the next
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub batch: usize,
    #[command(flatten)]
    pub sampling: SamplingArgs,
    /// Apply each model's chat template to the prompts
    #[arg(long)]
    pub chat: bool,
    /// Write report.json and each config's completions, a JSON line each, into this folder
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ScoreArgs {
    #[command(flatten)]
    pub config: ConfigArgs,
    #[command(flatten)]
    pub what: ScoreWhat,
    /// One JSON object: tokens and logprobs
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
#[group(required = true, multiple = false)]
pub struct ScoreWhat {
    /// Text, tokenised as a prompt is
    #[arg(long, value_name = "TEXT")]
    pub text: Option<String>,
    /// Token ids
    #[arg(long, value_name = "1,2,3", value_delimiter = ',')]
    pub tokens: Option<Vec<u32>>,
}

#[derive(Args)]
pub struct BenchArgs {
    /// A TOML file, such as configs/plain.toml; optional with --random-weights
    #[arg(value_name = "CONFIG", required_unless_present = "random_weights")]
    pub path: Option<PathBuf>,
    /// Change a key, with the value in TOML: --set model.dtype='"q8_0"' (repeatable)
    #[arg(long = "set", value_name = "KEY=VALUE")]
    pub set: Vec<Override>,
    /// Made-up weights of this shape instead of the model's: 1.1b, 134m, 8.9m, or a config.json
    #[arg(long, value_name = "SHAPE")]
    pub random_weights: Option<String>,
    /// Tokens already in the KV when a step is timed
    #[arg(long, value_name = "N", default_value_t = 128)]
    pub context: usize,
    /// Instead: does speculation pay here? The config against itself without proposers, and the best draft lengths
    #[arg(long, requires = "path", conflicts_with = "random_weights")]
    pub advise: bool,
    /// Batches to advise on
    #[arg(long, value_name = "N,N,..", value_delimiter = ',', default_value = "1,4,16", requires = "advise")]
    pub batch: Vec<usize>,
    /// Interleaved rounds; reported are the medians
    #[arg(long, value_name = "N", default_value_t = 7)]
    pub rounds: usize,
    /// One JSON object
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct PluginsArgs {
    #[command(subcommand)]
    pub command: PluginsCommand,
}

#[derive(Subcommand)]
pub enum PluginsCommand {
    /// Every part found, and where
    List(PluginsDirArgs),
    /// One part and the schema of its options
    Show {
        /// The part's name
        name: String,
        #[command(flatten)]
        dirs: PluginsDirArgs,
    },
    /// Does a library's every part keep its kind's rules?
    Check {
        /// A plugin library
        library: PathBuf,
        /// Options for its parts, in TOML
        #[arg(long, value_name = "TOML", default_value = "")]
        options: String,
        /// One JSON object a check, one per line
        #[arg(long)]
        json: bool,
    },
}

#[derive(Args)]
pub struct PluginsDirArgs {
    /// Folders to search instead of the program's own and FORETOKEN_PLUGIN_PATH (repeatable)
    #[arg(long = "dir", value_name = "DIR")]
    pub dirs: Vec<PathBuf>,
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,
}
