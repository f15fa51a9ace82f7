//! Layers of devices on real sockets: what they add to packets comes off the MTU, and what they hold still leaves when a device closes.

use crate::udp_ends;

use std::time::{Duration, Instant as Clock};

use longhaul_impair::Profile;
use longhaul_softnic::{Config, Direction, Envelope, Layer, Onward, Packet};
use longhaul_softnic_udp::{Impair, OpenError, UdpConfig, UdpDevice, UdpPortChoice};
use longhaul_time::Instant;
use longhaul_verbs::{CompletionStatus, Mtu, Transport};
use udp_ends::{End, device, pair_on, pattern};

/// The loopback interface's MTU.
const LOOPBACK_BYTES: usize = 65_536;

/// Says that it makes packets longer, and does not.
struct Longer(usize);

impl Layer for Longer {
    fn overhead_bytes(&self) -> usize {
        self.0
    }
}

/// Adds bytes to what is sent and takes them from what arrives.
struct Trailer(usize);

impl Layer for Trailer {
    fn handle(&mut self, direction: Direction, mut packet: Packet, _now: Instant, onward: &mut Onward<'_>) {
        let bytes = packet.datagram.len();
        match direction {
            Direction::Outgoing => packet.datagram.resize(bytes + self.0, 0x5a),
            Direction::Incoming => packet.datagram.truncate(bytes.saturating_sub(self.0)),
        }
        onward.pass(direction, packet);
    }

    fn overhead_bytes(&self) -> usize {
        self.0
    }
}

/// Only watches.
struct Watcher;

impl Layer for Watcher {
    fn only_watches(&self) -> bool {
        true
    }

    fn watch(&mut self, _direction: Direction, envelope: &Envelope, datagram: &[u8], _now: Instant) {
        assert!(!datagram.is_empty() && envelope.source != envelope.destination);
    }
}

fn open(address: &str, mut udp: UdpConfig, layers: Vec<Box<dyn Layer>>) -> Result<UdpDevice, OpenError> {
    udp.udp_port = UdpPortChoice::Free;
    UdpDevice::open_layered(Config::new(address, vec![address.parse().unwrap()], [9; 32]), udp, layers)
}

#[test]
fn what_layers_add_comes_off_the_mtu() {
    let active_mtu = |layers: Vec<Box<dyn Layer>>| {
        let overhead_bytes: usize = layers.iter().map(|layer| layer.overhead_bytes()).sum();
        let device = open("127.0.0.1", UdpConfig::default(), layers)?;
        assert_eq!(device.overhead_bytes() as usize, overhead_bytes);
        Ok::<_, OpenError>(device.verbs().port_attributes(1).unwrap().active_mtu)
    };
    assert_eq!(active_mtu(vec![]).unwrap(), Mtu::Bytes4096);
    assert_eq!(active_mtu(vec![Box::new(Longer(16))]).unwrap(), Mtu::Bytes4096, "there is room to spare");
    for (left_bytes, expected) in [(4096, Mtu::Bytes2048), (3000, Mtu::Bytes2048), (2048, Mtu::Bytes1024)] {
        // Half in each of two layers: it adds up.
        let half = (LOOPBACK_BYTES - left_bytes) / 2;
        assert_eq!(active_mtu(vec![Box::new(Longer(half)), Box::new(Longer(half))]).unwrap(), expected, "{left_bytes}");
    }
    match active_mtu(vec![Box::new(Longer(LOOPBACK_BYTES - 256))]) {
        Err(OpenError::MtuTooSmall { mtu_bytes, needed_bytes, .. }) => {
            assert_eq!(mtu_bytes as usize, LOOPBACK_BYTES);
            assert!(needed_bytes as usize > LOOPBACK_BYTES, "{needed_bytes}");
        }
        other => panic!("expected that no packet fits, got {other:?}"),
    }
}

#[test]
fn ends_with_the_same_layers_understand_each_other_and_others_do_not() {
    const BYTES: usize = 100_000;
    let layered = |address| open(address, UdpConfig::default(), vec![Box::new(Trailer(13)), Box::new(Trailer(2))]);
    let (one_device, two_device) = (layered("127.0.0.1").unwrap(), layered("127.0.0.2").unwrap());
    let (one, two) = pair_on(&one_device, &two_device, Transport::ReliableConnection, BYTES);
    let bytes = pattern(1, BYTES);
    one.region.copy_in(0, &bytes);
    one.post_write(1, BYTES, &two);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    assert!(two.region.to_vec(0..BYTES) == bytes, "contents differ");

    let plain = device("127.0.0.3");
    let unreliable = Transport::UnreliableConnection;
    let (one, stranger) = (End::new(&one_device, unreliable, 4096), End::new(&plain, unreliable, 4096));
    one.connect(&stranger, Mtu::Bytes1024);
    stranger.connect(&one, Mtu::Bytes1024);
    one.post_send(1, 16);
    let start = Clock::now();
    while stranger.counter("rx_icrc_encapsulated") == 0 {
        assert!(start.elapsed() < Duration::from_secs(5), "the packet has not been refused");
        assert!(stranger.completions.poll_one().unwrap().is_none());
    }
}

#[test]
fn a_layer_above_a_bad_network_that_closes_loses_nothing() {
    let mut udp = UdpConfig::default();
    udp.impair = Some(Impair { profile: Profile::default().with_propagation_delay(Duration::from_secs(5)), seed: 1 });
    let slow = open("127.0.0.1", udp, vec![Box::new(Trailer(3)), Box::new(Watcher)]).unwrap();
    let other = open("127.0.0.2", UdpConfig::default(), vec![Box::new(Trailer(3))]).unwrap();
    let unreliable = Transport::UnreliableConnection;
    let (one, two) = (End::new(&slow, unreliable, 4096), End::new(&other, unreliable, 4096));
    one.connect(&two, Mtu::Bytes1024);
    two.connect(&one, Mtu::Bytes1024);
    two.post_receive(1, 16);
    one.post_send(2, 16);
    drop((one, slow));
    assert_eq!(two.wait_for(Duration::from_secs(4)).expect("the message").status, CompletionStatus::Success);
}

#[test]
fn watching_leaves_a_device_as_it_is() {
    const BYTES: usize = 1 << 20;
    let watched = open("127.0.0.1", UdpConfig::default(), vec![Box::new(Watcher)]).unwrap();
    let (one, two) = pair_on(&watched, &device("127.0.0.2"), Transport::ReliableConnection, BYTES);
    let bytes = pattern(2, BYTES);
    one.region.copy_in(0, &bytes);
    one.post_write(1, BYTES, &two);
    assert_eq!(one.wait().status, CompletionStatus::Success);
    assert!(two.region.to_vec(0..BYTES) == bytes, "contents differ");
}
