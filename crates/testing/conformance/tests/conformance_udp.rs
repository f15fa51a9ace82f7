//! The verbs conformance suite on the software RNIC over UDP sockets, on real time: one test a way of using them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use longhaul_conformance::{self as conformance, GROUPS, RealTime, Report, Test, Verdict};
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};
use longhaul_verbs::Mtu;

/// Anybody may have 4791 on the machine where this runs, so these devices take what is free.
fn udp() -> UdpConfig {
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    udp
}

/// Each test has addresses of its own: what it sends cannot end up in another.
fn loopback(number: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(127, 0, 0, number))
}

fn run(environment: RealTime) -> Report {
    run_tests(environment, &conformance::registry())
}

fn run_tests(mut environment: RealTime, tests: &[Test]) -> Report {
    for device in environment.udp_devices() {
        for warning in device.warnings() {
            println!("{warning}");
        }
    }
    let begin = std::time::Instant::now();
    let report = conformance::run(&mut environment, tests, |test, verdict| {
        if let Verdict::Failed(message) = verdict {
            println!("failed: {}: {message}", test.name());
        }
    });
    for skipped in &report.skipped {
        println!("{} skipped: no {}", skipped.test, skipped.message);
    }
    println!("{} passed in {:.1} s", report.passed.len(), begin.elapsed().as_secs_f64());
    report
}

#[test]
fn two_addresses() {
    let environment = RealTime::open([loopback(11), loopback(12)], &udp()).expect("loopback addresses");
    run(environment).assert_good();
}

#[test]
fn one_address_and_two_ports_over_ipv6() {
    let address = IpAddr::V6(Ipv6Addr::LOCALHOST);
    let environment = RealTime::open([address; 2], &udp()).expect("the loopback address").with_mtu(Mtu::Bytes4096);
    run(environment).assert_good();
}

#[test]
fn one_device_that_talks_to_itself() {
    let environment = RealTime::open_one(loopback(13), &udp()).expect("a loopback address").with_mtu(Mtu::Bytes256);
    run(environment).assert_good();
}

#[test]
fn without_offload() {
    let mut udp = udp();
    udp.offload = false;
    udp.receive_in_place = false;
    let environment = RealTime::open([loopback(14), loopback(15)], &udp).expect("loopback addresses");
    run(environment).assert_good();
}

/// Only a network in process can be taken away from devices on sockets.
#[test]
fn with_a_link_that_goes_down() {
    let mut udp = udp();
    udp.impair = Some(Impair { profile: Default::default(), seed: 1 });
    let environment = RealTime::open([loopback(16), loopback(17)], &udp).expect("loopback addresses");
    let group = GROUPS.iter().find(|group| group.name == "port_events").expect("a group of the suite");
    let report = run_tests(environment, &(group.tests)());
    report.assert_good();
    assert!(report.skipped.is_empty(), "{:?}", report.skipped);
}
