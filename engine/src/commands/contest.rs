//! The same prompts through several configs, in turns: what `demo` and `compare` measure.
//!
//! Some prompts are in flight at a time; one that ends makes room for the next, as in a service. Until then they begin
//! at irregular distances over the length of a text, since plain decoding keeps these to the last pass: if they began
//! together, it would go on in waves, and a config that does not would alone have fewer in flight at the end; if they
//! began evenly, it alone would have a prompt in almost every pass, and beside a prompt a token is cheaper than
//! elsewhere. Time runs from the first token on: of one at a time it is decoding alone, of more the passes of later
//! prompts are in it. Of prompts that are all in flight at once it is the time in which none has ended. Configs take
//! short turns of the same number of tokens, so that a machine that speeds up or slows down does so for all.

use std::collections::{HashSet, VecDeque};
use std::time::{Duration, Instant};

use foretoken::config::Sampling;
use foretoken::metrics::SequenceStats;
use foretoken::{Completion, Config, Engine, Event, Request};
use foretoken_plugin_api::RequestId;
use serde::Serialize;

/// One config and what it has done so far.
pub struct Contender {
    pub name: String,
    pub engine: Engine,
    turns: Vec<Turn>,
    /// With their categories, in the order of the prompts once a flight has ended.
    completions: Vec<(Option<String>, Completion)>,
}

/// Turns in which about as many prompts end as may be in flight.
const TURNS: usize = 8;

/// Prompts of one category on their way through a contender.
pub struct Flight {
    category: Option<String>,
    waiting: VecDeque<Request>,
    /// Those in flight, with how many completions are to come.
    flying: Vec<(RequestId, u32)>,
    /// Most in flight at a time.
    most: usize,
    /// Whether they all begin together.
    together: bool,
    /// Tokens of a prompt that takes all it may, of all its completions.
    longest: usize,
    /// Prompts that have begun.
    begun: usize,
    /// Turns and tokens so far.
    turns: usize,
    tokens: usize,
    /// Whether there has been a token.
    decodes: bool,
}

/// What was timed in a turn.
struct Turn {
    category: Option<String>,
    /// Whether it is the first of a round, in which about as many prompts end as may be in flight.
    begins_round: bool,
    tokens: usize,
    time: Duration,
}

