//! What a model costs on this machine: one row, several rows, a prompt; against what the machine could do at most.
//!
//! Speculation pays as much as t(n) / t(1), the cost of verifying n rows over decoding one, is small. Everything is
//! timed in interleaved rounds and reported as medians, because machines drift; the ceilings (bandwidth of reading,
//! rate of multiplying) are measured in the same rounds. Tokens are made up: the cost of a pass does not depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foretoken_kernels::blocks::{KvDtype, KvStore};
use foretoken_kernels::ceiling::{ReadTest, multiply_add_rate};
use foretoken_kernels::{Op, Profile, WeightDtype};
use foretoken_plugin_api::{ForwardSequence, LogitRows, Slot, Token};
use serde::Serialize;

use crate::model::rows::Rows;
use crate::model::{Decoder, ForwardOut};

/// Rows whose verification is timed.
pub const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Tokens of the prompt that is timed.
pub const PREFILL: usize = 512;
/// Bytes of the reading test.
const READ_BYTES: usize = 512 << 20;
/// A cell is repeated within a round until it has taken this long.
const CELL: Duration = Duration::from_millis(40);
/// Rows whose time is split by op.
const PROFILED_ROWS: [usize; 2] = [1, 8];

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Tokens already in the KV when a step is timed.
    pub context: usize,
    /// Interleaved rounds.
    pub rounds: usize,
    /// How keys and values are stored.
    pub kv_dtype: KvDtype,
}

/// What was measured. Times are medians over the rounds.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Threads of the pool.
    pub threads: usize,
    /// Instructions used.
    pub simd: String,
    /// How most matrices are stored.
    pub dtype: String,
    /// Tokens in the KV when a step is timed.
    pub context: usize,
    /// Bytes per second at which the threads read memory, in 1e9.
    pub read_bandwidth_gb_s: f64,
    /// Bytes of weights that a pass with logits reads.
    pub weight_bytes: usize,
    /// Multiply-adds of a row.
    pub multiply_adds: usize,
    /// Multiply-adds per second with operands in registers, in 1e9, for each dtype among the weights.
    pub peak_gmac_s: BTreeMap<String, f64>,
    /// 1 / t(1).
    pub decode_tok_s: f64,
    /// Bytes of weights per second of decoding, as a share of the bandwidth.
    pub bandwidth_fraction: f64,
    /// Milliseconds of a pass with this many rows, logits of all of them.
    pub verify_ms: BTreeMap<usize, f64>,
    /// The same over a pass with one row.
    pub verify_ratio: BTreeMap<usize, f64>,
    /// What the machine's ceilings allow: the greater of reading the weights once and multiplying every row.
    pub limit_ms: BTreeMap<usize, f64>,
    /// Tokens per second of a prompt of 512.
    pub prefill_tok_s: f64,
    /// Multiply-adds per second of that prompt, as a share of the peak.
    pub prefill_fraction: f64,
    /// The process's greatest resident set, before the reading test takes its memory.
    pub peak_rss_bytes: Option<u64>,
    /// Share of a pass by op, for passes of 1 and 8 rows.
    pub op_share: BTreeMap<usize, BTreeMap<&'static str, f64>>,
}

/// Measures `decoder`; `progress` is told how many of how many rounds are done.
///
/// # Panics
/// If context and prompt do not fit the model's positions: the caller has checked.
pub fn bench(decoder: Decoder, options: Options, mut progress: impl FnMut(usize, usize)) -> Report {
    let mut bed = Bed::new(&decoder, options);
    // A warm-up that touches everything; the reading test's memory is no part of a run, so it comes after.
    for rows in VERIFY_ROWS {
        bed.verify(&decoder, rows);
    }
    bed.prefill(&decoder);
    let peak_rss_bytes = peak_rss();
    let read = ReadTest::new(READ_BYTES);
    let mut samples = Samples::default();
    for round in 0..options.rounds.max(1) {
        progress(round, options.rounds);
        samples.read.push(read.bytes_per_second(decoder.exec()));
        for linear in dtypes(&decoder) {
            samples.rates.entry(linear.to_string()).or_default().push(multiply_add_rate(decoder.exec(), linear));
        }
        for rows in VERIFY_ROWS {
            samples.verify.entry(rows).or_default().push(repeated(|| bed.verify(&decoder, rows)));
        }
        samples.prefill.push(repeated(|| bed.prefill(&decoder)));
        samples.read.push(read.bytes_per_second(decoder.exec()));
    }
    progress(options.rounds, options.rounds);
    let mut report = samples.report(&decoder, options, peak_rss_bytes);
    report.op_share = op_shares(decoder, &mut bed);
    report
}

/// The weights' dtypes, each once.
fn dtypes(decoder: &Decoder) -> Vec<WeightDtype> {
    let mut dtypes: Vec<WeightDtype> = Vec::new();
    for linear in decoder.linears() {
        if !dtypes.contains(&linear.weight().dtype()) {
            dtypes.push(linear.weight().dtype());
        }
    }
    dtypes
}

/// The dtype that most of the weights have.
fn main_dtype(decoder: &Decoder) -> WeightDtype {
    let elements = |dtype: &WeightDtype| -> usize {
        let weights = decoder.linears().map(|linear| linear.weight()).filter(|weight| weight.dtype() == *dtype);
        weights.map(|weight| weight.rows() * weight.cols()).sum()
    };
    dtypes(decoder).into_iter().max_by_key(elements).expect("a model has weights")
}

/// Keys and values, tokens and buffers.
struct Bed {
    kv: KvStore,
    rows: Rows,
    logits: Vec<f32>,
    tokens: Vec<Token>,
    slots: Vec<Slot>,
    context: usize,
}

