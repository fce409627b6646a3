//! The same prompts through several configs, in turns: what `demo` and `compare` measure.
//!
//! Time runs from the first token of a batch of prompts to its last: a single prompt is not in it, nor are several that fit
//! one pass; of more, those that come in later passes are. Configs take turns prompt by prompt, so that a machine that
//! speeds up or slows down does so for all.

use std::collections::HashSet;
use std::time::Instant;

use foretoken::config::Sampling;
use foretoken::metrics::SequenceStats;
use foretoken::{Completion, Config, Engine, Event, Request};
use serde::Serialize;

/// One config and what it has done so far.
pub struct Contender {
    pub name: String,
    pub engine: Engine,
    rounds: Vec<Round>,
}

/// What came of one batch of prompts.
struct Round {
    category: Option<String>,
    completions: Vec<Completion>,
    milliseconds: f64,
}

/// A contender's figures; times are of its decoding.
#[derive(Serialize)]
pub struct Score {
    pub tokens_per_second: f64,
    /// Over the first config's tokens per second.
    pub speed: f64,
    /// Between which `speed` lies with 95 % confidence, as far as the batches tell, whose times are paired. From three
    /// batches on. Where an engine's memory lies is the same for all of them and not in it: of a model that fits the caches,
    /// two engines of one config were seen 4 % apart.
    pub speed_interval: Option<[f64; 2]>,
    pub tokens_per_step: f64,
    /// Passes of the target.
    pub steps: u64,
    pub drafted: u64,
    pub accepted: u64,
    /// `[i]`: share of steps whose kept path is longer than `i`.
    pub accepted_per_position: Vec<f64>,
    pub draft_ms: f64,
    pub verify_ms: f64,
    pub overhead_ms: f64,
    pub completions: usize,
    /// Completions whose tokens are the first config's.
    pub equal: usize,
}

impl Contender {
    /// An engine that is warm: the first pass pays for page faults and clock ramps.
    pub fn new(name: String, config: Config) -> anyhow::Result<Self> {
        let mut engine = Engine::new(config)?;
        let mut sampling = engine.config().sampling.clone();
        (sampling.max_tokens, sampling.n) = (8, 1);
        let request = text_request(&engine, "def ", sampling)?;
        complete(&mut engine, vec![request], &mut |_| ())?;
        Ok(Self { name, engine, rounds: Vec::new() })
    }

    /// Completes a batch of prompts.
    pub fn run(&mut self, requests: Vec<Request>, category: Option<String>) -> anyhow::Result<()> {
        let mut first = None;
        let completions = complete(&mut self.engine, requests, &mut |event| {
            if let Event::Token { .. } = event {
                first.get_or_insert_with(Instant::now);
            }
        })?;
        let milliseconds = first.map_or(0.0, |first| first.elapsed().as_secs_f64() * 1e3);
        self.rounds.push(Round { category, completions, milliseconds });
        Ok(())
    }

