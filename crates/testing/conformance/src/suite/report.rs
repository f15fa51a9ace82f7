//! The outcome of a run of the suite.

/// A test and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The test's name.
    pub test: String,
    /// What happened; for a skipped test, the missing capability.
    pub message: String,
}

/// The outcome of a run. Every test is in exactly one of the first four.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Names of the tests that passed.
    pub passed: Vec<String>,
    /// Tests that did not, and why.
    pub failed: Vec<Remark>,
    /// Tests that were not run, and which capability was missing.
    pub skipped: Vec<Remark>,
    /// Tests that showed how the device departs from the specification: in a way that is known of its driver
    /// ([`KNOWN_DEPARTURES`](super::KNOWN_DEPARTURES)), or in one that a lenient environment lets pass. They count
    /// neither as passed nor as failed.
    pub departures: Vec<Remark>,
    /// Names of the tests that passed although their driver is known to depart there. They are in `passed` too: the
    /// device has become better than the table, and the table wants a look.
    pub unexpectedly_passed: Vec<String>,
}

impl Report {
    /// Whether nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty()
    }

    /// A panic with all failures, for use in `cargo test`.
    pub fn assert_good(&self) {
        let failures: Vec<String> =
            self.failed.iter().map(|remark| format!("{}: {}", remark.test, remark.message)).collect();
        assert!(
            failures.is_empty(),
            "{} of {} tests failed:\n{}",
            failures.len(),
            failures.len() + self.passed.len(),
            failures.join("\n")
        );
    }

    /// Enters what became of a test. `is_known_departure`: its driver was expected to depart.
    pub(super) fn enter(&mut self, test: &str, verdict: Verdict, is_known_departure: bool) {
        let remark = |message| Remark { test: test.to_owned(), message };
        match verdict {
            Verdict::Passed => {
                self.passed.push(test.to_owned());
                if is_known_departure {
                    self.unexpectedly_passed.push(test.to_owned());
                }
            }
            Verdict::Failed(message) => self.failed.push(remark(message)),
            Verdict::Skipped(message) => self.skipped.push(remark(message)),
            Verdict::Departed(message) => self.departures.push(remark(message)),
        }
    }
}

/// What became of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passed.
    Passed,
    /// It did not, for this reason.
    Failed(String),
    /// It was not run: this capability is missing.
    Skipped(String),
    /// The device departs from the specification, in this known or harmless way.
    Departed(String),
}
