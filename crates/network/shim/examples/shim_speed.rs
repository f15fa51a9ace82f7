//! How many packets a second pass the shim on one core, both ways, without and with loss:
//!
//!     cargo run --release -p longhaul-shim --example shim_speed

use std::time::Instant as Clock;

use longhaul_shim::{BlockCode, Config, Direction, Envelope, Onward, Packet, Shim};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{Headers, IcrcScope, Opcode, Psn, packet, repair};

const PACKETS: u32 = 400_000;
const PAYLOAD: [u8; 1024] = [0x5a; 1024];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for code in ["xor:32,1", "xor:64,8", "mds:32,4", "mds:64,8", "mds:128,5"] {
        for loss_every in [u32::MAX, 1000, 100] {
            let (sent, received, restored) = run(code.parse()?, loss_every)?;
            let loss = if loss_every == u32::MAX { 0.0 } else { 1.0 / f64::from(loss_every) };
            println!("{code:10} loss {loss:6}: {sent:.2} million packets/s out, {received:.2} in, {restored} restored");
        }
    }
    Ok(())
}

fn run(code: BlockCode, loss_every: u32) -> Result<(f64, f64, u64), Box<dyn std::error::Error>> {
    let (source, destination) = ("10.0.0.1:50000".parse()?, "10.0.0.2:4791".parse()?);
    let icrc_scope = IcrcScope::between(source, destination).ok_or("one family")?;
    let envelope = Envelope { source, destination, traffic_class: 2, hop_limit: 64, icrc_scope, elided_bytes: 0 };
    let config = Config::new(code);
    let (mut sender, mut receiver) = (Shim::new(config.clone(), 1), Shim::new(config, 2));
    let (mut out_seconds, mut in_seconds) = (0.0, 0.0);
    let mut now = Instant::ZERO;
    for batch in 0..PACKETS / 1000 {
        let packets: Result<Vec<Packet>, longhaul_wire::EmitError> = (0..1000)
            .map(|index| {
                let psn = Psn::new(batch * 1000 + index);
                let mut datagram = vec![0; 1040];
                packet::write_datagram(
                    &Headers::new(Opcode::RcSendMiddle, 7, psn),
                    &PAYLOAD,
                    &icrc_scope,
                    &mut datagram,
                )?;
                Ok(Packet { envelope, datagram })
            })
            .collect();
        now += Duration::from_micros(100);
        let mut onward = Onward::default();
        let clock = Clock::now();
        for packet in packets? {
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
    Ok((rate(out_seconds), rate(in_seconds), receiver.decoder().counters().restored))
}
