//! How many packets a second pass the shim on one core, both ways, without and with loss, next to copying the same packets
//! in the same run; and how long the one packet takes that completes a block of which as many packets are lost as the
//! code restores:
//!
//!     cargo run --release -p longhaul-shim --example shim_speed

use std::time::Instant as Clock;

use longhaul_shim::{BlockCode, Config, Direction, Envelope, Network, Onward, Packet, Shim};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{Headers, IcrcScope, Opcode, Psn, packet, repair};

const PACKETS: u32 = 400_000;
const PAYLOAD: [u8; 1024] = [0x5a; 1024];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for code in ["xor:32,1", "xor:64,8", "mds:32,4", "mds:64,8", "mds:128,5"] {
        for loss_every in [u32::MAX, 1000, 100] {
            let speed = run(code.parse()?, loss_every)?;
            let loss = if loss_every == u32::MAX { 0.0 } else { 1.0 / f64::from(loss_every) };
            let Speed { copied, sent, received, restored } = speed;
            println!(
                "{code:10} loss {loss:6}: million packets/s: {sent:.2} out ({:.2} of copying), {received:.2} in ({:.2}), \
                 {copied:.2} copied; {restored} restored",
                sent / copied,
                received / copied
            );
        }
    }
    for code in ["xor:32,1", "mds:64,8", "mds:223,32"] {
        println!("{code:10} longest: {:.0} µs for one packet", longest(code.parse()?)? * 1e6);
    }
    Ok(())
}

/// Seconds of the longest call of a receiver that loses the first packets of a block.
fn longest(code: BlockCode) -> Result<f64, Box<dyn std::error::Error>> {
    let (envelope, config) = ends(code)?;
    let (mut sender, mut receiver) = (Shim::new(config.clone(), 1)?, Shim::new(config, 2)?);
    let mut onward = Onward::default();
    for index in 0..u32::from(code.block_packets()) {
        sender.handle(Direction::Outgoing, data(&envelope, index)?, Instant::ZERO, &mut onward);
    }
    let mut longest = 0.0_f64;
    let mut lost = 0;
    for packet in std::mem::take(&mut onward.outgoing) {
        if !repair::is_repair(&packet.datagram) && lost < code.repair_packets() {
            lost += 1;
            continue;
        }
        let clock = Clock::now();
        receiver.handle(Direction::Incoming, packet, Instant::ZERO, &mut onward);
        longest = longest.max(clock.elapsed().as_secs_f64());
    }
    assert_eq!(receiver.decoder().counters().restored, u64::from(code.repair_packets()));
    Ok(longest)
}

fn ends(code: BlockCode) -> Result<(Envelope, Config), Box<dyn std::error::Error>> {
    let (source, destination) = ("10.0.0.1:50000".parse()?, "10.0.0.2:4791".parse()?);
    let icrc_scope = IcrcScope::between(source, destination).ok_or("one family")?;
    let envelope = Envelope {
        source,
        destination,
        traffic_class: 2,
        hop_limit: 64,
        identification: Some(0),
        icrc_scope,
        elided_bytes: 0,
    };
    Ok((envelope, Config { peers: Network::EVERYWHERE.to_vec(), ..Config::new(code) }))
}

fn data(envelope: &Envelope, psn: u32) -> Result<Packet, longhaul_wire::EmitError> {
    let mut datagram = vec![0; 1040];
    let headers = Headers::new(Opcode::RcSendMiddle, 7, Psn::new(psn));
    packet::write_datagram(&headers, &PAYLOAD, &envelope.icrc_scope, &mut datagram)?;
    Ok(Packet { envelope: *envelope, datagram })
}

/// Million packets a second, and how many of them were restored.
struct Speed {
    copied: f64,
    sent: f64,
    received: f64,
    restored: u64,
}

fn run(code: BlockCode, loss_every: u32) -> Result<Speed, Box<dyn std::error::Error>> {
    let (envelope, config) = ends(code)?;
    let (mut sender, mut receiver) = (Shim::new(config.clone(), 1)?, Shim::new(config, 2)?);
    let (mut copy_seconds, mut out_seconds, mut in_seconds) = (0.0, 0.0, 0.0);
    let mut copies = Vec::new();
    let mut now = Instant::ZERO;
    for batch in 0..PACKETS / 1000 {
        let packets: Result<Vec<Packet>, longhaul_wire::EmitError> =
            (0..1000).map(|index| data(&envelope, batch * 1000 + index)).collect();
        let packets = packets?;
        now += Duration::from_micros(100);
        let mut onward = Onward::default();
        let clock = Clock::now();
        copies.clear();
        packets.iter().for_each(|packet| copies.extend_from_slice(&packet.datagram));
        std::hint::black_box(&copies);
        copy_seconds += clock.elapsed().as_secs_f64();
        let clock = Clock::now();
        for packet in packets {
            sender.handle(Direction::Outgoing, packet, now, &mut onward);
        }
        out_seconds += clock.elapsed().as_secs_f64();
        let mut place = 0;
        onward.outgoing.retain(|packet| {
            place += u32::from(!repair::is_repair(&packet.datagram));
            repair::is_repair(&packet.datagram) || place % loss_every != loss_every / 2
        });
        let arriving = std::mem::take(&mut onward.outgoing);
        let clock = Clock::now();
        for packet in arriving {
            receiver.handle(Direction::Incoming, packet, now, &mut onward);
        }
        in_seconds += clock.elapsed().as_secs_f64();
    }
    let rate = |seconds: f64| f64::from(PACKETS) / seconds / 1e6;
    let restored = receiver.decoder().counters().restored;
    Ok(Speed { copied: rate(copy_seconds), sent: rate(out_seconds), received: rate(in_seconds), restored })
}
