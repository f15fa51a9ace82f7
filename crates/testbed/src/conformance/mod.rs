//! The verbs conformance suite: what every device behind the verbs boundary must do.
//!
//! It is written once, against [`longhaul_verbs`], and runs on every device: on the software RNIC over a virtual
//! port, on the same over UDP sockets, on Linux Soft-RoCE and on RNICs through libibverbs. What differs between
//! them (how time passes, how long to wait) is an [`Environment`].
//!
//! A [`Test`] has a stable name (`transport/subject/case`), the capabilities that it needs, and a function. The same
//! [`registry`] serves `cargo test` and `longhaul conformance`. A test whose capabilities a device does not have is
//! skipped, and the report says so. Where devices in the field are known to depart from the specification without
//! harm, a lenient environment turns the failure into a remark in the report.
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
mod scatter_gather;
mod shared_receive;
mod shared_receive_limits;
mod slotted;
mod slotted_binding;
mod state_table;
mod states;
mod transfer;
mod transfer_forms;
mod virtual_time;
mod windows;
mod windows_binding;
mod windows_ending;

use std::panic::{AssertUnwindSafe, catch_unwind};

use longhaul_time::Duration;
use longhaul_verbs::{Capabilities, Device, Mtu};
use longhaul_wire::UDP_PORT_ROCE;

pub use context::Context;
pub use failure::{Failure, Outcome};
pub use real_time::RealTime;
pub use virtual_time::VirtualTime;

use failure::FailureKind;

/// Where the suite runs: two devices (or twice the same) that can reach each other through their first ports, over a
/// network that loses nothing, at well under a millisecond.
pub trait Environment {
    /// The devices of the two ends.
    fn devices(&self) -> [&Device; 2];
    /// The row of the GID table that each end uses.
    fn gid_index(&self, end: usize) -> u8;
    /// The UDP port at which each end listens.
    fn udp_port(&self, _end: usize) -> u16 {
        UDP_PORT_ROCE
    }
    /// The MTU of the path between them.
    fn mtu(&self) -> Mtu;
    /// Let a little time pass: some 100 µs.
    fn progress(&mut self);
    /// The time, from any beginning.
    fn now(&self) -> Duration;
    /// How many calls of `progress` to wait for something before it counts as never happening. In time at least a
    /// second: error tests wait for retries to run out.
    fn patience(&self) -> u32;
    /// After how many calls of `progress` it is believed that nothing happens any more. In time at least 10 ms.
    fn quiet(&self) -> u32;
    /// Takes down or brings up the link of an end's port, where the environment can; whether it can. Tests leave it up.
    fn set_link(&mut self, _end: usize, _up: bool) -> bool {
        false
    }
    /// Whether departures from the specification that are common in the field are failures rather than remarks.
    fn is_strict(&self) -> bool {
        true
    }
}

/// One test of the suite.
pub struct Test {
    name: String,
    needs: Capabilities,
    function: Box<dyn Fn(&mut Context<'_>) -> Outcome>,
}

impl Test {
    /// A test by its name, `transport/subject/case`, and the capabilities that it needs.
    pub fn new(
        name: impl Into<String>,
        needs: Capabilities,
        function: impl Fn(&mut Context<'_>) -> Outcome + 'static,
    ) -> Self {
        Test { name: name.into(), needs, function: Box::new(function) }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What a device must be able to do for it.
    pub fn needs(&self) -> Capabilities {
        self.needs
    }
}

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

/// A test and what is to be said of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Remark {
    /// The test's name.
    pub test: String,
    /// What happened; for a skipped test, the missing capability.
    pub message: String,
}

/// What came of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Names of the tests that passed.
    pub passed: Vec<String>,
    /// Tests that did not, and why.
    pub failed: Vec<Remark>,
    /// Tests that were not run, and which capability was missing.
    pub skipped: Vec<Remark>,
    /// Where the device departs from the specification in a way that a lenient environment lets pass.
    pub departures: Vec<Remark>,
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
}

/// Runs tests one after the other. `observe` is told of each as it ends.
pub fn run(environment: &mut dyn Environment, tests: &[Test], mut observe: impl FnMut(&Test, &Verdict)) -> Report {
    let mut report = Report::default();
    for test in tests {
        let verdict = run_one(environment, test, &mut report.departures);
        observe(test, &verdict);
        let remark = |message| Remark { test: test.name.clone(), message };
        match verdict {
            Verdict::Passed => report.passed.push(test.name.clone()),
            Verdict::Failed(message) => report.failed.push(remark(message)),
            Verdict::Skipped(message) => report.skipped.push(remark(message)),
        }
    }
    report
}

fn run_one(environment: &mut dyn Environment, test: &Test, departures: &mut Vec<Remark>) -> Verdict {
    let mut context = Context::new(environment);
    let missing = match context.capabilities() {
        Ok(capabilities) => test.needs - capabilities,
        Err(failure) => return Verdict::Failed(failure.message),
    };
    if !missing.is_empty() {
        let names: Vec<&str> = missing.iter_names().map(|(name, _)| name).collect();
        return Verdict::Skipped(names.join(" | "));
    }
    // Nothing that a test leaves behind after a panic is used by another: each makes its own objects.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        context.forget_events()?;
        (test.function)(&mut context)
    }));
    departures.extend(context.departures.drain(..).map(|message| Remark { test: test.name.clone(), message }));
    match outcome {
        Ok(Ok(())) => Verdict::Passed,
        Ok(Err(failure)) if failure.kind == FailureKind::NotApplicable => Verdict::Skipped(failure.message),
        Ok(Err(failure)) => Verdict::Failed(failure.message),
        Err(panic) => {
            let text = panic
                .downcast_ref::<&str>()
                .map(|text| (*text).to_owned())
                .or_else(|| panic.downcast_ref::<String>().cloned())
                .unwrap_or_else(|| "with something that is not text".to_owned());
            Verdict::Failed(format!("panicked: {text}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// As software RNICs on virtual time, but with an indulgent judge.
    struct Lenient(VirtualTime);

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
        let wrong = "number: expected 1, came 2";
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
        let report = run(&mut Lenient(VirtualTime::new(0)), &samples()[5..], |_, _| ());
        assert_eq!(report.passed, ["sample/departs"]);
        assert_eq!(report.departures, [remark("sample/departs", "number: expected 1, came 2")]);
        assert!(report.is_good());
    }
}
