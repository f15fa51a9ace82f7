//! The verbs conformance suite: what every device behind the verbs boundary must do.
//!
//! It is written once, against [`longhaul_verbs`], and runs on every device: on the software RNIC over a virtual
//! port, on the same over UDP sockets, on Linux Soft-RoCE and on RNICs through libibverbs. What differs between
//! them (how time passes, how long to wait) is an [`Environment`].
//!
//! A [`Test`] has a stable name (`transport/subject/case`), the capabilities that it needs, and a function. The same
//! [`registry`] serves `cargo test` and `longhaul conformance`. A test whose capabilities a device does not have is
//! skipped, and the report says so. Where devices in the field are known to depart from the specification without harm,
//! a lenient environment turns the failure into a departure, and so does the table of [`KNOWN_DEPARTURES`] of a driver.
//!
//! References are to the InfiniBand Architecture Specification, volume 1, release 1.3 and later ("IBTA").

mod async_errors;
mod atomics;
mod attempts;
mod capabilities;
mod context;
mod datagram;
mod descriptors;
mod destroy;
mod drain;
mod environment;
mod error_completions;
mod errors_local;
mod errors_read;
mod errors_remote;
mod errors_unreliable;
mod events;
mod failure;
mod fence;
mod flush;
mod invalidate;
mod keys;
mod known_departures;
mod memory;
mod moderation;
mod multicast;
mod null_region;
mod pair;
mod port_events;
mod queries;
mod queues;
mod read;
mod read_atomic_limits;
mod read_states;
mod real_time;
mod report;
mod scatter_gather;
mod shared_receive;
mod shared_receive_limits;
mod slotted;
mod slotted_binding;
mod state_table;
mod states;
mod test;
mod transfer;
mod transfer_forms;
mod virtual_time;
mod windows;
mod windows_binding;
mod windows_ending;

use std::panic::{AssertUnwindSafe, catch_unwind};

pub use context::Context;
pub use environment::Environment;
pub use failure::{Failure, Outcome};
pub use known_departures::{KNOWN_DEPARTURES, KnownDeparture, Shown, known_departures};
pub use real_time::{DeviceEnd, RealTime};
pub use report::{Remark, Report, Verdict};
pub use test::Test;
pub use virtual_time::VirtualTime;

use failure::FailureKind;

/// Tests that belong together: those of one file.
#[derive(Clone, Copy)]
pub struct Group {
    /// The file.
    pub name: &'static str,
    /// Its tests.
    pub tests: fn() -> Vec<Test>,
}

/// All groups, from what everything rests on to what may be missing.
pub const GROUPS: &[Group] = &[
    Group { name: "queries", tests: queries::tests },
    Group { name: "capabilities", tests: capabilities::tests },
    Group { name: "transfer", tests: transfer::tests },
    Group { name: "transfer_forms", tests: transfer_forms::tests },
    Group { name: "scatter_gather", tests: scatter_gather::tests },
    Group { name: "read", tests: read::tests },
    Group { name: "atomics", tests: atomics::tests },
    Group { name: "fence", tests: fence::tests },
    Group { name: "read_atomic_limits", tests: read_atomic_limits::tests },
    Group { name: "datagram", tests: datagram::tests },
    Group { name: "multicast", tests: multicast::tests },
    Group { name: "queues", tests: queues::tests },
    Group { name: "state_table", tests: state_table::tests },
    Group { name: "states", tests: states::tests },
    Group { name: "flush", tests: flush::tests },
    Group { name: "read_states", tests: read_states::tests },
    Group { name: "error_completions", tests: error_completions::tests },
    Group { name: "errors_local", tests: errors_local::tests },
    Group { name: "errors_remote", tests: errors_remote::tests },
    Group { name: "errors_read", tests: errors_read::tests },
    Group { name: "errors_unreliable", tests: errors_unreliable::tests },
    Group { name: "keys", tests: keys::tests },
    Group { name: "events", tests: events::tests },
    Group { name: "descriptors", tests: descriptors::tests },
    Group { name: "moderation", tests: moderation::tests },
    Group { name: "async_errors", tests: async_errors::tests },
    Group { name: "port_events", tests: port_events::tests },
    Group { name: "destroy", tests: destroy::tests },
    Group { name: "drain", tests: drain::tests },
    Group { name: "shared_receive", tests: shared_receive::tests },
    Group { name: "shared_receive_limits", tests: shared_receive_limits::tests },
    Group { name: "null_region", tests: null_region::tests },
    Group { name: "slotted", tests: slotted::tests },
    Group { name: "slotted_binding", tests: slotted_binding::tests },
    Group { name: "windows", tests: windows::tests },
    Group { name: "windows_binding", tests: windows_binding::tests },
    Group { name: "windows_ending", tests: windows_ending::tests },
    Group { name: "invalidate", tests: invalidate::tests },
];

/// All tests, in the order in which they run.
pub fn registry() -> Vec<Test> {
    GROUPS.iter().flat_map(|group| (group.tests)()).collect()
}

/// Runs tests one after the other. `observe` is called for each as it ends.
pub fn run(environment: &mut dyn Environment, tests: &[Test], mut observe: impl FnMut(&Test, &Verdict)) -> Report {
    let mut report = Report::default();
    for test in tests {
        let known = environment.known_departures().iter().find(|departure| departure.is_shown_by(test.name())).copied();
        let verdict = run_one(environment, test, known);
        observe(test, &verdict);
        report.enter(test.name(), verdict, known.is_some_and(|known| known.shown == Shown::Always));
    }
    report
}

