//! Included by the proposers' tests: the shipped model's text with a proposer is that of plain decoding, in fewer passes.

use std::path::Path;

use foretoken::config::{self, Override};
use foretoken::{Completion, Engine, Request};

/// Completions of four prompts, of which two repeat themselves, in order: two of each, or one pair.
fn completions(config: &Path, overrides: &[&str]) -> Vec<Completion> {
    let overrides: Vec<Override> = overrides.iter().map(|text| text.parse().unwrap()).collect();
    let mut engine = Engine::new(config::load(config, &overrides).unwrap()).unwrap();
    let mut sampling = engine.config().sampling.clone();
    sampling.n = if sampling.runs_pairs() { 1 } else { 2 };
    (sampling.max_tokens, sampling.ignore_eos, sampling.seed) = (60, true, 11);
    let requests = (0..4).map(|salt| Request {
        prompt: match salt % 2 {
            0 => (0..24 + 5 * salt).map(|index| 40 + (index * (salt + 3)) % 50).collect(),
            _ => (0..24 + 5 * salt).map(|index| 40 + (index % 7) * (salt + 3)).collect(),
        },
        sampling: sampling.clone(),
        text: false,
    });
    let done = engine.complete(requests).unwrap();
    let faults: Vec<_> = engine.faults().filter_map(|(_, _, last)| last).collect();
    assert!(faults.is_empty(), "{faults:?}");
    done
}

/// Options that are tried under guidance too.
const GUIDED: usize = 2;

/// Compares `config` with `plain.toml` beside it, greedy and at temperature 0.8, with each of these options, the first ones
/// guided too.
pub fn assert_same_text_in_fewer_passes(config: &Path, options: &[&str]) {
    let scales = [("sampling.guidance_scale=1.0", options.len()), ("sampling.guidance_scale=1.4", GUIDED)];
    let cells = ["sampling.temperature=0.0", "sampling.temperature=0.8"].map(|one| scales.map(|scale| (one, scale)));
    for (temperature, (scale, most)) in cells.into_iter().flatten() {
        let set = [
            "checks=true",
            "kv.num_slots=4096",
            "scheduler.plugin=\"cfg-pair\"",
            "scheduler.options.policy=\"fixed\"",
            temperature,
            scale,
        ];
        let plain = completions(&config.with_file_name("plain.toml"), &set);
        for options in options.iter().take(most) {
            let options = format!("proposer.options={{ {options} }}");
            let drafted = completions(config, &[&set[..], &[&options]].concat());
            assert!(plain.len() == drafted.len() && plain.len() >= 4);
            for (plain, drafted) in plain.iter().zip(&drafted) {
                assert_eq!(plain.tokens(), drafted.tokens(), "{temperature} {scale} {options}");
            }
            let steps = |all: &[Completion]| all.iter().map(|completion| completion.stats.steps).sum::<u64>();
            println!("{temperature} {scale} {options}: {} steps for {}", steps(&drafted), steps(&plain));
            assert!(steps(&drafted) < steps(&plain), "{temperature} {scale} {options}");
        }
    }
}
