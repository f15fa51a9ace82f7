//! Where drivers are known to depart from the specification, so that a run tells what is new from what is old.
//!
//! An entry is the last resort. A test that asks for more than the specification is mended; what a driver lacks is a capability, and
//! its tests are skipped. Here stands what remains: the driver claims it and does something else. Such a test is run all the same (but
//! for those that the kernel does not survive), counts neither as passed nor as failed, and one that passes is
//! reported, so that the table does not outlive its reasons.

/// A departure that is known of a driver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KnownDeparture {
    /// The driver, by the name of its kernel module without `_ib` and the like: `rxe`, `mlx5`.
    pub driver: &'static str,
    /// The tests that show it: names, in which `*` stands for any text.
    pub tests: &'static [&'static str],
    /// How they show it.
    pub shown: Shown,
    /// What the driver does instead, in a sentence.
    pub reason: &'static str,
}

/// How a test shows a departure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Whenever it is run.
    Always,
    /// Now and then: it hangs on who is first in a race. That it passes says nothing.
    Sometimes,
    /// It is not run, because the kernel would not survive it.
    NotRun,
}

/// All that are known.
pub const KNOWN_DEPARTURES: &[KnownDeparture] = &[KnownDeparture {
    driver: RXE,
    tests: &["*/window-type-2/end/queue-pair-destroyed", "*/window-type-2/end/free-after-its-queue-pair"],
    shown: Shown::NotRun,
    reason: "A type 2 window holds a reference to the queue pair through which it was bound: destroying that waits in vain in the \
                 kernel, for many seconds, and ends with a warning (rxe_destroy_qp).",
}];

/// Linux Soft-RoCE. What stands here was found on Linux 6.1 with rdma-core 44.
const RXE: &str = "rxe";

impl KnownDeparture {
    /// Whether a test is one that shows it.
    pub fn is_shown_by(&self, test: &str) -> bool {
        self.tests.iter().any(|form| matches(form, test))
    }
}

/// The departures that are known of a driver.
pub fn known_departures(driver: &str) -> Vec<KnownDeparture> {
    KNOWN_DEPARTURES.iter().filter(|departure| departure.driver == driver).copied().collect()
}

/// Whether a text is of a form in which `*` stands for any text.
fn matches(form: &str, text: &str) -> bool {
    match form.split_once('*') {
        None => form == text,
        Some((head, tail)) => text.strip_prefix(head).is_some_and(|rest| {
            // Every place where the rest may begin; forms are short, and so are names.
            (0..=rest.len()).any(|skipped| rest.is_char_boundary(skipped) && matches(tail, &rest[skipped..]))
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry;
    use super::*;

    #[test]
    fn a_star_stands_for_any_text() {
        assert!(matches("rc/send/mtu", "rc/send/mtu"));
        assert!(!matches("rc/send/mtu", "rc/send/mtu-plus-one"));
        assert!(matches("rc/send/*", "rc/send/mtu-plus-one"));
        assert!(matches("*/send/*-one", "uc/send/mtu-plus-one"));
        assert!(!matches("*/send/*-one", "uc/write/mtu-plus-one"));
        assert!(!matches("rc/*/mtu", "uc/send/mtu"));
    }

    /// An entry for a test that was renamed would hide nothing and explain nothing.
    #[test]
    fn every_departure_is_shown_by_a_test_and_no_test_by_two() {
        let tests = registry();
        for departure in KNOWN_DEPARTURES {
            for form in departure.tests {
                assert!(tests.iter().any(|test| matches(form, test.name())), "no test is {form}");
            }
        }
        for test in &tests {
            for departure in KNOWN_DEPARTURES {
                let same = known_departures(departure.driver);
                let count = same.iter().filter(|known| known.is_shown_by(test.name())).count();
                assert!(count <= 1, "{} is listed {count} times for {}", test.name(), departure.driver);
            }
        }
    }
}
