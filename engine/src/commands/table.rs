//! Tables for people. Numbers that scripts need are in `--json`.

use std::fmt::Write;

use foretoken::Engine;
use foretoken::metrics::StatsReport;

/// What a run did: speed, tokens per pass, acceptance by position, and faults if there were any.
pub fn run_report(stats: &StatsReport, engine: &Engine) -> String {
    let mut text = String::new();
    let names: Vec<&str> = engine.config().proposers.iter().map(|proposer| proposer.name.as_str()).collect();
    let names = if names.is_empty() { "none (plain decoding)".to_owned() } else { names.join(", ") };
    let _ = writeln!(text, "proposer          {names}");
    let _ = writeln!(text, "tokens/s          {:.1}", stats.tokens_per_second);
    let _ = writeln!(text, "tokens per step   {:.2}   ({} passes of the target)", stats.tokens_per_step, stats.steps);
    if stats.drafted > 0 {
        let (rate, accepted, drafted) = (100.0 * stats.acceptance_rate, stats.accepted, stats.drafted);
        let _ = writeln!(text, "drafts kept       {accepted} of {drafted} ({rate:.0} %)");
        for (position, share) in stats.accepted_per_position.iter().take(16).enumerate() {
            let bar = "#".repeat((share * 30.0).round() as usize);
            let _ = writeln!(text, "  position {:<2}     {:>3.0} % {bar}", position + 1, 100.0 * share);
        }
    }
    let total = stats.draft_ms + stats.verify_ms + stats.overhead_ms;
    let _ = write!(
        text,
        "time              draft {:.1} ms, verify {:.1} ms, rest {:.1} ms of {total:.1} ms",
        stats.draft_ms, stats.verify_ms, stats.overhead_ms
    );
    if let Some(speedup) = stats.predicted_speedup.filter(|_| stats.drafted > 0) {
        let _ = write!(text, "\npredicted speedup {speedup:.2} x plain decoding");
    }
    for (name, faults, last) in engine.faults().filter(|(_, faults, _)| *faults > 0) {
        let _ = write!(text, "\nfaults            proposer `{name}`: {faults}, last: {}", last.unwrap_or("unknown"));
    }
    for (plugin, counters) in engine.counters() {
        for (counter, value) in counters {
            let _ = write!(text, "\n{plugin}.{counter} {value}");
        }
    }
    text
}
