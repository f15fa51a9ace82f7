//! An attack on a gateway by somebody who does not see its traffic, but knows its hosts and a queue pair: noise, malformed headers, flows
//! that do not exist, and repair packets that lie, also about blocks of which much waits.

use std::time::Duration;

use longhaul_forward::Sink;
use longhaul_gateway::{GatewayError, RunningGateway};
use longhaul_wire::repair::{Header, Subject};
use longhaul_wire::{Headers, Opcode, Psn, icrc, packet, repair};

use super::frames::{QUEUE_PAIR, Random, frame_of, scope};
use crate::clock::now;

/// Frames that are made before, and sent again and again.
const FRAMES: usize = 1 << 15;
/// Frames of one call.
const BATCH: usize = 64;
/// The longest payload.
const PAYLOAD_BYTES_MAX: u32 = 600;
/// How long the sender sleeps when it is ahead.
const SLEEP: Duration = Duration::from_micros(200);
/// An attack lasts so long at least: the flow must lose something meanwhile.
const LEAST: Duration = Duration::from_millis(500);
/// Of the packets that are made at random, one in this many is followed by a block that waits, and lies about it.
const COSTLY_APART: u32 = 1000;
/// Packets of such a block, and lies.
const BLOCK_PACKETS: u8 = 223;
const BLOCK_LIES: u32 = 200;

/// What an attack did to a flow with losses, and to the gateway's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attack {
    /// Hostile packets that were sent, and those of them that the gateway has seen.
    pub packets: u64,
    /// As the gateway has counted them.
    pub arrived_packets: u64,
    /// What was reached of the rate that was wanted, a quarter of the bare forwarder's, by what has arrived.
    pub packets_per_second: f64,
    /// The rate over the bare forwarder's.
    pub over_bare_forwarder: f64,
    /// Packets of the real flow that arrived, over those that were sent.
    pub flow_share: f64,
    /// The same without the attack.
    pub flow_share_without: f64,
    /// Packets of the real flow that the gateway restored during the attack, over those that were lost before it.
    pub restored_share: f64,
    /// The same without the attack.
    pub restored_share_without: f64,
    /// Packets of the real flow that arrived twice.
    pub duplicates_at_host: u64,
    /// Packets of the real flow that arrived behind later ones.
    pub backward_at_host: u64,
    /// Packets that arrived for the real queue pair, and that nobody has sent.
    pub lies_at_host: u64,
    /// Repair packets that arrived at the host.
    pub repairs_at_host: u64,
    /// Of the gateway, at most while it was attacked.
    pub memory_bytes: usize,
    /// The bound of it.
    pub memory_bytes_max: usize,
}

/// What was sent.
pub(super) struct Sent {
    pub(super) packets: u64,
    pub(super) took: Duration,
    /// The most memory that the gateway used.
    pub(super) memory_bytes: usize,
}

/// Frames that are made before anything is measured.
pub(super) fn frames() -> Vec<Vec<u8>> {
    let mut random = Random(7);
    let mut frames = Vec::with_capacity(FRAMES);
    while frames.len() < FRAMES {
        frames.push(frame(&mut random));
        if random.below(COSTLY_APART) == 0 {
            costly(&mut random, &mut frames);
        }
    }
    frames
}

/// Sends at least this many hostile frames at this rate, as far as the machine can.
pub(super) fn send(
    frames: &[Vec<u8>],
    sink: &mut dyn Sink,
    count: u64,
    per_second: f64,
    gateway: &RunningGateway,
) -> Result<Sent, GatewayError> {
    let mut batches = frames.chunks(BATCH).cycle();
    let (begun, mut sent, mut memory_bytes) = (now(), 0_u64, 0);
    let mut looked = begun;
    while sent < count || now() - begun < LEAST {
        if ((now() - begun).as_secs_f64() * per_second) as u64 <= sent {
            std::thread::sleep(SLEEP);
            continue;
        }
        let batch: Vec<&[u8]> = batches.next().into_iter().flatten().map(|frame| &frame[..]).collect();
        // What is refused here does not arrive, and the gateway counts what arrives.
        sink.send(&batch)?;
        sent += batch.len() as u64;
        if now() - looked > Duration::from_millis(5) {
            looked = now();
            memory_bytes = memory_bytes.max(gateway.state()?.gateway.memory_bytes);
        }
    }
    let took = now() - begun;
    Ok(Sent { packets: sent, took, memory_bytes: memory_bytes.max(gateway.state()?.gateway.memory_bytes) })
}

/// A flow that does not exist, of which a block waits behind its first packet, and repair packets that lie about that block.
fn costly(random: &mut Random, frames: &mut Vec<Vec<u8>>) {
    let source_port = 49_152 + random.below(8) as u16;
    let (queue_pair, psn) = (random.below(1 << 24) | 1 << 20, random.below(1 << 23));
    let like = Header {
        subject: Subject { queue_pair, is_responses: false },
        is_announcement: true,
        base_psn: Psn::new(psn),
        epoch: random.next() as u16,
        is_mds: true,
        block_packets: BLOCK_PACKETS,
        repair_packets: 1,
        count: BLOCK_PACKETS,
        index: 0,
        has_first: true,
        has_last: false,
        last_length: 0,
        is_copy: false,
        has_tag: false,
        digest: 0,
    };
    frames.push(frame_of(source_port, &repair_packet(&like, &[], source_port)));
    for place in 1..u32::from(BLOCK_PACKETS) {
        let headers = Headers::new(Opcode::RcSendMiddle, queue_pair, Psn::new(psn + place));
        let mut datagram = vec![0; 64 + 64];
        let length =
            packet::write_datagram(&headers, &[place as u8; 64], &scope(source_port), &mut datagram).expect("it fits");
        frames.push(frame_of(source_port, &datagram[..length]));
    }
    for digest in 0..BLOCK_LIES {
        let header = Header { is_announcement: false, digest, ..like };
        let sum: Vec<u8> = (0..128).map(|_| random.next() as u8).collect();
        frames.push(frame_of(source_port, &repair_packet(&header, &sum, source_port)));
    }
}

