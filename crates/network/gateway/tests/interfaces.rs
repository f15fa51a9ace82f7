//! Gateways between virtual interfaces of a network namespace, one for each test:
//!
//! ```text
//!   s0 (test) ═ veth ═ s1 gateway w1 ═ veth ═ w0 (test)
//! ```
//!
//! Where namespaces are not allowed, a test says that it was skipped.

use std::process::Command;
use std::time::{Duration, Instant};

use longhaul_forward::clock::Clock;
use longhaul_forward::offloads::{self, Offload};
use longhaul_forward::ring::{RawSink, RingSource};
use longhaul_forward::{Arrival, Sink as _, Source as _};
use longhaul_gateway::bypass::{Bypass, BypassError};
use longhaul_gateway::settings::Settings;
use longhaul_gateway::{GatewayError, InterfaceError, IpError, RunningGateway, SITE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sched::{CloneFlags, unshare};

/// No step takes nearly this long, even on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);
/// When nothing has arrived for this long, nothing more comes.
const SILENCE_MILLIS: u16 = 200;

/// Runs a test in a network namespace of its own, on a thread of its own.
fn in_namespace(work: impl FnOnce() + Send + 'static) {
    let thread = std::thread::spawn(move || match unshare(CloneFlags::CLONE_NEWNET) {
        Err(error) => eprintln!("SKIPPED: no network namespace can be made here: {error}"),
        Ok(()) => {
            for name in ["s", "w"] {
                ip(&format!("link add {name}0 type veth peer name {name}1"));
                (0..2).for_each(|end| ip(&format!("link set {name}{end} up")));
            }
            work();
        }
    });
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
}

fn ip(arguments: &str) {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    assert!(output.status.success(), "ip {arguments}: {}", String::from_utf8_lossy(&output.stderr));
}

fn shown(arguments: &str) -> String {
    let output = Command::new("ip").args(arguments.split(' ')).output().expect("iproute2 is there");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn start(site: &str, wide: &str, more: &str) -> Result<RunningGateway, GatewayError> {
    let text = format!("site = \"{site}\"\nwide = \"{wide}\"\npeer = \"10.2.0.0/24\"\nmetrics = \"\"\n{more}");
    RunningGateway::start(&Settings::parse(&text).expect("settings"), 1, None)
}

fn refused(site: &str, wide: &str, more: &str) -> GatewayError {
    let error = start(site, wide, more).expect_err("it is refused");
    assert_eq!(shown("link show type bridge").matches("longhaul0").count(), 0, "nothing was changed");
    error
}

/// How many of 20 frames that leave by `s0` arrive at `w0`, duplicates included.
fn arriving() -> usize {
    let mut source = RingSource::open("w0", Clock::start(), 1 << 20).expect("a source");
    let frame = [&[0xff; 6][..], &[2, 0, 0, 0, 0, 1], &[0x88, 0xb5], &[7; 60]].concat();
    RawSink::open("s0").expect("a sink").send(&vec![&frame[..]; 20]).expect("they are sent");
    let mut count = 0;
    loop {
        let mut polled = [PollFd::new(source.descriptor(), PollFlags::POLLIN)];
        if poll(&mut polled, PollTimeout::from(SILENCE_MILLIS)).expect("it can be waited for") == 0 {
            return count;
        }
        let mut arrivals: Vec<Arrival<'_>> = Vec::new();
        source.receive(64, &mut arrivals).expect("frames");
        count += arrivals.iter().filter(|arrival| *arrival.bytes == frame[..]).count();
    }
}

#[test]
fn interfaces_are_known_by_all_their_names() {
    in_namespace(|| {
        let error = refused("no-such-if", "no-such-if", "");
        assert!(matches!(error, GatewayError::Interface(InterfaceError::Same(_))), "{error}");
        ip("link property add dev s1 altname towards-hosts");
        ip("link property add dev w1 altname towards-peer");
        let error = refused("s1", "towards-hosts", "");
        assert!(matches!(error, GatewayError::Interface(InterfaceError::Same(_))), "{error}");
        for (site, wide) in [("s0", "towards-hosts"), ("towards-hosts", "s0")] {
            let error = refused(site, wide, "");
            assert!(matches!(error, GatewayError::Interface(InterfaceError::Pair(_))), "{error}");
        }
        let error = refused("towards-hosts", "w1", "bridge = \"towards-peer\"\n");
        assert!(matches!(error, GatewayError::Interface(InterfaceError::BridgeIsSide(_))), "{error}");
        // The second one finds the bridge of the first.
        for _ in 0..2 {
            let gateway = start("towards-hosts", "towards-peer", "").expect("a gateway");
            assert_eq!(arriving(), 20, "the bridge is held back");
            gateway.end().expect("it ends in order");
            assert_eq!(arriving(), 20, "the bridge forwards");
        }
    });
}

#[test]
fn interfaces_that_somebody_else_uses_are_refused_with_the_command_that_helps() {
    in_namespace(|| {
        // A VLAN would be the same, but not every kernel has them.
        ip("link add link s1 name s1.7 type macvlan");
        for (site, wide) in [("s1", "s1.7"), ("s1.7", "s1")] {
            let said = refused(site, wide, "").to_string();
            assert!(said.contains("s1.7 is built on s1"), "{said}");
        }
        ip("link delete s1.7");
        ip("address add fe80::5/64 dev s1 nodad");
        for (address, bridge) in [("198.18.0.1/24", ""), ("2001:db8::1/64", "longhaul0")] {
            ip(&format!("address add {address} dev s1"));
            let said = refused("s1", "w1", &format!("bridge = \"{bridge}\"\n")).to_string();
            assert!(said.contains(&format!("ip address del {address} dev s1")), "{said}");
            ip(&format!("address del {address} dev s1"));
        }
        ip("link add other type bridge");
        ip("link set w1 master other");
        for bridge in ["", "longhaul0"] {
            let said = refused("s1", "w1", &format!("bridge = \"{bridge}\"\n")).to_string();
            assert!(said.contains("port of other") && said.contains("ip link set w1 nomaster"), "{said}");
        }
        ip("link set w1 nomaster");
        let said = refused("s1", "w1", "bridge = \"s0\"\n").to_string();
        assert!(said.contains("s0 is there and is no bridge"), "{said}");
        ip("link set s0 master other");
        let said = refused("s1", "w1", "bridge = \"other\"\n").to_string();
        assert!(said.contains("has the port s0"), "{said}");
        start("s1", "w1", "").expect("a gateway").end().expect("it ends in order");
    });
}

#[test]
fn what_was_changed_is_undone_when_the_bridge_cannot_be_had() {
    in_namespace(|| {
        // No bridge takes this one.
        let error = refused("s1", "lo", "");
        assert!(matches!(error, GatewayError::Bypass(BypassError::Ip(IpError::Failed { .. }))), "{error}");
        assert!(!shown("-o link show dev s1").contains("master"));
        // One that was there stays, with the ports that it had.
        ip("link add kept type bridge");
        ip("link set s1 master kept");
        refused("s1", "lo", "bridge = \"kept\"\n");
        assert!(shown("-o link show dev s1").contains("master kept"));
        start("s1", "w1", "bridge = \"kept\"\n").expect("nothing holds the interfaces").end().expect("it ends");
    });
}

#[test]
fn two_gateways_have_no_interface_in_common() {
    in_namespace(|| {
        ip("link add x0 type veth peer name x1");
        let one = Bypass::hold("longhaul0", "s1", "w1").expect("nobody else is there");
        for (site, wide, shared) in [("s1", "w1", "s1"), ("x1", "w1", "w1"), ("w1", "x1", "w1"), ("x1", "s1", "s1")] {
            match Bypass::hold("another", site, wide) {
                Err(BypassError::Taken { interface }) => assert_eq!(interface, shared),
                other => panic!("{site}, {wide}: {other:?}"),
            }
        }
        drop(one);
        Bypass::hold("another", "x1", "w1").expect("the first has ended");
    });
}

#[test]
fn a_gateway_that_ends_by_itself_holds_nothing_back() {
    in_namespace(|| {
        let gateway = start("s1", "w1", "").expect("a gateway");
        ip("link delete s0");
        let begun = Instant::now();
        while !gateway.has_ended() {
            assert!(begun.elapsed() < PATIENCE);
            std::thread::yield_now();
        }
        Bypass::hold("longhaul0", "w1", "w0").expect("nobody has asked it anything yet");
        let said = gateway.end().expect_err("it has failed").to_string();
        assert!(said.contains("s1 is gone"), "{said}");
    });
}

#[test]
fn frames_without_their_checksum_are_dropped_and_counted() {
    in_namespace(|| {
        // The address is that of the other end.
        ip("address add 198.18.0.1/24 dev s0");
        ip("neighbor add 198.18.0.2 lladdr 02:00:00:00:00:02 dev s0");
        assert!(offloads::is_on("s0", Offload::TransmitChecksum).expect("it is known"));
        let gateway = start("s1", "w1", "").expect("a gateway");
        let socket = std::net::UdpSocket::bind("198.18.0.1:0").expect("a socket");
        (0..3).for_each(|_| assert_eq!(socket.send_to(&[0; 1000], "198.18.0.2:9").expect("it is sent"), 1000));
        assert_eq!(arriving(), 20, "others are forwarded");
        assert_eq!(gateway.state().expect("it runs").arrived[SITE].unfinished, 3);
        gateway.end().expect("it ends in order");
    });
}
