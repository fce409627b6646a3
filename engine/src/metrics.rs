//! What a completion cost and what speculation did for it. Fixed-size counters: a step updates them without allocating.

use serde::Serialize;

/// Longest kept path that has a counter of its own.
pub const MAX_POSITIONS: usize = 64;

/// Counters of one completion.
#[derive(Debug, Clone, Default)]
pub struct SequenceStats {
    /// Target passes with a decode row of this sequence.
    pub steps: u64,
    /// Tokens those passes gave.
    pub tokens: u64,
    /// Nodes drafted.
    pub drafted: u64,
    /// Nodes kept.
    pub accepted: u64,
    /// Steps by what was kept; boxed, so that a sequence stays small to move.
    histograms: Box<Histograms>,
    /// Nanoseconds of proposers, its share by rows.
    pub draft_ns: u64,
    /// Nanoseconds of the target's passes and verification, its share by rows.
    pub verify_ns: u64,
    /// Nanoseconds of everything else, its share by rows.
    pub overhead_ns: u64,
    /// Nanoseconds from admission to the end.
    pub wall_ns: u64,
}

#[derive(Debug, Clone)]
struct Histograms {
    /// Steps by the length of the kept path.
    kept_lens: [u32; MAX_POSITIONS + 1],
    /// Steps with drafts by the share kept, in whole per cent.
    shares: [u32; 101],
}

impl Default for Histograms {
    fn default() -> Self {
        Self { kept_lens: [0; MAX_POSITIONS + 1], shares: [0; 101] }
    }
}

impl SequenceStats {
    /// Counts one decode step: its kept nodes and the model's own next token.
    pub fn decoded(&mut self, drafted: usize, accepted: usize) {
        self.decoded_to_stop(drafted, accepted);
        self.tokens += 1;
    }

    /// Counts a decode step that ended within its kept nodes.
    pub fn decoded_to_stop(&mut self, drafted: usize, accepted: usize) {
        self.steps += 1;
        self.tokens += accepted as u64;
        self.drafted += drafted as u64;
        self.accepted += accepted as u64;
        self.histograms.kept_lens[accepted.min(MAX_POSITIONS)] += 1;
        if let Some(share) = (100 * accepted).checked_div(drafted) {
            self.histograms.shares[share.min(100)] += 1;
        }
    }

    /// Adds another completion's counters.
    pub fn merge(&mut self, other: &Self) {
        self.steps += other.steps;
        self.tokens += other.tokens;
        self.drafted += other.drafted;
        self.accepted += other.accepted;
        self.histograms.kept_lens.iter_mut().zip(other.histograms.kept_lens).for_each(|(to, from)| *to += from);
        self.histograms.shares.iter_mut().zip(other.histograms.shares).for_each(|(to, from)| *to += from);
        self.draft_ns += other.draft_ns;
        self.verify_ns += other.verify_ns;
        self.overhead_ns += other.overhead_ns;
        self.wall_ns = self.wall_ns.max(other.wall_ns);
    }

    /// Mean tokens per target pass.
    pub fn tokens_per_step(&self) -> f64 {
        ratio(self.tokens, self.steps)
    }

    fn acceptance_p50(&self) -> f64 {
        let total: u32 = self.histograms.shares.iter().sum();
        let mut seen = 0;
        let median = self.histograms.shares.iter().position(|count| {
            seen += count;
            2 * seen >= total
        });
        if total == 0 { 0.0 } else { median.unwrap_or(0) as f64 / 100.0 }
    }

    /// `[i]`: share of steps whose kept path is longer than `i`.
    pub fn accepted_per_position(&self) -> Vec<f64> {
        let longest = self.histograms.kept_lens.iter().rposition(|count| *count > 0).unwrap_or(0);
        let longer =
            |position: usize| self.histograms.kept_lens[position + 1..].iter().map(|count| u64::from(*count)).sum();
        (0..longest).map(|position| ratio(longer(position), self.steps)).collect()
    }

    /// The numbers that `run --json` prints. `plain_step_ms` is the measured cost of a step of plain decoding here.
    pub fn report(&self, plain_step_ms: Option<f64>) -> StatsReport {
        let milliseconds = |ns: u64| ns as f64 / 1e6;
        let spent = milliseconds(self.draft_ns + self.verify_ns + self.overhead_ns);
        let predicted = plain_step_ms.map(|plain| if spent > 0.0 { self.tokens as f64 * plain / spent } else { 0.0 });
        StatsReport {
            steps: self.steps,
            drafted: self.drafted,
            accepted: self.accepted,
            acceptance_rate: ratio(self.accepted, self.drafted),
            acceptance_p50: self.acceptance_p50(),
            tokens_per_step: self.tokens_per_step(),
            accepted_per_position: self.accepted_per_position(),
            draft_ms: milliseconds(self.draft_ns),
            verify_ms: milliseconds(self.verify_ns),
            overhead_ms: milliseconds(self.overhead_ns),
            tokens_per_second: if self.wall_ns == 0 { 0.0 } else { self.tokens as f64 * 1e9 / self.wall_ns as f64 },
            predicted_speedup: predicted,
        }
    }
}

fn ratio(of: u64, all: u64) -> f64 {
    if all == 0 { 0.0 } else { of as f64 / all as f64 }
}

/// The `stats` object of `run --json`.
#[derive(Debug, Clone, Serialize)]
pub struct StatsReport {
    /// Target passes with a decode row.
    pub steps: u64,
    /// Nodes drafted.
    pub drafted: u64,
    /// Nodes kept.
    pub accepted: u64,
    /// Kept per drafted.
    pub acceptance_rate: f64,
    /// Median over steps of the share kept.
    pub acceptance_p50: f64,
    /// Mean tokens per pass.
    pub tokens_per_step: f64,
    /// `[i]`: share of steps whose kept path is longer than `i`.
    pub accepted_per_position: Vec<f64>,
    /// Time in proposers.
    pub draft_ms: f64,
    /// Time in the target's passes and verification.
    pub verify_ms: f64,
    /// Time in everything else.
    pub overhead_ms: f64,
    /// Tokens per second of wall time.
    pub tokens_per_second: f64,
    /// Tokens times the cost of a plain step, over the time spent; `null` if no plain step was measured.
    pub predicted_speedup: Option<f64>,
}
