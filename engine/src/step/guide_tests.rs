//! The rows that verification reads, against rows of two separate plain runs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use foretoken_plugin_api::SamplingParams;
use foretoken_plugin_api::testkit::library;

use crate::config::{self, Sampling};
use crate::{Engine, Request};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn engine(parts: &str) -> Engine {
    for (package, folder) in [
        ("foretoken-ngram", "proposers/ngram"),
        ("foretoken-draft-model", "proposers/draft-model"),
        ("foretoken-rejection", "samplers/rejection"),
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
    engine.core.buffers.logits.to_vec()
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

const TOP_K: usize = 3;

/// The `TOP_K` best tokens of a row with their probabilities among themselves.
fn best(row: &[f32]) -> Vec<(u32, f64)> {
    let mut order: Vec<u32> = (0..row.len() as u32).collect();
    order.sort_by(|a, b| row[*b as usize].total_cmp(&row[*a as usize]).then(a.cmp(b)));
    let top = f64::from(row[order[0] as usize]);
    let weights: Vec<f64> = order[..TOP_K].iter().map(|token| (f64::from(row[*token as usize]) - top).exp()).collect();
    let total: f64 = weights.iter().sum();
    order.into_iter().zip(weights.iter().map(|weight| weight / total)).collect()
}

/// Three tokens that true-draft_prob sampling keeps of a draft model's guesses, under guidance: as often as the guided
/// distributions say.
#[test]
fn the_joint_law_of_guided_tokens_is_that_of_the_guided_distributions() {
    const COMPLETIONS: u32 = 2048;
    let scale = 2.0;
    let parts = "[sampler]\nplugin = \"rejection\"\n[proposer]\nplugin = \"draft-model\"\n\
                 [proposer.options]\nmodel = \"examples/models/tiny-draft\"\nnum_speculative_tokens = 2\n";
    let (mut pairs, mut plain) = (engine(parts), engine(""));
    let negative_prompt = "import os\n";
    let encode = |text: &str| plain.tokenizer().encode(text).unwrap();
    let (prompt, negative) = (encode("def add(a, b):\n    return a"), encode(negative_prompt));

    let mut law: BTreeMap<Vec<u32>, f64> = BTreeMap::from([(Vec::new(), 1.0)]);
    for _ in 0..3 {
        let mut longer = BTreeMap::new();
        for (behind, probability) in law {
            let cond = plain_row(&mut plain, &[&prompt[..], &behind].concat());
            let uncond = plain_row(&mut plain, &[&negative[..], &behind].concat());
            for (token, share) in best(&guided(&cond, &uncond, scale)) {
                longer.insert([&behind[..], &[token]].concat(), probability * share);
            }
        }
        law = longer;
    }

    let params = SamplingParams { temperature: 1.0, top_k: TOP_K as u32, ..SamplingParams::GREEDY };
    let sampling = Sampling {
        params,
        guidance_scale: scale,
        negative_prompt: Some(negative_prompt.to_owned()),
        ignore_eos: true,
        max_tokens: 3,
        n: COMPLETIONS,
        seed: 5,
        ..Sampling::default()
    };
    let request = Request { prompt, sampling, text: false };
    let done = pairs.complete([request]).unwrap();
    assert_eq!(done.len(), COMPLETIONS as usize);
    let (drafted, kept) = done.iter().fold((0, 0), |sum, one| (sum.0 + one.stats.drafted, sum.1 + one.stats.accepted));
    assert!(drafted >= u64::from(COMPLETIONS) && kept > drafted / 10 && kept < drafted, "{kept} of {drafted} kept");
    let mut counts: BTreeMap<&[u32], f64> = BTreeMap::new();
    done.iter().for_each(|one| *counts.entry(one.tokens()).or_default() += 1.0);
    assert!(counts.keys().all(|tokens| law.contains_key(*tokens)), "a token outside of top_k");
    for (tokens, probability) in &law {
        let (count, total) = (counts.get(&tokens[..]).copied().unwrap_or(0.0), f64::from(COMPLETIONS));
        let error = (total * probability * (1.0 - probability)).sqrt().max(1.0);
        let away = (count - total * probability).abs() / error;
        assert!(
            away < 4.5,
            "{tokens:?}: {count} of {total}, expected {:.1}: {away:.1} standard errors",
            total * probability
        );
    }
}
