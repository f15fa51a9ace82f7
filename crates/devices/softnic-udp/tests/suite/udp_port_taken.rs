//! A port that somebody else has: who insists is told which, and what to do; who does not gets another, and a warning.

use crate::udp_ends;

use std::net::UdpSocket;

use longhaul_softnic::Config;
use longhaul_softnic_udp::{OpenError, UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_verbs::{CompletionStatus, Transport};
use udp_ends::{device, pair_on, pattern};

fn open(addresses: &[&str], choice: UdpPortChoice) -> Result<UdpDevice, OpenError> {
    let mut udp = UdpConfig::default();
    udp.udp_port = choice;
    let addresses = addresses.iter().map(|address| address.parse().unwrap()).collect();
    UdpDevice::open(Config::new("taken", addresses, [3; 32]), udp)
}

#[track_caller]
fn refusal(addresses: &[&str], choice: UdpPortChoice) -> String {
    match open(addresses, choice) {
        Ok(_) => panic!("opened at a port that is taken"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn who_insists_on_a_port_is_told() {
    let holder = UdpSocket::bind("127.0.13.1:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let text = refusal(&["127.0.13.1"], UdpPortChoice::Exactly(port));
    for part in [&port.to_string(), "127.0.13.1", "taken", "free port"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    // The same port of another address is not ours to ask about, and a device does not hold it either.
    let other = open(&["127.0.13.2"], UdpPortChoice::Exactly(port)).unwrap();
    assert_eq!(other.udp_port(), port);
    drop(holder);
    let device = open(&["127.0.13.1"], UdpPortChoice::Exactly(port)).unwrap();
    // Two devices of one process are no better than two processes.
    let text = refusal(&["127.0.13.1"], UdpPortChoice::Exactly(port));
    assert!(text.contains(&port.to_string()), "{text}");
    drop(device);
    assert!(
        open(&["127.0.13.1"], UdpPortChoice::Exactly(port)).is_ok(),
        "a device that is gone has let go of its port"
    );
}

#[test]
fn roce_s_own_port() {
    let holder = UdpSocket::bind("127.0.13.3:4791").unwrap();
    let text = refusal(&["127.0.13.3"], UdpPortChoice::Roce);
    for part in ["4791", "127.0.13.3", "Soft-RoCE", "free port"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    let device = open(&["127.0.13.3"], UdpPortChoice::RoceOrFree).unwrap();
    assert_ne!(device.udp_port(), 4791);
    let about_port = device.warnings().iter().find(|warning| warning.problem.contains("4791")).expect("a warning");
    assert!(about_port.problem.contains(&device.udp_port().to_string()), "{about_port}");
    assert!(about_port.problem.contains("only softnics"), "{about_port}");
    assert!(!about_port.remedy.is_empty());
    drop((device, holder));
    let device = open(&["127.0.13.3"], UdpPortChoice::RoceOrFree).unwrap();
    assert_eq!(device.udp_port(), 4791);
    assert!(!device.warnings().iter().any(|warning| warning.problem.contains("4791")));
    // Bound to this address alone.
    assert!(UdpSocket::bind("127.0.13.4:4791").is_ok());
}

#[test]
fn a_device_at_another_port_works() {
    let _holder = UdpSocket::bind("127.0.13.5:4791").unwrap();
    let one = open(&["127.0.13.5"], UdpPortChoice::RoceOrFree).unwrap();
    let (one, two) = pair_on(&one, &device("127.0.13.6"), Transport::ReliableConnection, 1 << 16);
    let bytes = pattern(1, 1 << 16);
    one.region.copy_in(0, &bytes);
    one.post_write(1, 1 << 16, &two);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    assert!(two.region.to_vec(0..1 << 16) == bytes);
}

#[test]
fn one_of_several_addresses() {
    let holder = UdpSocket::bind("127.0.13.8:0").unwrap();
    let port = holder.local_addr().unwrap().port();
    let text = refusal(&["127.0.13.7", "127.0.13.8"], UdpPortChoice::Exactly(port));
    assert!(text.contains("127.0.13.8") && !text.contains("127.0.13.7"), "the one that is taken: {text}");
    // What could be had was given back.
    assert!(UdpSocket::bind(("127.0.13.7", port)).is_ok());
}

#[test]
fn somebody_else_s_address() {
    let text = refusal(&["192.0.2.77"], UdpPortChoice::Free);
    for part in ["192.0.2.77", "not an address of this host", "longhaul devices"] {
        assert!(text.contains(part), "{part:?} in {text:?}");
    }
    let text = refusal(&[], UdpPortChoice::Free);
    assert!(text.contains("at least one address"), "{text}");
}
