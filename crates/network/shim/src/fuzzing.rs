//! What must hold for any bytes at all: the body of the fuzz target, and of the ordinary tests over its corpus.
//!
//! Hidden from the documentation; not part of the API.

use std::net::SocketAddr;

use longhaul_time::{Duration, Instant};
use longhaul_wire::{IcrcScope, icrc, repair};

use crate::{BlockCode, Config, Direction, Envelope, Network, Onward, Packet, Shim};

/// Reads the bytes as packets that arrive, some of which were sent by a shim before and are changed: `kind · length · bytes` each.
pub fn shim(bytes: &[u8]) {
    let (source, destination): (SocketAddr, SocketAddr) =
        (([10, 0, 0, 1], 50_000).into(), ([10, 0, 0, 2], 4791).into());
    let Some(icrc_scope) = IcrcScope::between(source, destination) else { return };
    let envelope = Envelope {
        source,
        destination,
        traffic_class: 2,
        hop_limit: 64,
        identification: None,
        icrc_scope,
        elided_bytes: 0,
    };
    let Ok(code) = "mds:8,3".parse::<BlockCode>() else { return };
    let config = Config {
        held_packets_max: 32,
        units_max: 8,
        flows_max: 4,
        peers: Network::EVERYWHERE.to_vec(),
        ..Config::new(code)
    };
    let shims = (Shim::new(config.clone(), 1), Shim::new(config.clone(), 2));
    let (Ok(mut sender), Ok(mut receiver)) = shims else { return };
    let mut now = Instant::ZERO;
    let mut rest = bytes;
    while let [kind, length, tail @ ..] = rest {
        let (part, tail) = tail.split_at(usize::from(*length).min(tail.len()));
        rest = tail;
        now += Duration::from_micros(u64::from(*kind >> 4) * 40);
        let mut datagram = part.to_vec();
        if kind & 1 != 0 {
            icrc::write(&icrc_scope, &mut datagram);
        }
        let packet = Packet { envelope, datagram };
        let mut sent = Onward::default();
        if kind & 2 != 0 {
            sender.handle(Direction::Outgoing, packet, now, &mut sent);
            sender.poll(now, &mut sent);
        } else {
            sent.outgoing.push(packet);
        }
        let mut received = Onward::default();
        // Of what was sent, the fuzzer chooses what arrives.
        for (index, packet) in sent.outgoing.into_iter().enumerate() {
            if kind & 4 == 0 || index != usize::from(*kind >> 5) {
                receiver.handle(Direction::Incoming, packet, now, &mut received);
            }
        }
        receiver.poll(now, &mut received);
        assert!(
            received.incoming.iter().all(|packet| !repair::is_repair(&packet.datagram)),
            "a repair packet got through"
        );
        assert!(receiver.decoder().held_packets() <= config.held_packets_max + 1);
    }
    let mut last = Onward::default();
    receiver.close(&mut last);
    assert_eq!(receiver.decoder().held_packets(), 0);
}