/// A contender's figures; times are of its decoding.
#[derive(Serialize)]
pub struct Score {
    pub tokens_per_second: f64,
    /// Over the first config's tokens per second.
    pub speed: f64,
    /// Between which `speed` lies with 95 % confidence, as far as rounds of turns tell, whose times are paired. From three
    /// rounds on. Where an engine's memory lies is the same for all of them and not in it: of a model that fits the caches,
    /// two engines of one config were seen 1 % apart.
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
        Ok(Self { name, engine, turns: Vec::new(), completions: Vec::new() })
    }

    /// Prompts on their way with at most `most` in flight at a time, and the memory for them.
    pub fn flight(&self, requests: Vec<Request>, category: Option<String>, most: usize) -> Flight {
        let together = requests.len() <= most;
        let most = most.min(requests.len());
        self.engine.populate(&requests, most);
        let tokens = |request: &Request| request.sampling.max_tokens * request.sampling.n as usize;
        let longest = requests.iter().map(tokens).max().unwrap_or(0);
        let (waiting, flying) = (requests.into(), Vec::new());
        Flight { category, waiting, flying, most, together, longest, begun: 0, turns: 0, tokens: 0, decodes: false }
    }

    /// Completes prompts that are all in flight at once.
    pub fn run(&mut self, requests: Vec<Request>, category: Option<String>) -> anyhow::Result<()> {
        let most = requests.len();
        let mut flight = self.flight(requests, category, most);
        while flight.left() > 0 {
            self.turn(&mut flight)?;
        }
        Ok(())
    }

    /// Goes on until there are as many tokens as turns so far have, or all prompts have ended.
    pub fn turn(&mut self, flight: &mut Flight) -> anyhow::Result<()> {
        let (category, begins_round) = (flight.category.clone(), flight.begins_round());
        let mut turn = Turn { category, begins_round, tokens: 0, time: Duration::ZERO };
        flight.turns += 1;
        while flight.left() > 0 && flight.tokens < flight.turns * flight.turn_tokens() {
            while flight.has_room()
                && let Some(request) = flight.waiting.pop_front()
            {
                flight.begun += 1;
                // Alone, a prompt's own pass is no decoding; among others it is what they wait for.
                flight.decodes &= flight.most > 1;
                let completions = request.sampling.n;
                flight.flying.push((self.engine.submit(request)?, completions));
            }
            anyhow::ensure!(self.engine.has_work(), "the engine stopped without finishing the prompts");
            let counts = flight.counts();
            let (start, mut tokens) = (Instant::now(), 0);
            self.engine.step(&mut |event| match event {
                Event::Token { .. } => tokens += 1,
                Event::Finished(completion) => {
                    flight.ended(completion.request);
                    self.completions.push((flight.category.clone(), completion));
                }
            });
            if counts {
                turn.time += start.elapsed();
                turn.tokens += tokens;
            }
            flight.decodes |= tokens > 0;
            flight.tokens += tokens;
        }
        self.turns.push(turn);
        if flight.left() == 0 {
            self.completions.sort_by_key(|(_, completion)| (completion.request, completion.index));
        }
        Ok(())
    }

    /// All completions, in the order of the prompts.
    pub fn completions(&self) -> impl Iterator<Item = &Completion> {
        self.completions.iter().map(|(_, completion)| completion)
    }

    /// The figures beside those of `first`, of all prompts or those of a category.
    pub fn score(&self, first: &Self, category: Option<&str>) -> Score {
        let mut stats = SequenceStats::default();
        self.of(category).for_each(|completion| stats.merge(&completion.stats));
        let (rounds, first_rounds) = (self.timed(category), first.timed(category));
        let pairs = self.of(category).zip(first.of(category));
        let report = stats.report(None);
        Score {
            tokens_per_second: rate(&rounds, None),
            speed: rate(&rounds, None) / rate(&first_rounds, None),
            speed_interval: speed_interval(&rounds, &first_rounds),
            tokens_per_step: report.tokens_per_step,
            steps: report.steps,
            drafted: report.drafted,
            accepted: report.accepted,
            accepted_per_position: report.accepted_per_position,
            draft_ms: report.draft_ms,
            verify_ms: report.verify_ms,
            overhead_ms: report.overhead_ms,
            completions: self.of(category).count(),
            equal: pairs.filter(|(completion, first)| completion.tokens() == first.tokens()).count(),
        }
    }

    fn of(&self, category: Option<&str>) -> impl Iterator<Item = &Completion> {
        let of_it = move |of: &Option<String>| category.is_none() || of.as_deref() == category;
        self.completions.iter().filter(move |(of, _)| of_it(of)).map(|(_, completion)| completion)
    }

    /// Tokens and seconds of each round.
    fn timed(&self, category: Option<&str>) -> Vec<(usize, f64)> {
        rounds(self.turns.iter().filter(|turn| category.is_none() || turn.category.as_deref() == category))
    }
}

impl Flight {
    /// Prompts that have not ended.
    pub fn left(&self) -> usize {
        self.waiting.len() + self.flying.len()
    }

    /// Tokens of a turn: those of an eighth ([`TURNS`]) of as many prompts as may be in flight.
    fn turn_tokens(&self) -> usize {
        self.most.div_ceil(TURNS) * self.longest
    }

    /// Whether another prompt may begin.
    fn has_room(&self) -> bool {
        let is_due = || {
            // When those in flight have each come so much further: the tokens of 1, then of 2, ..
            let ways: f64 = (1..=self.begun).map(|begun| begun as f64 * distance(begun)).sum();
            (self.tokens * self.most) as f64 >= self.longest as f64 * ways
        };
        let ended = self.begun - self.flying.len();
        self.flying.len() < self.most && (self.together || ended > 0 || is_due())
    }

