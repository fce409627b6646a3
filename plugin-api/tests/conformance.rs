//! The suites judged: parts that hold pass, and each broken part is caught by the check that names its fault.

mod parts;

use foretoken_plugin_api::testkit::conformance::{self, Fixture};
use foretoken_plugin_api::testkit::{FakeHost, Outcome, Report, ToyModel};
use parts::kv::Stack;
use parts::proposer::Drafter;
use parts::sampler::{Rejecting, Sampled};
use parts::scheduler::Fcfs;

fn fixture(fault: &str) -> Fixture {
    // Every token matters to this toy, so a slot mixed up anywhere changes its logits.
    let toy = || ToyModel::new(16, 5).with_order(usize::MAX);
    Fixture::new(&format!("fault = {fault:?}")).with_host(move || FakeHost::new(toy()).with_model("draft", toy()))
}

/// Some check whose name contains `check` failed, and for the reason given.
fn assert_caught(report: &Report, fault: &str, check: &str, reason: &str) {
    let names = |found: &foretoken_plugin_api::testkit::Check| {
        let text = match &found.outcome {
            Outcome::Failed(text) => text,
            _ => return false,
        };
        found.name.contains(check) && text.contains(reason)
    };
    for way in ["direct: ", "abi: "] {
        let caught = report.failures().any(|found| found.name.starts_with(way) && names(found));
        assert!(caught, "{fault:?} was not caught by {way}{check:?} for {reason:?}:\n{report}");
    }
}

#[test]
fn parts_that_hold_pass_directly_and_through_the_abi() {
    let reports = [
        conformance::proposer::<Drafter>(&fixture("")),
        conformance::sampler::<Sampled>(&fixture("")),
        conformance::sampler::<Rejecting>(&fixture("")),
        conformance::scheduler::<Fcfs>(&fixture("")),
        conformance::kv::<Stack>(&fixture("")),
    ];
    for report in reports {
        report.assert_passed();
        let skipped = report.checks.iter().filter(|check| matches!(check.outcome, Outcome::Skipped(_))).count();
        assert!(report.checks.len() > 2 * skipped, "{report}");
    }
}

#[test]
fn broken_proposers_are_caught() {
    let cases = [
        ("ignores budget", "budget 0", "the draft budget of this sequence is used up"),
        ("bad token", "within the budget and are valid", "vocabulary"),
        ("branches", "within the budget and are valid", "chains"),
        ("understates", "within the budget and are valid", "Needs::max_draft is 1"),
        ("hides draws", "temperature 1", "Needs::draws"),
        ("first of a batch only", "a batch of 1", "alone"),
        ("empty batch", "an empty batch", "nothing to commit"),
        ("unknown finish", "finish of an unknown", "panicked"),
    ];
    for (fault, check, reason) in cases {
        assert_caught(&conformance::proposer::<Drafter>(&fixture(fault)), fault, check, reason);
    }
}

#[test]
fn a_part_that_refuses_the_fake_host_is_skipped_not_passed() {
    let report = conformance::proposer::<Drafter>(&fixture("refuse"));
    assert!(!report.passed() && report.failures().next().is_none(), "{report}");
    assert!(report.to_string().contains("this target has no heads"), "{report}");
}

#[test]
fn broken_samplers_are_caught() {
    let sampled = [
        ("reuses noise", "lossless with no draft", "its probability is"),
        ("noise of the step", "drafter_invariant", "without a draft"),
        ("ignores temperature", "lossless with no draft", "its probability is"),
        ("keeps nothing", "greedy_exact", "a right guess"),
        ("skips the parent", "contiguous", "kept 3"),
    ];
    for (fault, check, reason) in sampled {
        assert_caught(&conformance::sampler::<Sampled>(&fixture(fault)), fault, check, reason);
    }
}

#[test]
fn broken_acceptance_rules_are_caught() {
    let rejecting = [
        ("swaps", "lossless with a drawn chain", "its probability is"),
        ("no residual", "lossless with a pushed chain", "its probability is"),
        ("ignores draft_prob", "lossless with a drawn chain", "its probability is"),
        ("forgets drawn tokens", "lossless with a tree drawn without replacement", "its probability is"),
        ("claims invariance", "drafter_invariant", "without a draft"),
    ];
    for (fault, check, reason) in rejecting {
        assert_caught(&conformance::sampler::<Rejecting>(&fixture(fault)), fault, check, reason);
    }
}

#[test]
fn broken_schedulers_are_caught() {
    let cases = [
        ("too many rows", "drains", "uncomputed"),
        ("duplicates", "drains", "named twice"),
        ("unknown id", "drains", "not in the queue"),
        ("drafts everywhere", "drafts fit", "slots"),
        ("forgets cached", "cached slots", "ran nothing"),
        ("never preempts", "scarce", "ran nothing"),
        ("splits pairs", "pair", "companion"),
    ];
    for (fault, check, reason) in cases {
        assert_caught(&conformance::scheduler::<Fcfs>(&fixture(fault)), fault, check, reason);
    }
}

#[test]
fn broken_kv_managers_are_caught() {
    let cases = [
        ("partial reserve", "all or nothing", "balance"),
        ("hands out twice", "random", ""),
        ("reverses", "in order", "expected"),
        ("leaks on commit", "random", "available in the end"),
        ("leaks on rollback", "rollback frees", "available"),
        ("uncounted fork", "fork shares", ""),
        ("frees shared", "fork shares", ""),
        ("miscounts", "random", "balance"),
    ];
    for (fault, check, reason) in cases {
        assert_caught(&conformance::kv::<Stack>(&fixture(fault)), fault, check, reason);
    }
}
