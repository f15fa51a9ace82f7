//! An attack on a gateway by somebody who does not see its traffic, but knows its hosts and a queue pair: noise, malformed headers, flows
//! that do not exist, and repair packets that lie.

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

/// What an attack did to a flow with losses, and to the gateway's memory.
#[derive(Clone, Copy, Debug, Default)]
pub struct Attack {
    /// Hostile packets, and how many of them a second.
    pub packets: u64,
    /// What was reached of the rate that was wanted, a quarter of the bare forwarder's.
    pub packets_per_second: f64,
    /// The rate over the bare forwarder's.
    pub over_bare_forwarder: f64,
    /// Packets of the real flow that arrived, over those that were sent.
    pub flow_share: f64,
    /// The same without the attack.
    pub flow_share_without: f64,
    /// Packets that arrived for the real queue pair, and that nobody has sent.
    pub lies_at_host: u64,
    /// Repair packets that arrived at the host.
    pub repairs_at_host: u64,
    /// Of the gateway, at most while it was attacked.
    pub memory_bytes: usize,
    /// The bound of it.
    pub memory_bytes_max: usize,
}

/// Sends this many hostile frames at this rate, as far as the machine can. Returns how many a second it were, and the most memory that the
/// gateway used.
pub(super) fn send(
    sink: &mut dyn Sink,
    count: u64,
    per_second: f64,
    gateway: &RunningGateway,
) -> Result<(f64, usize), GatewayError> {
    let mut random = Random(7);
    let frames: Vec<Vec<u8>> = (0..FRAMES).map(|_| frame(&mut random)).collect();
    let mut batches = frames.chunks(BATCH).cycle();
    let (begun, mut sent, mut memory_bytes) = (now(), 0_u64, 0);
    let mut looked = begun;
    while sent < count {
        if ((now() - begun).as_secs_f64() * per_second) as u64 <= sent {
            std::thread::sleep(SLEEP);
            continue;
        }
        let batch: Vec<&[u8]> = batches.next().into_iter().flatten().map(|frame| &frame[..]).collect();
        sink.send(&batch)?;
        sent += batch.len() as u64;
        if now() - looked > Duration::from_millis(5) {
            looked = now();
            memory_bytes = memory_bytes.max(gateway.state()?.gateway.memory_bytes);
        }
    }
    let took = (now() - begun).as_secs_f64();
    Ok((sent as f64 / took, memory_bytes.max(gateway.state()?.gateway.memory_bytes)))
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
    let mut datagram = vec![0; repair::HEADER_BYTES];
    header.emit(&mut datagram);
    if !is_announcement {
        datagram.extend((0..9 + random.below(300)).map(|_| random.next() as u8));
    }
    datagram.extend([0; 4]);
    icrc::write(&scope(source_port), &mut datagram);
    datagram
}
