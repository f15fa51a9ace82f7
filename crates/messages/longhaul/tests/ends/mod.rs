//! Two ends on this host's loopback address.
#![allow(dead_code, reason = "each test uses what it needs")]

pub(crate) mod raw_handshake;

use longhaul::{Connection, DeviceChoice, Listener, Options, SOFTNIC, connect};
use longhaul_impair::Profile;
use longhaul_softnic_udp::{Impair, UdpPortChoice};

/// A softnic of its own on a free port.
pub(crate) fn device() -> DeviceChoice {
    let mut choice: DeviceChoice = SOFTNIC.parse().expect("a name");
    choice.udp.udp_port = UdpPortChoice::Free;
    choice
}

/// One behind a bad network.
pub(crate) fn impaired_device(profile: Profile, seed: u64) -> DeviceChoice {
    let mut choice = device();
    choice.udp.impair = Some(Impair { profile, seed });
    choice
}

/// A connection from end to end: the connecting one first.
pub(crate) fn pair_of(devices: [DeviceChoice; 2], options: &Options) -> (Connection, Connection) {
    let [one, other] = devices;
    let listener = Listener::bind("127.0.0.1:0", other, options).expect("it listens");
    let connecting = connect(listener.local_address(), one, options);
    let accepted = listener.accept().wait().expect("it accepts");
    (connecting.wait().expect("it connects"), accepted)
}

pub(crate) fn pair(options: &Options) -> (Connection, Connection) {
    pair_of([device(), device()], options)
}

/// Bytes that encode their offset.
pub(crate) fn pattern(length: usize, seed: u64) -> Vec<u8> {
    let word = |index: u64| {
        (seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ index.wrapping_mul(0xd6e8_feb8_6659_fd93)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (1..=length.div_ceil(8) as u64).flat_map(word).collect();
    bytes.truncate(length);
    bytes
}
