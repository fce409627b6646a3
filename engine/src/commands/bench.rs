//! `bench`: what decoding, verifying and prefill cost on this machine.

use std::path::Path;
use std::process::ExitCode;

use foretoken::bench::{self, Options, PREFILL, Report, VERIFY_ROWS};
use foretoken::build;
use foretoken::config::{self, Config};
use foretoken::model::{Architecture, Decoder};
use foretoken_kernels::WeightDtype;
use indicatif::{ProgressBar, ProgressDrawTarget};

use super::UsageError;
use super::advise::advise;
use crate::cli::BenchArgs;

/// Shapes that need no file: layers, width, inner width, heads, KV heads, vocabulary.
const SHAPES: [(&str, [usize; 6]); 3] = [
    ("1.1b", [22, 2048, 5632, 32, 4, 32_000]),
    ("134m", [12, 768, 2048, 12, 12, 32_000]),
    ("8.9m", [8, 256, 768, 4, 4, 4096]),
];

pub fn bench(args: &BenchArgs) -> anyhow::Result<ExitCode> {
    if let Some(path) = args.path.as_deref().filter(|_| args.advise) {
        return advise(path, args);
    }
    let config = match &args.path {
        Some(path) => config::load(path, &args.set)?,
        None => config::parse("[model]\npath = \".\"", "--random-weights", Path::new("."), &args.set)?,
    };
    let decoder = decoder(args, &config)?;
    let positions = decoder.architecture().max_positions;
    let needed = PREFILL.max(args.context + VERIFY_ROWS[VERIFY_ROWS.len() - 1]);
    if needed > positions {
        let (context, most) = (args.context, positions);
        return Err(UsageError(format!(
            "--context {context}: the bench needs {needed} positions, and the model has {most}\n  fix: a smaller context, \
             or a model with at least {PREFILL} positions"
        ))
        .into());
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    let options = Options { context: args.context, rounds: args.rounds, kv_dtype: config.kv_dtype };
    let report = bench::bench(decoder, options, |done, total| {
        bar.set_length(total as u64);
        bar.set_position(done as u64);
    });
    bar.finish_and_clear();
    if args.json {
        println!("{}", serde_json::to_string(&report)?);
    } else {
        print(&report);
    }
    Ok(ExitCode::SUCCESS)
}

fn decoder(args: &BenchArgs, config: &Config) -> anyhow::Result<Decoder> {
    let exec = build::exec(config)?;
    let Some(shape) = &args.random_weights else {
        return Ok(Decoder::load(&config.model, config.dtype, exec)?);
    };
    let architecture = match SHAPES.iter().find(|(name, _)| name.eq_ignore_ascii_case(shape)) {
        Some((_, sizes)) => Architecture::parse(&config_json(*sizes), Path::new(shape))?,
        None => {
            let text = std::fs::read_to_string(shape).map_err(|error| {
                let names = SHAPES.map(|(name, _)| name).join(", ");
                UsageError(format!(
                    "--random-weights {shape}: {error}\n  fix: one of {names}, or a model's config.json"
                ))
            })?;
            Architecture::parse(&text, Path::new(shape))?
        }
    };
    Ok(Decoder::random(architecture, config.dtype.unwrap_or(WeightDtype::Bf16), exec)?)
}

fn config_json([layers, width, inner, heads, kv_heads, vocab]: [usize; 6]) -> String {
    serde_json::json!({
        "architectures": ["LlamaForCausalLM"], "num_hidden_layers": layers, "hidden_size": width,
        "intermediate_size": inner, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "vocab_size": vocab, "max_position_embeddings": 32_768, "rms_norm_eps": 1e-5,
    })
    .to_string()
}

fn print(report: &Report) {
    let gib = |bytes: f64| bytes / f64::from(1 << 30);
    let Report { dtype, threads, simd, context, .. } = report;
    println!("{dtype} weights, {threads} threads, {simd}, context {context}\n");
    println!("weights read per pass   {:8.3} GiB", gib(report.weight_bytes as f64));
    println!("reading memory          {:8.1} GB/s", report.read_bandwidth_gb_s);
    for (dtype, rate) in &report.peak_gmac_s {
        println!("multiply-adds, {dtype:<8} {rate:8.1} G/s at most");
    }
    println!("empty parallel region   {:8.2} us", report.region_us);
    if let Some(bytes) = report.peak_rss_bytes {
        println!("peak resident           {:8.3} GiB", gib(bytes as f64));
    }
    println!(
        "\ndecode  {:8.1} tokens/s, {:.0} % of the bandwidth",
        report.decode_tok_s,
        100.0 * report.bandwidth_fraction
    );
    let prefill = 100.0 * report.prefill_fraction;
    println!("prefill {:8.1} tokens/s at {PREFILL}, {prefill:.0} % of the multiply-adds\n", report.prefill_tok_s);
    println!("rows        ms   t(n)/t(1)   over the machine's limit");
    for (rows, time) in &report.verify_ms {
        let (ratio, over) = (report.verify_ratio[rows], report.over_limit[rows]);
        println!("{rows:>4} {time:9.3} {ratio:11.2} {over:10.2}");
    }
    for (rows, shares) in &report.op_share {
        println!("\nops of a pass of {rows} row{}", if *rows == 1 { "" } else { "s" });
        let mut shares: Vec<_> = shares.iter().collect();
        shares.sort_by(|a, b| b.1.total_cmp(a.1));
        for (op, share) in shares {
            println!("  {op:<10} {:5.1} % {}", 100.0 * share, "#".repeat((share * 50.0).round().max(0.0) as usize));
        }
    }
}
