//! What a model costs on this machine: one row, several rows, a prompt; against what the machine could do at most.
//!
//! Speculation pays as much as t(n) / t(1), the cost of verifying n rows over decoding one, is small. Machines drift by
//! half within a second, so the ceilings (bandwidth of reading, rate of multiplying) are measured before and after every
//! timed cell, every ratio is taken within a round, and medians over the rounds are reported. Tokens are made up: the
//! cost of a pass does not depend on them.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use foretoken_kernels::blocks::{KvDtype, KvStore, Linear};
use foretoken_kernels::ceiling::{ReadTest, multiply_add_rate, region_seconds};
use foretoken_kernels::{AlignedFloats, Exec, Op, Profile, WeightDtype};
use foretoken_plugin_api::{ForwardSequence, LogitRows, Slot, Token};
use serde::Serialize;

use crate::model::rows::Rows;
use crate::model::{Decoder, ForwardOut};

/// Rows whose verification is timed.
pub const VERIFY_ROWS: [usize; 6] = [1, 2, 4, 8, 16, 32];
/// Tokens of the prompt that is timed.
pub const PREFILL: usize = 512;
/// Bytes of the reading test: a server's third-level cache had much of 256 MiB, and said 34 GB/s or more where memory gives 32.
const READ_BYTES: usize = 1 << 30;
/// A cell is repeated within a round until it has taken this long.
const CELL: Duration = Duration::from_millis(40);
/// Rows of passes whose time is split by op; the last is the prompt.
const PROFILED_ROWS: [usize; 4] = [1, 8, 16, PREFILL];

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
    /// Microseconds of a parallel region without work. On cores that share a third-level cache it is a fraction of a microsecond;
    /// on others several times as long, and whatever one thread leaves to another takes as much longer.
    pub region_us: f64,
    /// Bytes of weights that a pass with logits reads.
    pub weight_bytes: usize,
    /// Multiply-adds of a row.
    pub multiply_adds: usize,
    /// Multiply-adds per second with operands in registers, in 1e9, for each dtype among the weights.
    pub peak_gmac_s: BTreeMap<String, f64>,
    /// 1 / t(1).
    pub decode_tok_s: f64,
    /// Bytes of weights per second of decoding, as a share of the bandwidth around it.
    pub bandwidth_fraction: f64,
    /// Milliseconds of a pass with this many rows, logits of all of them.
    pub verify_ms: BTreeMap<usize, f64>,
    /// The same over a pass with one row.
    pub verify_ratio: BTreeMap<usize, f64>,
    /// What the machine's ceilings allow: the greater of reading the weights once and multiplying every row.
    pub limit_ms: BTreeMap<usize, f64>,
    /// A pass's time over what the ceilings around it allow.
    pub over_limit: BTreeMap<usize, f64>,
    /// Tokens per second of a prompt of 512.
    pub prefill_tok_s: f64,
    /// Multiply-adds per second of that prompt, as a share of the peak.
    pub prefill_fraction: f64,
    /// The process's greatest resident set, before the reading test takes its memory.
    pub peak_rss_bytes: Option<u64>,
    /// Share of a pass by op, for passes of 1, 8 and 16 rows and for the prompt.
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
    let machine = Machine { read: ReadTest::new(READ_BYTES), dtypes: dtypes(&decoder) };
    let mut samples = Vec::new();
    for round in 0..options.rounds.max(1) {
        progress(round, options.rounds);
        let mut before = machine.ceilings(decoder.exec());
        let mut cell = |call: &mut dyn FnMut()| {
            let seconds = repeated(call);
            let after = machine.ceilings(decoder.exec());
            let ceilings = before.mean(&after);
            before = after;
            Cell { seconds, ceilings }
        };
        let verify = VERIFY_ROWS.map(|rows| {
            // Weights that a cache holds are not in it after the reading test.
            bed.warm(&decoder);
            (rows, cell(&mut || bed.verify(&decoder, rows)))
        });
        samples.push(Round { verify: verify.into(), prefill: cell(&mut || bed.prefill(&decoder)) });
    }
    progress(options.rounds, options.rounds);
    let mut report = report(&samples, &decoder, options);
    report.peak_rss_bytes = peak_rss_bytes;
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
    let of = |dtype: &WeightDtype| -> usize {
        decoder.linears().filter(|linear| linear.weight().dtype() == *dtype).map(elements).sum()
    };
    dtypes(decoder).into_iter().max_by_key(of).expect("a model has weights")
}

/// Keys and values, tokens and buffers.
struct Bed {
    kv: KvStore,
    rows: Rows,
    logits: AlignedFloats,
    tokens: Vec<Token>,
    slots: Vec<Slot>,
    context: usize,
}

