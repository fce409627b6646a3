//! Long service: memory does not grow and slots balance. A test binary of its own, because resident memory is the whole
//! process's, and other tests beside it would be measured too.

// Shared with the other test binary, which uses all of it.
#[allow(dead_code)]
#[path = "engine/support.rs"]
mod support;

use foretoken::Request;
use foretoken::config::Sampling;
use foretoken_plugin_api::SamplingParams;

use support::{NGRAM, balanced, engine, greedy};

/// 10,000 short requests: memory is flat after the first 1,000, and slots balance.
#[test]
fn long_service_does_not_grow() {
    let mut engine = engine(&format!("{NGRAM}[kv]\nnum_slots = 4096\n"));
    let params = SamplingParams { temperature: 1.0, top_k: 20, ..SamplingParams::GREEDY };
    let mut after_warm_up = 0;
    for batch in 0..100_u32 {
        for index in 0..100_u32 {
            let sampling = Sampling { params, seed: u64::from(index), ..greedy(2 + (index % 3) as usize) };
            let prompt = vec![0, 10 + (batch * 100 + index) % 3000, 20 + index, 7];
            engine.submit(Request { prompt, sampling, text: index % 10 == 0 }).expect("good");
        }
        engine.run(&mut |_| ());
        if batch == 10 {
            after_warm_up = resident_kilobytes();
        }
    }
    balanced(&mut engine);
    let grown = resident_kilobytes().saturating_sub(after_warm_up);
    assert!(grown < 4096, "resident memory grew by {grown} KiB after the first 1,000 requests");
}

fn resident_kilobytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").expect("Linux");
    let line = text.lines().find(|line| line.starts_with("VmRSS:")).expect("VmRSS");
    line.split_whitespace().nth(1).and_then(|number| number.parse().ok()).expect("a number")
}