fn repair_packet(header: &Header, sum: &[u8], source_port: u16) -> Vec<u8> {
    let mut datagram = vec![0; repair::HEADER_BYTES];
    header.emit(&mut datagram);
    datagram.extend(sum);
    datagram.extend([0; 4]);
    icrc::write(&scope(source_port), &mut datagram);
    datagram
}

fn frame(random: &mut Random) -> Vec<u8> {
    let source_port = 49_152 + random.below(8) as u16;
    let datagram = match random.below(4) {
        0 => noise(random),
        1 => {
            let mut malformed = noise(random);
            malformed[0] = repair::OPCODE;
            malformed
        }
        2 => lie(random, source_port),
        _ => invented(random, source_port),
    };
    frame_of(source_port, &datagram)
}

fn noise(random: &mut Random) -> Vec<u8> {
    let count = 1 + random.below(PAYLOAD_BYTES_MAX);
    (0..count).map(|_| random.next() as u8).collect()
}

/// A packet of a flow that does not exist, but never of the real queue pair: that would be forging RoCEv2 itself.
fn invented(random: &mut Random, source_port: u16) -> Vec<u8> {
    let payload = noise(random);
    let opcode = [Opcode::RcSendFirst, Opcode::RcSendMiddle, Opcode::RcSendLast, Opcode::UcSendOnly];
    let headers =
        Headers::new(opcode[random.below(4) as usize], random.below(1 << 24) | 1 << 20, Psn::new(random.next() as u32));
    let mut datagram = vec![0; payload.len() + 64];
    let length = packet::write_datagram(&headers, &payload, &scope(source_port), &mut datagram).expect("it fits");
    datagram.truncate(length);
    datagram
}

/// A repair packet or an announcement that is right in form; one in four is about the real queue pair.
fn lie(random: &mut Random, source_port: u16) -> Vec<u8> {
    let is_announcement = random.below(4) == 0;
    let repair_packets = 1 + random.below(8) as u8;
    let block_packets = (1 + random.below(64) as u8).max(repair_packets);
    let count = 1 + random.below(block_packets.into()) as u8;
    let queue_pair = if random.below(4) == 0 { QUEUE_PAIR } else { random.below(1 << 24) };
    let header = Header {
        subject: Subject { queue_pair, is_responses: random.below(2) == 0 },
        is_announcement,
        base_psn: Psn::new(random.next() as u32),
        epoch: random.next() as u16,
        is_mds: random.below(2) == 0,
        block_packets,
        repair_packets,
        count,
        index: if is_announcement { 0 } else { random.below(repair_packets.min(count).into()) as u8 },
        has_first: random.below(2) == 0,
        has_last: false,
        last_length: 0,
        is_copy: false,
        has_tag: false,
        digest: random.next() as u32,
    };
    let sum_bytes = if is_announcement { 0 } else { 9 + random.below(300) };
    let sum: Vec<u8> = (0..sum_bytes).map(|_| random.next() as u8).collect();
    repair_packet(&header, &sum, source_port)
}

#[cfg(test)]
mod tests {
    use longhaul_forward::{Arrival, Handler as _, Outbox};
    use longhaul_gateway::settings::Settings;
    use longhaul_gateway::{Gateway, WIDE};
    use longhaul_link::namespaces::Side;
    use longhaul_time::Instant;

    use super::*;

    #[test]
    fn every_kind_of_lie_gets_as_far_as_the_gateway() {
        let text = format!("site = \"a\"\nwide = \"b\"\npeer = \"{}\"\n", Side::Left.address());
        let config =
            Settings::parse(&text).and_then(|settings| settings.to_config(1500, 1500)).expect("a configuration");
        let mut gateway = Gateway::new(config, 1).expect("a gateway");
        let frames = frames();
        for (index, frame) in frames.iter().enumerate() {
            let (mut bytes, at) = (frame.clone(), Instant::from_nanos(5000 * index as u64));
            gateway.handle(WIDE, &mut Arrival { bytes: &mut bytes, at }, &mut Outbox::default());
        }
        let state = gateway.state(Instant::from_nanos(0));
        let (seen, received) = (state.frames, state.received);
        assert_eq!(seen.packets[WIDE] + seen.other[WIDE], frames.len() as u64);
        assert!(seen.packets[WIDE] > FRAMES as u64 / 2, "{seen:?}");
        assert!(received.repairs > 1000 && received.malformed > 1000 && received.wrong_blocks > 0, "{received:?}");
        assert_eq!(received.restored, 0);
    }
}