    /// Whether its next turn begins a round. Of prompts that begin together every turn is one.
    fn begins_round(&self) -> bool {
        let turns = self.most.div_ceil(self.most.div_ceil(TURNS).max(1)).max(1);
        self.together || self.turns.is_multiple_of(turns)
    }

    /// Whether the time of its next pass counts.
    fn counts(&self) -> bool {
        self.decodes && (!self.together || self.flying.len() == self.most)
    }

    /// A completion of `request` has ended.
    fn ended(&mut self, request: RequestId) {
        if let Some((_, left)) = self.flying.iter_mut().find(|(flying, _)| *flying == request) {
            *left -= 1;
        }
        self.flying.retain(|(_, left)| *left > 0);
    }
}

/// The distance to the next of the first prompts, 1 on average and like that of independent arrivals (exponential, by the
/// multiples of the golden ratio), always the same.
fn distance(begun: usize) -> f64 {
    const GOLDEN: f64 = 0.618_033_988_749_895;
    -(1.0 - (begun as f64 * GOLDEN).fract()).ln()
}

/// Tokens and seconds of each round. Turns alone would not compare: a turn in which new prompts pass takes longer, and
/// they pass together in one config and spread out in another.
fn rounds<'a>(turns: impl Iterator<Item = &'a Turn>) -> Vec<(usize, f64)> {
    let mut rounds: Vec<(usize, f64)> = Vec::new();
    for turn in turns {
        match rounds.last_mut() {
            Some(round) if !turn.begins_round => *round = (round.0 + turn.tokens, round.1 + turn.time.as_secs_f64()),
            _ => rounds.push((turn.tokens, turn.time.as_secs_f64())),
        }
    }
    rounds
}

/// The speed of `own` over `first`, tokens and seconds of the same rounds: its logarithm is jackknifed, by how it changes
/// when one round is left out, for each of them.
fn speed_interval(own: &[(usize, f64)], first: &[(usize, f64)]) -> Option<[f64; 2]> {
    let rounds = own.len().min(first.len());
    let speed = |left_out: Option<usize>| (rate(own, left_out) / rate(first, left_out)).ln();
    let count = rounds as f64;
    let mean = (0..rounds).map(|round| speed(Some(round))).sum::<f64>() / count;
    let variance = (0..rounds).map(|round| (speed(Some(round)) - mean).powi(2)).sum::<f64>() * (count - 1.0) / count;
    let reach = student_97(count - 1.0) * variance.sqrt();
    let interval = [-1.0, 1.0].map(|side: f64| (speed(None) + side * reach).exp());
    (rounds >= 3 && interval.iter().all(|bound| bound.is_finite())).then_some(interval)
}

/// The 97.5 % quantile of Student's t by its expansion at the normal one (Abramowitz and Stegun, 26.7.5): 4.27 instead of
/// 4.30 for two degrees of freedom, closer for more.
fn student_97(degrees: f64) -> f64 {
    [1.960, 2.372, 2.822, 2.556, 1.590].iter().rev().fold(0.0, |sum, term| sum / degrees + term)
}