fn run_one(environment: &mut dyn Environment, test: &Test, known: Option<KnownDeparture>) -> Verdict {
    let mut context = Context::new(environment);
    let missing = match context.capabilities() {
        Ok(capabilities) => test.needs() - capabilities,
        Err(failure) => return Verdict::Failed(failure.message),
    };
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter_names().map(|(name, _)| name).collect();
        return Verdict::Skipped(names.join(" | "));
    }
    if let Some(known) = known.filter(|known| known.shown == Shown::NotRun) {
        return Verdict::Departed(format!("{} (not run)", known.reason));
    }
    // Nothing that a test leaves behind after a panic is used by another: each makes its own objects.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        context.forget_events()?;
        (test.function)(&mut context)
    }));
    let outcome = outcome.unwrap_or_else(|panic| {
        let text = panic
            .downcast_ref::<&str>()
            .map(|text| (*text).to_owned())
            .or_else(|| panic.downcast_ref::<String>().cloned())
            .unwrap_or_else(|| "with something that is not text".to_owned());
        Err(Failure::new(format!("panicked: {text}")))
    });
    match (outcome, known) {
        (Ok(()), _) if context.departures.is_empty() => Verdict::Passed,
        (Ok(()), None) => Verdict::Departed(context.departures.join("; ")),
        (Ok(()), Some(known)) => Verdict::Departed(format!("{} ({})", known.reason, context.departures.join("; "))),
        (Err(failure), _) if failure.kind == FailureKind::NotApplicable => Verdict::Skipped(failure.message),
        (Err(failure), None) => Verdict::Failed(failure.message),
        (Err(failure), Some(known)) => Verdict::Departed(format!("{} ({})", known.reason, failure.message)),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use longhaul_time::Duration;
    use longhaul_verbs::{Capabilities, Device, Mtu};

    use super::failure::equal;
    use super::*;

    #[test]
    fn names_are_unique_and_of_one_form() {
        let is_word = |part: &str| {
            !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
        };
        let mut seen = BTreeSet::new();
        for test in registry() {
            let name = test.name().to_owned();
            assert!(name.split('/').count() >= 2 && name.split('/').all(is_word), "{name}");
            assert!(seen.insert(name.clone()), "{name} is there twice");
        }
    }

    /// As software RNICs on virtual time, but with an indulgent judge, and known departures.
    struct Lenient(VirtualTime, Vec<KnownDeparture>);

    impl Environment for Lenient {
        fn devices(&self) -> [&Device; 2] {
            self.0.devices()
        }
        fn gid_index(&self, end: usize) -> u8 {
            self.0.gid_index(end)
        }
        fn mtu(&self) -> Mtu {
            self.0.mtu()
        }
        fn progress(&mut self) {
            self.0.progress();
        }
        fn now(&self) -> Duration {
            self.0.now()
        }
        fn patience(&self) -> u32 {
            self.0.patience()
        }
        fn quiet(&self) -> u32 {
            self.0.quiet()
        }
        fn is_strict(&self) -> bool {
            false
        }
        fn known_departures(&self) -> &[KnownDeparture] {
            &self.1
        }
    }

    fn samples() -> Vec<Test> {
        let none = Capabilities::empty();
        vec![
            Test::new("sample/good", none, |_| Ok(())),
            Test::new("sample/bad", none, |_| equal("number", 1, 2)),
            Test::new("sample/panics", none, |_| panic!("out of order")),
            Test::new("sample/needs", Capabilities::DMA_BUF, |_| Ok(())),
            Test::new("sample/pointless", none, |_| Err(Failure::not_applicable("a third address"))),
            Test::new("sample/departs", none, |context| context.tolerate(equal("number", 1, 2))),
        ]
    }

    fn remark(test: &str, message: &str) -> Remark {
        Remark { test: test.to_owned(), message: message.to_owned() }
    }

    #[test]
    fn a_report_says_what_came_of_each() {
        let mut observed = 0;
        let report = run(&mut VirtualTime::new(0), &samples(), |_, _| observed += 1);
        assert_eq!(observed, 6);
        assert_eq!(report.passed, ["sample/good"]);
        let wrong = "number: expected 1, got 2";
        let failed = [
            remark("sample/bad", wrong),
            remark("sample/panics", "panicked: out of order"),
            remark("sample/departs", wrong),
        ];
        assert_eq!(report.failed, failed);
        let skipped = [remark("sample/needs", "DMA_BUF"), remark("sample/pointless", "a third address")];
        assert_eq!(report.skipped, skipped);
        assert_eq!(report.departures, []);
        assert!(!report.is_good());
    }

    #[test]
    fn a_lenient_environment_reports_departures_apart() {
        let report = run(&mut Lenient(VirtualTime::new(0), Vec::new()), &samples()[5..], |_, _| ());
        assert_eq!(report.passed, [""; 0]);
        assert_eq!(report.departures, [remark("sample/departs", "number: expected 1, got 2")]);
        assert!(report.is_good());
    }

    #[test]
    fn known_departures_are_neither_passed_nor_failed() {
        let known = |tests: &'static [&'static str], shown| KnownDeparture {
            driver: "sample",
            tests,
            shown,
            reason: "counts differently",
        };
        // The one that panics is not run; the one that is good has become better than the table.
        let departures = vec![
            known(&["sample/b*"], Shown::Sometimes),
            known(&["sample/panics"], Shown::NotRun),
            known(&["sample/good"], Shown::Always),
        ];
        let report = run(&mut Lenient(VirtualTime::new(0), departures), &samples()[..4], |_, _| ());
        assert_eq!(report.passed, ["sample/good"]);
        assert_eq!(report.unexpectedly_passed, ["sample/good"]);
        assert_eq!(report.failed, []);
        let departed = [
            remark("sample/bad", "counts differently (number: expected 1, got 2)"),
            remark("sample/panics", "counts differently (not run)"),
        ];
        assert_eq!(report.departures, departed);
    }
}
