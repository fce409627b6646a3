//! The rows that verification reads, against rows of two separate plain runs.

use std::path::{Path, PathBuf};

use foretoken_plugin_api::testkit::library;

use crate::config::{self, Sampling};
use crate::{Engine, Request};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn engine(parts: &str) -> Engine {
    for (package, folder) in [
        ("foretoken-ngram", "proposers/ngram"),
        ("foretoken-gumbel", "samplers/gumbel"),
        ("foretoken-cfg-pair", "schedulers/cfg-pair"),
        ("foretoken-paged", "kv/paged"),
    ] {
        library(package, root().join("plugins").join(folder)).unwrap_or_else(|error| panic!("{error}"));
    }
    let libraries = std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned();
    let text = format!(
        "checks = true\n[model]\npath = \"examples/models/tiny\"\ndtype = \"f32\"\n[kv]\ndtype = \"f32\"\nnum_slots = 2048\n\
         [scheduler]\nplugin = \"cfg-pair\"\noptions = {{ policy = \"fixed\" }}\n{parts}[plugins]\ndirs = [{libraries:?}]\n"
    );
    Engine::new(config::parse(&text, "test", &root(), &[]).unwrap()).unwrap()
}

fn submit(engine: &mut Engine, prompt: &[u32], sampling: Sampling) {
    engine.submit(Request { prompt: prompt.to_vec(), sampling, text: false }).unwrap();
}

/// The row of logits behind `tokens`, of a plain run of its own.
fn plain_row(engine: &mut Engine, tokens: &[u32]) -> Vec<f32> {
    submit(engine, tokens, Sampling { max_tokens: 1, ..Sampling::default() });
    engine.step(&mut |_| ());
    assert!(!engine.has_work());
    engine.core.buffers.logits.clone()
}

/// `u + s * (c - u)` in f32, three roundings.
fn guided(cond: &[f32], uncond: &[f32], scale: f32) -> Vec<f32> {
    cond.iter().zip(uncond).map(|(c, u)| u + scale * (c - u)).collect()
}

fn bits(row: &[f32]) -> Vec<u32> {
    row.iter().map(|value| value.to_bits()).collect()
}

/// Every row of a guided run, speculative or not, is the formula's of two plain runs, bit for bit.
fn rows_are_those_of_two_runs(parts: &str, scale: f32) -> usize {
    let (mut pairs, mut plain) = (engine(parts), engine(""));
    let encode = |text: &str| plain.tokenizer().encode(text).unwrap();
    let (prompt, negative) = (encode("def add(a, b):\n    return a +"), encode("# Question: what is"));
    let negative_prompt = Some("# Question: what is".to_owned());
    let sampling =
        Sampling { guidance_scale: scale, negative_prompt, ignore_eos: true, max_tokens: 24, ..Sampling::default() };
    submit(&mut pairs, &prompt, sampling);
    let (mut output, mut steps, vocab) = (Vec::new(), 0, pairs.decoder().architecture().vocab_size);
    while pairs.has_work() {
        let mut fresh = Vec::new();
        pairs.step(&mut |event| {
            if let crate::Event::Token { token, .. } = event {
                fresh.push(token);
            }
        });
        steps += 1;
        let entry = &pairs.core.buffers.entries[0];
        let rows = pairs.core.buffers.logits[entry.first_logit * vocab..].chunks(vocab);
        // Row 0 stands behind the output so far, the next ones behind the tokens that were kept after it; with drafts
        // that are chains, the kept nodes are the first.
        for (kept, row) in rows.take(fresh.len()).enumerate() {
            let behind = [&output[..], &fresh[..kept]].concat();
            let cond = plain_row(&mut plain, &[&prompt[..], &behind].concat());
            let uncond = plain_row(&mut plain, &[&negative[..], &behind].concat());
            assert!(bits(row) == bits(&guided(&cond, &uncond, scale)), "scale {scale}, after {behind:?}");
        }
        output.extend(fresh);
    }
    assert_eq!(output.len(), 24);
    steps
}

#[test]
fn guided_rows_are_the_formula_of_two_plain_runs_bit_for_bit() {
    for scale in [1.5, 3.0, -0.5] {
        let plain = rows_are_those_of_two_runs("", scale);
        let drafted = rows_are_those_of_two_runs("[proposer]\nplugin = \"ngram\"\n", scale);
        assert!(drafted <= plain, "{drafted} steps, plain {plain}");
    }
}