/// Tokens a second over rounds, without one of them.
fn rate(rounds: &[(usize, f64)], left_out: Option<usize>) -> f64 {
    let kept = rounds.iter().enumerate().filter(|(place, _)| Some(*place) != left_out);
    let (tokens, seconds) = kept.fold((0, 0.0), |sum, (_, round)| (sum.0 + round.0, sum.1 + round.1));
    if seconds > 0.0 { tokens as f64 / seconds } else { 0.0 }
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

    fn flight(together: bool, flying: usize, decodes: bool) -> Flight {
        Flight {
            category: None,
            waiting: VecDeque::new(),
            flying: vec![(RequestId(1), 1); flying],
            most: 2,
            together,
            longest: 12,
            begun: flying,
            turns: 0,
            tokens: 0,
            decodes,
        }
    }

    #[test]
    fn the_end_of_a_queue_counts_and_that_of_prompts_which_begin_together_does_not() {
        assert!(flight(false, 2, true).counts() && flight(true, 2, true).counts());
        assert!(flight(false, 1, true).counts() && !flight(true, 1, true).counts());
        assert!(!flight(false, 2, false).counts() && !flight(true, 2, false).counts(), "before the first token");
    }

    #[test]
    fn rounds_of_one_ratio_leave_no_doubt_and_others_do() {
        let first = [(10, 10.0), (20, 25.0), (30, 28.0), (10, 11.0)];
        let twice = first.map(|(tokens, milliseconds)| (tokens, milliseconds / 2.0));
        let [low, high] = speed_interval(&twice, &first).expect("four rounds");
        assert!((low - 2.0).abs() < 1e-9 && (high - 2.0).abs() < 1e-9, "{low} to {high}");
        let mixed = [(10, 5.0), (20, 10.0), (30, 19.0), (10, 4.0)];
        let [low, high] = speed_interval(&mixed, &first).expect("four rounds");
        assert!(low < 1.8 && high > 2.1, "{low} to {high}");
        assert_eq!(speed_interval(&twice[..2], &first[..2]), None);
    }

    #[test]
    fn prompts_that_pass_in_one_turn_or_in_several_make_the_same_rounds() {
        let turns = |seconds: [u64; 8]| {
            let turn = |(index, seconds)| Turn {
                category: None,
                begins_round: index % 4 == 0,
                tokens: 10 * seconds as usize,
                time: Duration::from_secs(seconds),
            };
            seconds.into_iter().enumerate().map(turn).collect::<Vec<_>>()
        };
        let (together, spread) = (turns([8, 0, 0, 0, 4, 0, 0, 0]), turns([2, 3, 1, 2, 1, 1, 2, 0]));
        assert_eq!(rounds(together.iter()), [(80, 8.0), (40, 4.0)]);
        assert_eq!(rounds(spread.iter()), rounds(together.iter()));
    }

    #[test]
    fn the_first_prompts_begin_apart_unless_they_are_all() {
        let mut queue = flight(false, 0, false);
        (queue.most, queue.longest) = (64, 96);
        let mut begins = Vec::new();
        for step in 0.. {
            while queue.begun < 66 && queue.has_room() {
                begins.push(step);
                queue.flying.push((RequestId(1), 1));
                queue.begun += 1;
            }
            if queue.begun == 66 {
                break;
            }
            queue.tokens += queue.flying.len();
            if step >= 119 && queue.flying.len() == 64 {
                queue.flying.pop();
            }
        }
        assert!((85..=107).contains(&begins[63]), "over the length of a text: {begins:?}");
        assert_eq!(begins[64..], [120, 121], "then where one has ended");
        let steps: HashSet<_> = begins[..64].iter().collect();
        assert!((40..55).contains(&steps.len()), "some together, some far apart: {begins:?}");
        assert!(flight(true, 1, false).has_room() && !flight(true, 2, false).has_room());
        let mut queue = flight(false, 1, false);
        (queue.most, queue.begun) = (3, 1);
        assert!(!queue.has_room());
        queue.begun = 2;
        assert!(queue.has_room(), "one has ended early");
    }

    #[test]
    fn a_round_has_the_turns_of_all_that_may_be_in_flight() {
        for (most, turns) in [(1, 1), (2, 2), (8, 8), (16, 8), (17, 6), (64, 8)] {
            let begins = |made| {
                let mut flight = flight(false, 0, true);
                (flight.most, flight.turns) = (most, made);
                flight.begins_round()
            };
            assert_eq!((1..).find(|made| begins(*made)), Some(turns), "{most} in flight");
        }
    }
}