impl Bed {
    fn new(decoder: &Decoder, options: Options) -> Self {
        let last = VERIFY_ROWS[VERIFY_ROWS.len() - 1];
        let num_slots = PREFILL.max(options.context + last);
        let vocab = decoder.architecture().vocab_size;
        let mut logits = AlignedFloats::new();
        logits.sized(last * vocab);
        Self {
            kv: KvStore::new(decoder.architecture().kv_shape(options.kv_dtype), num_slots),
            rows: Rows::default(),
            logits,
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
        let out = ForwardOut { logits, hidden: &mut () };
        self.rows.forward(decoder, &[chain], &mut self.kv.view_mut(), out);
    }

    /// A pass that nobody times, for those behind it: memory that was not read for a second, as during a prompt, may be slow at
    /// first (a virtual machine took 15 ms longer for 1.1 B weights), and the passes of a text follow each other.
    fn warm(&mut self, decoder: &Decoder) {
        self.verify(decoder, 1);
    }

    /// A prompt from nothing, with the logits of its last token.
    fn prefill(&mut self, decoder: &Decoder) {
        let (tokens, slots) = (&self.tokens[..PREFILL], &self.slots[..PREFILL]);
        let chain = ForwardSequence::chain(tokens, &[], slots, LogitRows::Last);
        let logits = &mut self.logits[..decoder.architecture().vocab_size];
        let out = ForwardOut { logits, hidden: &mut () };
        self.rows.forward(decoder, &[chain], &mut self.kv.view_mut(), out);
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

/// What the machine could do at most, measured as it is at the moment.
struct Machine {
    read: ReadTest,
    dtypes: Vec<WeightDtype>,
}

impl Machine {
    fn ceilings(&self, exec: &Exec) -> Ceilings {
        let rate = |dtype: &WeightDtype| (dtype.to_string(), multiply_add_rate(exec, *dtype));
        Ceilings {
            bandwidth: self.read.bytes_per_second(exec),
            rates: self.dtypes.iter().map(rate).collect(),
            region: region_seconds(exec),
        }
    }
}

/// Bytes, and multiply-adds by dtype, per second; seconds of an empty region.
#[derive(Debug)]
struct Ceilings {
    bandwidth: f64,
    rates: BTreeMap<String, f64>,
    region: f64,
}

impl Ceilings {
    fn mean(&self, other: &Self) -> Self {
        let rates = self.rates.iter().map(|(dtype, rate)| (dtype.clone(), (rate + other.rates[dtype]) / 2.0));
        Self {
            bandwidth: (self.bandwidth + other.bandwidth) / 2.0,
            rates: rates.collect(),
            region: (self.region + other.region) / 2.0,
        }
    }

    /// Seconds of multiplying one row, by all weights and by the output projection alone.
    fn row_seconds(&self, decoder: &Decoder) -> (f64, f64) {
        let seconds = |linear: &Linear| elements(linear) as f64 / self.rates[&linear.weight().dtype().to_string()];
        (decoder.linears().map(seconds).sum(), decoder.linears().last().map_or(0.0, seconds))
    }

    /// Seconds of a pass at least: reading the weights once, or multiplying every row.
    fn limit(&self, decoder: &Decoder, rows: usize) -> f64 {
        (decoder.weight_bytes() as f64 / self.bandwidth).max(rows as f64 * self.row_seconds(decoder).0)
    }
}

/// A timed call, and the machine around it.
struct Cell {
    seconds: f64,
    ceilings: Ceilings,
}

struct Round {
    verify: BTreeMap<usize, Cell>,
    prefill: Cell,
}

fn elements(linear: &Linear) -> usize {
    linear.weight().rows() * linear.weight().cols()
}

fn report(samples: &[Round], decoder: &Decoder, options: Options) -> Report {
    let over_rounds = |value: &dyn Fn(&Round) -> f64| median(samples.iter().map(value).collect());
    let by_rows = |value: &dyn Fn(&Round, usize, &Cell) -> f64| {
        VERIFY_ROWS.map(|rows| (rows, over_rounds(&|round| value(round, rows, &round.verify[&rows])))).into()
    };
    let limit = |rows: usize, cell: &Cell| cell.ceilings.limit(decoder, rows);
    let peak = |dtype: &String| over_rounds(&|round| round.prefill.ceilings.rates[dtype] / 1e9);
    let weight_bytes = decoder.weight_bytes();
    let bandwidth = |cell: &Cell| cell.ceilings.bandwidth;
    let prefill_share = |cell: &Cell| {
        let (row, head) = cell.ceilings.row_seconds(decoder);
        // Logits are computed for one row only.
        (PREFILL as f64 * (row - head) + head) / cell.seconds
    };
    Report {
        threads: decoder.exec().threads(),
        simd: decoder.exec().simd().to_string(),
        dtype: main_dtype(decoder).to_string(),
        context: options.context,
        read_bandwidth_gb_s: over_rounds(&|round| bandwidth(&round.verify[&1]) / 1e9),
        region_us: over_rounds(&|round| round.verify[&1].ceilings.region * 1e6),
        weight_bytes,
        multiply_adds: decoder.linears().map(elements).sum(),
        peak_gmac_s: dtypes(decoder).iter().map(|dtype| dtype.to_string()).map(|d| (d.clone(), peak(&d))).collect(),
        decode_tok_s: over_rounds(&|round| 1.0 / round.verify[&1].seconds),
        bandwidth_fraction: over_rounds(&|round| {
            let one = &round.verify[&1];
            weight_bytes as f64 / one.seconds / bandwidth(one)
        }),
        verify_ms: by_rows(&|_, _, cell| cell.seconds * 1e3),
        verify_ratio: by_rows(&|round, _, cell| cell.seconds / round.verify[&1].seconds),
        limit_ms: by_rows(&|_, rows, cell| limit(rows, cell) * 1e3),
        over_limit: by_rows(&|_, rows, cell| cell.seconds / limit(rows, cell)),
        prefill_tok_s: over_rounds(&|round| PREFILL as f64 / round.prefill.seconds),
        prefill_fraction: over_rounds(&|round| prefill_share(&round.prefill)),
        peak_rss_bytes: None,
        op_share: BTreeMap::new(),
    }
}

/// The share of each op, in runs of their own, since timing costs a little.
fn op_shares(decoder: Decoder, bed: &mut Bed) -> BTreeMap<usize, BTreeMap<&'static str, f64>> {
    let profile = Arc::new(Profile::default());
    let decoder = decoder.with_profile(Arc::clone(&profile));
    bed.warm(&decoder);
    let shares = PROFILED_ROWS.map(|rows| {
        profile.take();
        let start = Instant::now();
        repeated(|| match rows {
            PREFILL => bed.prefill(&decoder),
            _ => bed.verify(&decoder, rows),
        });
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
