//! The end-to-end suite of reliability schemes over UDP sockets, on real time and through the library: a small part of
//! it, for each change. The command runs the rest: `longhaul conformance -d softnic:127.0.0.1,127.0.0.2 --reliable`.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use longhaul_reliable::Scheme;
use longhaul_scheme_testing::end_to_end::{Figures, LibraryGround, Link, Suite, patient_options};
use longhaul_softnic_udp::{Impair, UdpConfig, UdpPortChoice};

/// Data that the window allows must fit the socket's buffer.
const WINDOW_BYTES: u64 = 1 << 20;

/// Runs it over two addresses that nobody else uses; what was sent, and what the bad network did.
fn run(suite: &Suite, number: u8) -> Figures {
    let addresses = [number, number + 1].map(|last| IpAddr::V4(Ipv4Addr::new(127, 0, 2, last)));
    let mut udp = UdpConfig::default();
    udp.udp_port = UdpPortChoice::Free;
    let memory_bytes = suite.memory_bytes();
    let mut figures = Figures::default();
    let open = |link: &Link, scheme: &Arc<dyn Scheme>| {
        let mut options = patient_options();
        options.scheme = scheme.clone();
        options.window_bytes = Some(WINDOW_BYTES);
        let impair = link.profile.clone().map(|profile| Impair { profile, seed: 1 });
        LibraryGround::open(addresses, &udp, impair, &options, memory_bytes)
    };
    let ran = suite.run(open, |_, _, _, outcome| {
        figures.add(outcome?);
        Ok(())
    });
    ran.unwrap_or_else(|error| panic!("{error}"));
    figures
}

#[test]
fn messages_arrive_whatever_the_sockets_do() {
    let suite = Suite::new(20, &[0, 1, 4097, 100_000]);
    let figures = run(&suite, 1);
    assert_eq!(figures.messages, 7 * 6 * 4 * 20);
    // On good links alone nothing would have been shown.
    assert!(figures.data_packets_repeated > 0 && figures.chunks_recovered > 0, "{figures:?}");
    println!("{figures:?}");
}

/// As fast as they go: packets in batches, and received in place.
#[test]
fn messages_arrive_over_bare_sockets() {
    let links = vec![Link { name: "bare", profile: None }];
    let suite = Suite { links, ..Suite::new(10, &[1, 4097, 1 << 20]) };
    assert_eq!(run(&suite, 11).messages, 6 * 3 * 10);
}
