//! What a gateway does to a packet from frame to frame, without the kernel's part: nanoseconds for each packet of a sending
//! and of a receiving gateway, next to copying the same frames in the same run:
//!
//!     cargo run --release -p longhaul-gateway --example gateway_speed

use std::time::Instant as Clock;

use longhaul_forward::{Arrival, Fate, Handler as _, Outbox};
use longhaul_gateway::settings::Settings;
use longhaul_gateway::{Gateway, SITE, WIDE};
use longhaul_time::{Duration, Instant};
use longhaul_wire::{Frame, Headers, IcrcScope, Opcode, Psn, packet};

/// Packets of a message, of a batch that passes before the clock is read, and of a run.
const MESSAGE_PACKETS: u32 = 64;
const BATCH: u32 = 128;
const PACKETS: u32 = 1 << 19;
const LINK_HEADER: [u8; 14] = [2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0];

type Failure = Box<dyn std::error::Error>;

fn main() -> Result<(), Failure> {
    for rdma_mtu in [1024, 4096] {
        for code in ["lowar:32,1", "lowar:mds:32,4"] {
            let Times { copying, sending, receiving } = run(rdma_mtu, code)?;
            println!(
                "RDMA MTU {rdma_mtu}, {code:14}: ns per packet: {sending:.0} sending, {receiving:.0} receiving, {copying:.0} to copy the frame"
            );
        }
    }
    Ok(())
}

/// Nanoseconds for each packet.
struct Times {
    copying: f64,
    sending: f64,
    receiving: f64,
}

fn gateway(rdma_mtu: usize, code: &str, peer: &str) -> Result<Gateway, Failure> {
    let text = format!(
        "site = \"a\"\nwide = \"b\"\npeer = \"{peer}\"\ncode = \"{code}\"\nrdma_mtu = {rdma_mtu}\nwait_for_peer = false\n"
    );
    let mtu = rdma_mtu + 150;
    Ok(Gateway::new(Settings::parse(&text)?.to_config(mtu, mtu)?, 1)?)
}

fn run(rdma_mtu: usize, code: &str) -> Result<Times, Failure> {
    let (mut sender, mut receiver) = (gateway(rdma_mtu, code, "10.0.0.2")?, gateway(rdma_mtu, code, "10.0.0.1")?);
    let mut frames: Vec<Vec<u8>> = vec![Vec::new(); BATCH as usize];
    let (mut outbox, mut copies) = (Outbox::default(), Vec::new());
    let mut times: [Vec<f64>; 3] = Default::default();
    let mut now = Instant::ZERO;
    for batch in 0..PACKETS / BATCH {
        for (index, frame) in frames.iter_mut().enumerate() {
            write_frame(rdma_mtu, batch * BATCH + index as u32, frame)?;
        }
        let clock = Clock::now();
        copies.clear();
        frames.iter().for_each(|frame| copies.extend_from_slice(frame));
        std::hint::black_box(&copies);
        let copying = clock.elapsed().as_secs_f64();
        let (sending, mut wide) = pass(&mut sender, SITE, &mut frames, &mut outbox, &mut now);
        let (receiving, arrived) = pass(&mut receiver, WIDE, &mut wide, &mut outbox, &mut now);
        assert_eq!(arrived.len(), frames.len(), "repair packets end at the receiving gateway");
        for (times, seconds) in times.iter_mut().zip([copying, sending, receiving]) {
            times.push(seconds);
        }
    }
    assert_eq!(sender.state(now).sent.protected, u64::from(PACKETS));
    // The median of the batches: others use the processor too.
    let [copying, sending, receiving] = times.map(|times| median(times) * 1e9 / f64::from(BATCH));
    Ok(Times { copying, sending, receiving })
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Frames pass a gateway. Returns the seconds that it took, and the frames that leave, in order.
fn pass(
    gateway: &mut Gateway,
    port: usize,
    frames: &mut [Vec<u8>],
    outbox: &mut Outbox,
    now: &mut Instant,
) -> (f64, Vec<Vec<u8>>) {
    let mut leaving: Vec<Vec<u8>> = Vec::with_capacity(2 * frames.len());
    let mut seconds = 0.0;
    for frame in frames {
        *now += Duration::from_micros(1);
        let clock = Clock::now();
        let fate = gateway.handle(port, &mut Arrival { bytes: frame, at: *now }, outbox);
        seconds += clock.elapsed().as_secs_f64();
        // Reports go back.
        let onward = outbox.take_all().into_iter().filter(|(out, ..)| *out != port);
        leaving.extend(onward.map(|(_, frame, _)| frame));
        if matches!(fate, Fate::Forward(_)) {
            leaving.push(frame.clone());
        }
    }
    (seconds, leaving)
}

fn write_frame(rdma_mtu: usize, number: u32, frame: &mut Vec<u8>) -> Result<(), Failure> {
    let (source, destination) = ("10.0.0.1:50000".parse()?, "10.0.0.2:4791".parse()?);
    let scope = IcrcScope::between(source, destination).ok_or("one family")?;
    let opcode = match number % MESSAGE_PACKETS {
        0 => Opcode::RcSendFirst,
        place if place == MESSAGE_PACKETS - 1 => Opcode::RcSendLast,
        _ => Opcode::RcSendMiddle,
    };
    let headers = Headers::new(opcode, 0x17, Psn::new(number & 0xff_ffff));
    let payload = vec![number as u8; rdma_mtu];
    let mut datagram = vec![0; rdma_mtu + 64];
    let length = packet::write_datagram(&headers, &payload, &scope, &mut datagram)?;
    datagram.truncate(length);
    let whole = Frame::new(source, destination, &datagram).ok_or("too long")?;
    frame.clear();
    frame.extend_from_slice(&LINK_HEADER);
    frame.resize(LINK_HEADER.len() + whole.byte_count(), 0);
    whole.emit(&mut frame[LINK_HEADER.len()..])?;
    Ok(())
}
