//! Where drivers are known to depart from the specification, so that a run distinguishes new departures from known
//! ones.
//!
//! An entry is the last resort. A test that asks for more than the specification is fixed; what a driver lacks is a
//! capability, and its tests are skipped. Here stands what remains: the driver claims it and does something else. Such
//! a test is run all the same (but for those that the kernel does not survive), counts neither as passed nor as failed,
//! and one that passes is reported, so that the table does not outlive its reasons.

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
pub const KNOWN_DEPARTURES: &[KnownDeparture] = &[
    KnownDeparture {
        driver: RXE,
        tests: &[
            "*/flush/after-a-failed-send",
            "*/local-protection/send-unknown-key",
            "*/local-protection/send-deregistered",
            "*/local-protection/send-other-domain",
            "*/local-protection/send-second-entry-bad",
            "*/local-protection/write-unknown-key",
            "*/local-protection/write-deregistered",
            "*/local-protection/write-other-domain",
            "*/local-protection/write-second-entry-bad",
            "*/local-protection/unsignaled-still-completes",
            "*/local-protection/second-packet",
            "rc/error-completions/send*-local-protection",
            "rc/error-completions/write*-local-protection",
            "rc/error-completions/send*-unsignaled-fails-loudly",
            "rc/error-completions/write*-unsignaled-fails-loudly",
            "*/reach/not-for-local-use",
            "uc/dropped/half-a-message",
        ],
        shown: Shown::Always,
        reason: "A request whose own memory may not be used fails with LocalQueuePairError instead of LocalProtectionError: copy_data() answers EINVAL for an unknown key, and the requester calls only EFAULT a protection error.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "uc/local-protection/send-before-the-region",
            "uc/local-protection/send-beyond-the-region",
            "uc/local-protection/send-wrapping-address",
            "uc/local-protection/write-before-the-region",
            "uc/local-protection/write-beyond-the-region",
            "uc/local-protection/write-wrapping-address",
            "ud/local-protection/send-before-the-region",
            "ud/local-protection/send-beyond-the-region",
            "ud/local-protection/send-wrapping-address",
        ],
        shown: Shown::Always,
        reason: "After a failed send UC and UD go to ERR instead of SQE, which the driver never enters by itself.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "rc/length/receive-one-byte-too-small",
            "rc/length/receive-without-memory",
            "rc/length/second-packet-does-not-fit",
            "rc/error-completions/send*-remote-invalid-request",
            "uc/dropped/receive-too-small",
            "ud/send/receive-too-small",
        ],
        shown: Shown::Always,
        reason: "A message longer than its receive is LocalQueuePairError to the receiver and RemoteOperationError to the sender, instead of a length error and an invalid request: copy_data() answers EINVAL, which counts as a malformed receive.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "rc/async-events/*access-error*",
            "rc/async-events/request-error-of-an-atomic",
            "rc/async-events/communication-established",
            "rc/async-events/fatal-when-*",
            "rc/remote-invalid/*-misaligned",
            "rc/window-type-*/async-events/access-error",
            "rc/event-descriptors/asynchronous-event",
            "*/shared-receive/last-request-reached",
        ],
        shown: Shown::Always,
        reason: "Of the asynchronous events of queue pairs the driver raises one alone, that the send queue is drained.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["uc/async-events/overrun-is-not-fatal", "ud/async-events/overrun-is-not-fatal"],
        shown: Shown::Always,
        reason: "A completion queue that overruns moves the queue pair to ERR on unreliable transports too.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/read-atomic-limits/no-depth-fails-reads"],
        shown: Shown::Always,
        reason: "A READ on a queue pair that may have none outstanding waits for ever.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/read-atomic-limits/responder-takes-fewer"],
        shown: Shown::Always,
        reason: "A responder takes more READs than its resources: it uses them over again (check_resource).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["ud/queue-key/own-when-high-bit-set"],
        shown: Shown::Always,
        reason: "A queue key whose highest bit is set is sent as it is, instead of the queue pair's own.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["uc/other-attributes/send-queue-drained-to-send-queue-drained"],
        shown: Shown::Always,
        reason: "The path of a UC queue pair cannot be changed in SQD: the kernel adds the port to the attributes (ib_uverbs), and then refuses it for UC.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/drain/waits-for-reads"],
        shown: Shown::Always,
        reason: "Draining takes requests that were sent and are being retried for requests that have not begun.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/async-events/send-queue-drained"],
        shown: Shown::Sometimes,
        reason: "Draining takes a request that waits to be sent again for one that has not begun, and ends too early.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/reset/reader-in-send-queue-drained"],
        shown: Shown::Always,
        reason: "While the send queue is being drained every step but that to ERR is refused, also that to RESET (rxe_qp_chk_attr).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "rc/error-completions/send-with-invalidate-remote-access",
            "rc/window-type-2/send-with-invalidate/unknown-key",
            "rc/window-type-2/send-with-invalidate/region",
            "rc/window-type-2/send-with-invalidate/window-type-1",
        ],
        shown: Shown::Always,
        reason: "A SEND whose key cannot be invalidated is acknowledged; its receive fails, and the receiver's queue pair goes to ERR, so that the sender's next request finds nobody.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "rc/window-type-2/send-with-invalidate/key-is-dead",
            "rc/window-type-2/send-with-invalidate/sizes",
            "rc/window-type-2/send-with-invalidate/window-can-be-bound-again",
            "rc/window-type-2/send-with-invalidate/region-is-free-again",
            "rc/window-type-2/send-with-invalidate/waits-for-a-receive",
            "rc/window-type-2/send-with-invalidate/solicited",
        ],
        shown: Shown::Always,
        reason: "The completion of a SEND with invalidate says so by the kernel's flag (4), which is another one in libibverbs (where it is 8).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/window-type-2/send-with-invalidate/window-of-another-queue-pair"],
        shown: Shown::Always,
        reason: "A SEND can invalidate a window of another queue pair.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/window-type-1/end/bound-anew-by-another-queue-pair"],
        shown: Shown::Always,
        reason: "The old key of a type 1 window that was bound anew stays good.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["uc/dropped/no-receive-posted"],
        shown: Shown::Always,
        reason: "After a WRITE with immediate of several packets that found no receive, every SEND is dropped: the responder still waits for the end of the WRITE (do_class_d1e_error).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/completion-events/failed-receive-counts-as-solicited"],
        shown: Shown::Always,
        reason: "Of a failed receive the packet's solicited bit decides whether it is an event for solicited completions, instead of the failure.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/reach/whole-part-and-no-more", "*/reach/last-packet-beyond", "*/reach/two-windows-on-one-region"],
        shown: Shown::Always,
        reason: "A window reaches everything of its region: only the region's bounds are checked (check_rkey).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["keys/numbers/queue-pairs"],
        shown: Shown::Always,
        reason: "Queue pair numbers are counted up.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/bind/beyond-the-region"],
        shown: Shown::Always,
        reason: "A part that wraps around the end of the address space can be bound (rxe_check_bind_mw adds without looking).",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/window-type-1/bind/other-kind-is-refused"],
        shown: Shown::Always,
        reason: "A type 1 window can be bound by a work request for type 2.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/window-type-2/bind/region-of-another-domain"],
        shown: Shown::Always,
        reason: "A window can be bound to a region of another protection domain.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "uc/*/bind/region-without-right-to-bind",
            "uc/*/bind/remote-write-without-local-write",
            "uc/window-type-2/bind/window-of-another-domain",
        ],
        shown: Shown::Always,
        reason: "After a failed bind UC goes to ERR instead of SQE.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/bind/flushed-has-no-effect", "*/bind/window-deallocated-while-it-waits"],
        shown: Shown::Always,
        reason: "A bind is carried out when the requester comes to it, although requests before it are not acknowledged yet; what is flushed has had its effect.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["rc/window-type-2/*/window-not-bound", "rc/window-type-2/*/window-invalidated-before"],
        shown: Shown::NotRun,
        reason: "Invalidating a window that is not bound crashes the kernel: rxe_invalidate_mw() gives back a queue pair that is not there.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "uc/window-type-2/local-invalidate/key-is-dead",
            "uc/window-type-2/local-invalidate/window-can-be-bound-again",
            "uc/window-type-2/local-invalidate/while-a-peer-writes",
            "uc/window-type-2/local-invalidate/unsignaled",
            "uc/window-type-2/local-invalidate/bound-through-another-queue-pair",
            "uc/window-type-2/end/bound-anew",
            "uc/window-type-2/end/bound-to-nothing",
            "uc/window-type-2/end/many-times",
            "uc/window-type-2/end/region-in-use",
        ],
        shown: Shown::Always,
        reason: "UC has no local invalidation: the driver knows it for RC alone.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &[
            "rc/window-type-2/local-invalidate/unknown-key",
            "rc/window-type-2/local-invalidate/region",
            "rc/window-type-2/local-invalidate/window-type-1",
        ],
        shown: Shown::Always,
        reason: "A local invalidation of what cannot be invalidated fails with LocalQueuePairError.",
    },
    KnownDeparture {
        driver: RXE,
        tests: &["*/window-type-2/end/queue-pair-destroyed", "*/window-type-2/end/free-after-its-queue-pair"],
        shown: Shown::NotRun,
        reason: "A type 2 window holds a reference to the queue pair through which it was bound: destroying that waits in vain in the kernel, for many seconds, and ends with a warning (rxe_destroy_qp).",
    },
];

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