    /// All completions, in the order of the prompts.
    pub fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.rounds.iter().flat_map(|round| &round.completions)
    }

    /// The figures beside those of `first`, of all prompts or those of a category.
    pub fn score(&self, first: &Self, category: Option<&str>) -> Score {
        let (totals, first_totals) = (self.totals(category), first.totals(category));
        let pairs = || self.of(category).zip(first.of(category));
        let report = totals.stats.report(None);
        Score {
            tokens_per_second: totals.rate(),
            speed: totals.rate() / first_totals.rate(),
            speed_interval: speed_interval(&self.timed(category), &first.timed(category)),
            tokens_per_step: report.tokens_per_step,
            steps: report.steps,
            drafted: report.drafted,
            accepted: report.accepted,
            accepted_per_position: report.accepted_per_position,
            draft_ms: report.draft_ms,
            verify_ms: report.verify_ms,
            overhead_ms: report.overhead_ms,
            completions: totals.completions,
            equal: pairs()
                .flat_map(|(round, first)| round.completions.iter().zip(&first.completions))
                .filter(|(completion, first)| completion.tokens() == first.tokens())
                .count(),
        }
    }

    fn of(&self, category: Option<&str>) -> impl Iterator<Item = &Round> {
        self.rounds.iter().filter(move |round| category.is_none() || round.category.as_deref() == category)
    }

    /// Tokens and milliseconds of each batch.
    fn timed(&self, category: Option<&str>) -> Vec<(usize, f64)> {
        self.of(category).map(|round| (round.tokens(), round.milliseconds)).collect()
    }

    fn totals(&self, category: Option<&str>) -> Totals {
        let mut totals = Totals { stats: SequenceStats::default(), milliseconds: 0.0, tokens: 0, completions: 0 };
        for round in self.of(category) {
            totals.milliseconds += round.milliseconds;
            totals.tokens += round.tokens();
            totals.completions += round.completions.len();
            round.completions.iter().for_each(|completion| totals.stats.merge(&completion.stats));
        }
        totals
    }
}

impl Round {
    /// The first token of each completion comes with the prompt's pass, before the time starts.
    fn tokens(&self) -> usize {
        self.completions.iter().map(|completion| completion.tokens().len().saturating_sub(1)).sum()
    }
}

/// The speed of `own` over `first`, tokens and milliseconds of the same batches: its logarithm is jackknifed, by how it
/// changes when one batch is left out, for each of them.
fn speed_interval(own: &[(usize, f64)], first: &[(usize, f64)]) -> Option<[f64; 2]> {
    let rate_without = |batches: &[(usize, f64)], left_out: usize| {
        let kept = batches.iter().enumerate().filter(|(place, _)| *place != left_out);
        let (tokens, milliseconds) = kept.fold((0, 0.0), |sum, (_, batch)| (sum.0 + batch.0, sum.1 + batch.1));
        rate(tokens, milliseconds)
    };
    let speed = |left_out: usize| (rate_without(own, left_out) / rate_without(first, left_out)).ln();
    let batches = own.len().min(first.len());
    let count = batches as f64;
    let mean = (0..batches).map(speed).sum::<f64>() / count;
    let variance = (0..batches).map(|batch| (speed(batch) - mean).powi(2)).sum::<f64>() * (count - 1.0) / count;
    let reach = student_97(count - 1.0) * variance.sqrt();
    let interval = [-1.0, 1.0].map(|side: f64| (speed(batches) + side * reach).exp());
    (batches >= 3 && interval.iter().all(|bound| bound.is_finite())).then_some(interval)
}

/// The 97.5 % quantile of Student's t by its expansion at the normal one (Abramowitz and Stegun, 26.7.5): 4.27 instead of
/// 4.30 for two degrees of freedom, closer for more.
fn student_97(degrees: f64) -> f64 {
    [1.960, 2.372, 2.822, 2.556, 1.590].iter().rev().fold(0.0, |sum, term| sum / degrees + term)
}

struct Totals {
    stats: SequenceStats,
    milliseconds: f64,
    tokens: usize,
    completions: usize,
}

impl Totals {
    fn rate(&self) -> f64 {
        rate(self.tokens, self.milliseconds)
    }
}

/// Tokens a second.
fn rate(tokens: usize, milliseconds: f64) -> f64 {
    if milliseconds > 0.0 { tokens as f64 * 1e3 / milliseconds } else { 0.0 }
}

/// A request for the text after `prompt`.
pub fn text_request(engine: &Engine, prompt: &str, sampling: Sampling) -> anyhow::Result<Request> {
    Ok(Request { prompt: engine.tokenizer().encode(prompt)?, sampling, text: true })
}

