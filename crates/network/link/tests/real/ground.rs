//! Two pairs of virtual interfaces in a network namespace of its own, the ends of a link and of programs:
//!
//! ```text
//!   left (test) ═ veth ═ left-in ── link ── right-in ═ veth ═ right (test)
//! ```

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use longhaul_forward::clock::Clock;
use longhaul_forward::ring::{RawSink, RingSource};
use longhaul_forward::{Arrival, Sink as _, Source as _};
use longhaul_impair::Profile;
use longhaul_link::{DirectionOptions, LinkOptions, Ports};
use longhaul_time::Instant;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

/// Local experiments, by IEEE 802.
pub(crate) const ETHERTYPE: u16 = 0x88b5;
/// Set in the process that is in the namespace.
const INSIDE: &str = "LONGHAUL_LINK_TEST_INSIDE";

/// Runs a test in a network namespace of its own, by starting this program again in one. Says so where that is not allowed.
pub(crate) fn in_namespace(test: &str, mtu: usize, work: impl FnOnce()) {
    if std::env::var_os(INSIDE).is_some() {
        set_up(mtu);
        return work();
    }
    let program = std::env::current_exe().expect("this program");
    let is_root = nix::unistd::geteuid().is_root();
    let how = if is_root { "-n" } else { "-Urn" };
    let mut command = Command::new("timeout");
    command.args(["60", "unshare", how]).arg(&program).args([test, "--exact", "--nocapture"]).env(INSIDE, "1");
    let output = command.stdin(Stdio::null()).output().expect("timeout and unshare are there");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    if said.contains("unshare failed") || said.contains("unshare: ") {
        eprintln!("SKIPPED: no network namespace can be made here: {said}");
        return;
    }
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn set_up(mtu: usize) {
    // No router solicitations, so that frames are those of the test.
    let _ = std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1");
    for side in ["left", "right"] {
        ip(&format!("link add {side} mtu {mtu} type veth peer name {side}-in mtu {mtu}"));
        ip(&format!("link set {side} up"));
        ip(&format!("link set {side}-in up"));
    }
}

/// Takes an interface down.
pub(crate) fn set_down(name: &str) {
    ip(&format!("link set {name} down"));
}

/// Brings an interface up.
pub(crate) fn set_up_interface(name: &str) {
    ip(&format!("link set {name} up"));
}

/// Deletes an interface.
pub(crate) fn delete(name: &str) {
    ip(&format!("link delete {name}"));
}

/// A link between the two pairs.
pub(crate) fn options(towards_second: Profile, towards_first: Profile, seed: u64) -> LinkOptions {
    let direction = |profile| DirectionOptions { profile: Arc::new(profile), seed, kept_bytes_max: 64 << 20 };
    LinkOptions {
        ports: Ports::Interfaces(["left-in".to_owned(), "right-in".to_owned()]),
        towards_second: direction(towards_second),
        towards_first: direction(towards_first),
        capture: None,
        processor: None,
    }
}

/// One of the test's ends.
pub(crate) struct End {
    source: RingSource,
    sink: RawSink,
    pub(crate) clock: Clock,
}

impl End {
    pub(crate) fn open(name: &str, clock: Clock) -> Self {
        End {
            source: RingSource::open(name, clock, 8 << 20).expect("a source"),
            sink: RawSink::open(name).expect("a sink"),
            clock,
        }
    }

    pub(crate) fn send(&mut self, frames: &[Vec<u8>]) {
        let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
        assert_eq!(self.sink.send(&frames).expect("they are sent"), 0);
    }

    /// Frames that arrive until there are `most`, or nothing has come for that long.
    pub(crate) fn receive(&mut self, most: usize, silence: Duration) -> Vec<(Instant, Vec<u8>)> {
        let mut received = Vec::new();
        while received.len() < most {
            let mut polled = [PollFd::new(self.source.descriptor(), PollFlags::POLLIN)];
            let wait = PollTimeout::try_from(silence).expect("a short time");
            if poll(&mut polled, wait).expect("polling works") == 0 {
                break;
            }
            let mut arrivals: Vec<Arrival<'_>> = Vec::new();
            self.source.receive(256, &mut arrivals).expect("frames");
            received.extend(arrivals.iter().map(|arrival| (arrival.at, arrival.bytes.to_vec())));
        }
        received
    }
}

/// Frames with a number in each, of this many bytes altogether.
pub(crate) fn numbered(range: std::ops::Range<u32>, bytes: usize) -> Vec<Vec<u8>> {
    let frame = |number: u32| {
        let mut frame = [&[2, 0, 0, 0, 0, 1][..], &[2, 0, 0, 0, 0, 2], &ETHERTYPE.to_be_bytes()].concat();
        frame.extend(number.to_be_bytes());
        frame.resize(bytes, number as u8);
        frame
    };
    range.map(frame).collect()
}

/// The number in a frame.
pub(crate) fn number_of(frame: &[u8]) -> u32 {
    u32::from_be_bytes(frame[14..18].try_into().expect("four bytes"))
}
