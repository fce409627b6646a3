//! What a proposer drafts must not depend on when it was asked before: its lanes are caught up with what it missed.

use super::{FakeHost, RecordedDraft, Runner};
use crate::author::Proposer;
use crate::types::{SamplingParams, SeqId, Token};

/// Length of the texts; a proposer that is never asked before has missed about as much.
const LEN: usize = 240;

/// The texts and drafts of three sequences of 240 tokens, the proposer asked before at the steps of the first 12 that
/// `is_asked` names.
///
/// # Panics
/// If the proposer refuses the options or fails.
pub fn drafts_when_asked<P: Proposer>(
    host: FakeHost,
    options: &str,
    sampling: SamplingParams,
    is_asked: fn(usize) -> bool,
) -> Vec<(Vec<Token>, RecordedDraft)> {
    let host = host.shared();
    let vocab = host.handle().target().vocab_size as u64;
    let options = toml::from_str(options).expect("options");
    let mut part = P::new(options, host.handle()).expect("the proposer");
    let mut runner = Runner::new(&host, &mut part, 1024).expect("its needs").with_sampling(sampling);
    let ids = [SeqId(1), SeqId(2), SeqId(3)];
    for id in ids {
        let prompt: Vec<Token> = (0..3 + 4 * id.0).map(|index| ((index * 5 + id.0) % vocab) as Token).collect();
        runner.admit(&mut part, id, &prompt, 4).expect("a prompt");
    }
    for step in 0..12 {
        runner.step(&mut part, &ids, if is_asked(step) { 1 } else { 0 }).expect("a step");
    }
    // Kept drafts made some texts longer; the toy's text is the same whatever was drafted.
    for id in ids {
        while runner.tokens(id).len() < LEN {
            runner.step(&mut part, &[id], 0).expect("a step without drafts");
        }
    }
    let made = runner.propose(&mut part, &ids, 9).expect("drafts").into_drafts();
    ids.iter().map(|id| runner.tokens(*id).to_vec()).zip(made).collect()
}

/// Compares drafts after a pause with those of a proposer that was asked at every step, and at every third.
///
/// # Panics
/// If they differ, or there are none.
pub fn assert_a_pause_changes_no_draft<P: Proposer>(host: impl Fn() -> FakeHost, options: &str) {
    for sampling in [SamplingParams::GREEDY, SamplingParams::default()] {
        let drafts = |is_asked| drafts_when_asked::<P>(host(), options, sampling, is_asked);
        let paused = drafts(|_| false);
        assert!(paused.iter().all(|(_, draft)| !draft.tokens().is_empty()), "{options}: there are no drafts");
        assert_eq!(drafts(|_| true), paused, "{options}: asked at every step");
        assert_eq!(drafts(|step| step % 3 == 0), paused, "{options}: asked at every third step");
    }
}