impl Bed {
    fn new(decoder: &Decoder, options: Options) -> Self {
        let last = VERIFY_ROWS[VERIFY_ROWS.len() - 1];
        let num_slots = PREFILL.max(options.context + last);
        let vocab = decoder.architecture().vocab_size;
        Self {
            kv: KvStore::new(decoder.kv_shape(options.kv_dtype), num_slots),
            rows: Rows::default(),
            logits: vec![0.0; last * vocab],
            tokens: (0..PREFILL.max(last)).map(|i| (i * 7919 % vocab) as Token).collect(),
            slots: (0..num_slots as u32).map(Slot).collect(),
            context: options.context,
        }
    }

    /// A pass of `rows` rows behind the context, with the logits of all.
    fn verify(&mut self, decoder: &Decoder, rows: usize) {
        let (context, new) = self.slots[..self.context + rows].split_at(self.context);
        let chain = ForwardSequence::chain(&self.tokens[..rows], context, new, LogitRows::All);
        let logits = &mut self.logits[..rows * decoder.architecture().vocab_size];
        let out = ForwardOut { logits, hidden: &mut [] };
        self.rows.forward(decoder, &[chain], &mut self.kv.view_mut(), &[], out);
    }

    /// A prompt from nothing, with the logits of its last token.
    fn prefill(&mut self, decoder: &Decoder) {
        let (tokens, slots) = (&self.tokens[..PREFILL], &self.slots[..PREFILL]);
        let chain = ForwardSequence::chain(tokens, &[], slots, LogitRows::Last);
        let logits = &mut self.logits[..decoder.architecture().vocab_size];
        let out = ForwardOut { logits, hidden: &mut [] };
        self.rows.forward(decoder, &[chain], &mut self.kv.view_mut(), &[], out);
    }
}

/// Seconds of a call, the mean of as many as a cell has time for.
fn repeated(mut call: impl FnMut()) -> f64 {
    let start = Instant::now();
    let mut calls = 0;
    while calls == 0 || start.elapsed() < CELL {
        call();
        calls += 1;
    }
    start.elapsed().as_secs_f64() / f64::from(calls)
}

#[derive(Default)]
struct Samples {
    read: Vec<f64>,
    rates: BTreeMap<String, Vec<f64>>,
    verify: BTreeMap<usize, Vec<f64>>,
    prefill: Vec<f64>,
}

impl Samples {
    fn report(self, decoder: &Decoder, options: Options, peak_rss_bytes: Option<u64>) -> Report {
        let bandwidth = median(self.read);
        let rates: BTreeMap<String, f64> =
            self.rates.into_iter().map(|(dtype, rates)| (dtype, median(rates))).collect();
        let verify: BTreeMap<usize, f64> = self.verify.into_iter().map(|(rows, times)| (rows, median(times))).collect();
        let (weight_bytes, one) = (decoder.weight_bytes(), verify[&1]);
        let elements = |linear: &foretoken_kernels::blocks::Linear| linear.weight().rows() * linear.weight().cols();
        let seconds = |linear| elements(linear) as f64 / rates[&linear.weight().dtype().to_string()];
        let row: f64 = decoder.linears().map(seconds).sum();
        let head: f64 = decoder.linears().last().map_or(0.0, seconds);
        let limit = |rows: usize| (weight_bytes as f64 / bandwidth).max(rows as f64 * row);
        let prefill = median(self.prefill);
        Report {
            threads: decoder.exec().threads(),
            simd: decoder.exec().simd().to_string(),
            dtype: main_dtype(decoder).to_string(),
            context: options.context,
            read_bandwidth_gb_s: bandwidth / 1e9,
            weight_bytes,
            multiply_adds: decoder.linears().map(elements).sum(),
            peak_gmac_s: rates.iter().map(|(dtype, rate)| (dtype.clone(), rate / 1e9)).collect(),
            decode_tok_s: 1.0 / one,
            bandwidth_fraction: weight_bytes as f64 / one / bandwidth,
            verify_ms: verify.iter().map(|(rows, time)| (*rows, time * 1e3)).collect(),
            verify_ratio: verify.iter().map(|(rows, time)| (*rows, time / one)).collect(),
            limit_ms: VERIFY_ROWS.into_iter().map(|rows| (rows, limit(rows) * 1e3)).collect(),
            prefill_tok_s: PREFILL as f64 / prefill,
            // Logits are computed for one row only.
            prefill_fraction: (PREFILL as f64 * (row - head) + head) / prefill,
            peak_rss_bytes,
            op_share: BTreeMap::new(),
        }
    }
}

/// The share of each op, in runs of their own, since timing costs a little.
fn op_shares(decoder: Decoder, bed: &mut Bed) -> BTreeMap<usize, BTreeMap<&'static str, f64>> {
    let profile = Arc::new(Profile::default());
    let decoder = decoder.with_profile(Arc::clone(&profile));
    let shares = PROFILED_ROWS.map(|rows| {
        profile.take();
        let start = Instant::now();
        repeated(|| bed.verify(&decoder, rows));
        let total = start.elapsed().as_secs_f64();
        let mut shares: BTreeMap<&'static str, f64> = profile
            .take()
            .into_iter()
            .map(|(op, time): (Op, Duration)| (op.name(), time.as_secs_f64() / total))
            .collect();
        shares.insert("rest", 1.0 - shares.values().sum::<f64>());
        (rows, shares)
    });
    shares.into()
}

fn median(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// The process's greatest resident set so far, where the system says.
fn peak_rss() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024)
}
