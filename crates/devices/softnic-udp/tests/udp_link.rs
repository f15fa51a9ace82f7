//! A device's port goes down and comes back with the interface behind its address. In a network namespace that the test makes
//! for itself, which takes root or user namespaces.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use longhaul_softnic::Config;
use longhaul_softnic_udp::{UdpConfig, UdpDevice};
use longhaul_verbs::{AsyncEvent, AsyncEventKind, EventSource, LinkState};

/// Set in the process that has a namespace of its own.
const INSIDE: &str = "LONGHAUL_TEST_INSIDE";
const PATIENCE: Duration = Duration::from_secs(20);

fn ip(arguments: &str) {
    let status = Command::new("ip").args(arguments.split(' ')).status().expect("ip (iproute2) can be run");
    assert!(status.success(), "ip {arguments}: {status}");
}

fn expect(device: &longhaul_verbs::Device, kind: AsyncEventKind, state: LinkState) {
    let end = Instant::now() + PATIENCE;
    let event = loop {
        match device.next_event().unwrap() {
            Some(event) => break event,
            None if Instant::now() > end => panic!("expected {kind:?}, got nothing in {PATIENCE:?}"),
            None => std::thread::sleep(Duration::from_millis(1)),
        }
    };
    assert_eq!(event, AsyncEvent { kind, source: EventSource::Port(1) });
    assert_eq!(device.port_attributes(1).unwrap().state, state);
}

fn inside() {
    ip("link add near0 type veth peer name far0");
    ip("address add 10.47.9.1/24 dev near0");
    ip("link set near0 up");
    let config = Config::new("link", vec!["10.47.9.1".parse().unwrap()], [1; 32]);
    // The other end is down still: there is no carrier, and nothing has happened.
    let device = UdpDevice::open(config, UdpConfig::default()).unwrap().verbs();
    assert_eq!(device.port_attributes(1).unwrap().state, LinkState::Down);
    assert_eq!(device.next_event().unwrap(), None);
    ip("link set far0 up");
    expect(&device, AsyncEventKind::PortActive, LinkState::Active);
    for _ in 0..3 {
        // The carrier, and then the interface itself.
        for interface in ["far0", "near0"] {
            ip(&format!("link set {interface} down"));
            expect(&device, AsyncEventKind::PortError, LinkState::Down);
            ip(&format!("link set {interface} up"));
            expect(&device, AsyncEventKind::PortActive, LinkState::Active);
        }
    }
    // Changes that are not ours.
    ip("link add other0 type veth peer name other1");
    ip("link set other0 up");
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(device.next_event().unwrap(), None);
    ip("address del 10.47.9.1/24 dev near0");
    expect(&device, AsyncEventKind::PortError, LinkState::Down);
}

#[test]
fn the_port_follows_the_interface() {
    if std::env::var_os(INSIDE).is_some() {
        inside();
        return;
    }
    let unshare = |flags: &[&str]| {
        let mut command = Command::new("unshare");
        command.args(flags).arg("--net");
        command
    };
    let is_possible = |flags: &&[&str]| {
        let mut trial = unshare(flags);
        trial.args(["ip", "link", "add", "probe0", "type", "veth", "peer", "name", "probe1"]);
        trial.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
    };
    let ways: [&[&str]; 2] = [&[], &["--user", "--map-root-user"]];
    let Some(flags) = ways.into_iter().find(is_possible) else {
        eprintln!("SKIPPED: no network namespaces here (root or user namespaces, iproute2): no link was taken down");
        return;
    };
    let output = unshare(flags)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "the_port_follows_the_interface", "--nocapture"])
        .env(INSIDE, "1")
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}
