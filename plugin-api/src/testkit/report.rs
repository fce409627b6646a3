//! What a conformance suite found: a list of named checks, so that a program can print it and a test can assert it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// How a check ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It holds.
    Passed,
    /// It does not; with what was expected, got, where.
    Failed(String),
    /// It could not be asked; with the reason.
    Skipped(String),
}

/// One named check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Check {
    /// What was checked.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
}

/// The checks of one part.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Report {
    /// In the order they ran.
    pub checks: Vec<Check>,
}

impl Report {
    /// Whether nothing failed and something passed.
    pub fn passed(&self) -> bool {
        self.failures().next().is_none() && self.checks.iter().any(|check| check.outcome == Outcome::Passed)
    }

    /// The checks that failed.
    pub fn failures(&self) -> impl Iterator<Item = &Check> {
        self.checks.iter().filter(|check| matches!(check.outcome, Outcome::Failed(_)))
    }

    /// Appends the checks of `other`, each name prefixed with `what`.
    pub fn absorb(&mut self, what: &str, other: Self) {
        let rename = |check: Check| Check { name: format!("{what}: {}", check.name), ..check };
        self.checks.extend(other.checks.into_iter().map(rename));
    }

    /// Fails the calling test unless [`Self::passed`].
    ///
    /// # Panics
    /// With the whole report.
    pub fn assert_passed(&self) {
        assert!(self.passed(), "conformance:\n{self}");
    }

    pub(super) fn run(&mut self, name: &str, check: impl FnOnce() -> Result<(), String>) {
        let panicked = |payload: Box<dyn std::any::Any + Send>| {
            let text = payload.downcast_ref::<String>().map(String::as_str);
            Err(format!("panicked: {}", text.or(payload.downcast_ref::<&str>().copied()).unwrap_or("no message")))
        };
        let result = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(panicked);
        let outcome = result.map_or_else(Outcome::Failed, |()| Outcome::Passed);
        self.checks.push(Check { name: name.to_owned(), outcome });
    }

    pub(super) fn skip(&mut self, name: &str, reason: impl Into<String>) {
        self.checks.push(Check { name: name.to_owned(), outcome: Outcome::Skipped(reason.into()) });
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.checks {
            match &check.outcome {
                Outcome::Passed => writeln!(formatter, "ok    {}", check.name)?,
                Outcome::Failed(reason) => writeln!(formatter, "FAIL  {}: {reason}", check.name)?,
                Outcome::Skipped(reason) => writeln!(formatter, "skip  {}: {reason}", check.name)?,
            }
        }
        Ok(())
    }
}

/// A failed expectation, for `Result<(), String>` checks.
pub(super) fn ensure(holds: bool, reason: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(reason()) }
}