/// Runs requests to their end; the completions in the order of the requests.
pub fn complete(
    engine: &mut Engine,
    requests: Vec<Request>,
    watch: &mut dyn FnMut(&Event<'_>),
) -> anyhow::Result<Vec<Completion>> {
    let expected: u32 = requests.iter().map(|request| request.sampling.n).sum();
    requests.into_iter().try_for_each(|request| engine.submit(request).map(drop))?;
    let mut completions = Vec::new();
    engine.run(&mut |event| {
        watch(&event);
        if let Event::Finished(completion) = event {
            completions.push(completion);
        }
    });
    anyhow::ensure!(completions.len() == expected as usize, "the engine stopped without finishing the prompts");
    completions.sort_by_key(|completion| (completion.request, completion.index));
    Ok(completions)
}

/// Prints a row per contender, the first being what the others are held against.
pub fn print_table(contenders: &[Contender]) {
    let width = contenders.iter().map(|contender| contender.name.len()).max().unwrap_or(0).max(8);
    println!(
        "{:<width$} {:>7} {:>12} {:>9} {:>10} {:>10} {:>8} {:>12}   output",
        "config", "passes", "tokens/pass", "draft ms", "verify ms", "tokens/s", "speed", "95 %"
    );
    for (number, contender) in contenders.iter().enumerate() {
        let score = contender.score(&contenders[0], None);
        let verdict = match (number, score.completions - score.equal) {
            (0, _) => "(the reference)".to_owned(),
            (_, 0) => "equal, token for token".to_owned(),
            (_, different) => format!("DIFFERENT in {different} of {}", score.completions),
        };
        let interval = match score.speed_interval {
            Some([low, high]) if number > 0 => format!("{low:.2} to {high:.2}"),
            _ => String::new(),
        };
        let per_pass = |milliseconds: f64| milliseconds / score.steps.max(1) as f64;
        println!(
            "{:<width$} {:>7} {:>12.2} {:>9.3} {:>10.3} {:>10.1} {:>7.2}x {interval:>12}   {verdict}",
            contender.name,
            score.steps,
            score.tokens_per_step,
            per_pass(score.draft_ms),
            per_pass(score.verify_ms),
            score.tokens_per_second,
            score.speed,
        );
    }
    println!(
        "\nTimes are of decoding, from the first token on; draft and verify are for each pass. The speed lies\nwithin the interval with 95 % confidence, as far as the prompts tell. {:.0} % of the 4-grams of an output are distinct\n(text that repeats itself is easy to guess).",
        100.0 * distinct(&contenders[0])
    );
}

/// The mean share of distinct 4-grams of a contender's completions.
pub fn distinct(contender: &Contender) -> f64 {
    let share = |tokens: &[u32]| {
        let all = tokens.windows(4).count().max(1);
        tokens.windows(4).collect::<HashSet<_>>().len() as f64 / all as f64
    };
    let shares: Vec<f64> = contender.completions().map(|completion| share(completion.tokens())).collect();
    shares.iter().sum::<f64>() / shares.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_quantiles_are_those_of_the_tables() {
        for (degrees, quantile) in [(3.0, 3.182), (5.0, 2.571), (10.0, 2.228), (30.0, 2.042)] {
            assert!((student_97(degrees) - quantile).abs() < 0.01, "{degrees}: {}", student_97(degrees));
        }
    }

    #[test]
    fn batches_of_one_ratio_leave_no_doubt_and_others_do() {
        let first = [(10, 10.0), (20, 25.0), (30, 28.0), (10, 11.0)];
        let twice = first.map(|(tokens, milliseconds)| (tokens, milliseconds / 2.0));
        let [low, high] = speed_interval(&twice, &first).expect("four batches");
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9, "{low} to {high}");
        let mixed = [(10, 5.0), (20, 10.0), (30, 19.0), (10, 4.0)];
        let [low, high] = speed_interval(&mixed, &first).expect("four batches");
        assert!(low < 1.8 && high > 2.1, "{low} to {high}");
        assert_eq!(speed_interval(&twice[..2], &first[..2]), None);
    }
}
