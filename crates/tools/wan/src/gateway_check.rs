//! What a gateway can do on this machine, both sides on it:
//!
//! ```text
//!   sender ─ RoCEv2, raw frames ─▶ [left] ═ veth ═ gateway ═ veth ═ [right] ─▶ receiver
//! ```
//!
//! Frames a second are those of the sending gateway, which adds repair packets, next to a forwarder that does nothing to frames, in turns
//! with it. The delay is that of the receiving gateway, which waits for what is missing: the sender gives it what a sending
//! gateway would, without loss and with it, next to the bare forwarder again. Then it is attacked: the same flow with losses passes the
//! receiving gateway while hostile packets arrive.

mod frames;
mod hostile;

use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use longhaul_forward::clock::Clock;
use longhaul_forward::ring::{RawSink, RingSource};
use longhaul_forward::{Arrival, ForwardError, Sink as _, Source as _, priority};
use longhaul_gateway::settings::Settings;
use longhaul_gateway::{GatewayError, GatewayState, RunningGateway, RunningState, SITE, WIDE};
use longhaul_link::namespaces::{END_INTERFACE, NamespaceError, Namespaces, Side};
use thiserror::Error;

use self::frames::{Encoded, Messages};
pub use self::hostile::Attack;
use crate::check::{Bare, CheckError, Percentiles, median, percentiles};
use crate::clock::now;
use crate::witness;

/// Runs with delays of which the median is taken.
const ROUNDS: usize = 3;
/// Rounds with packets a second, each a third as long: more of them, because a host that takes a processor away for half
/// a second spoils the one that it hits.
const CAPACITY_ROUNDS: usize = 3 * ROUNDS;
/// Where the gateway runs; the ends run elsewhere if they can.
const GATEWAY_PROCESSOR: usize = 1;
/// Frames that are made before, and sent again and again.
const FLOOD_FRAMES: u32 = 4096;
/// Frames of one call.
const FLOOD_BATCH: usize = 64;
/// Packets a second when delay is measured: far from what a gateway can do.
const PACED_PER_SECOND: f64 = 20_000.0;
/// What is lost when repairing is measured.
const LOSS: f64 = 0.01;
const CODE: &str = "lowar:32,1";
/// Interface MTUs, and the RDMA MTUs that they have room for.
const MTUS: [(usize, usize); 2] = [(1500, 1024), (4200, 4096)];
/// Share of the bare forwarder's rate at which hostile packets are sent.
const HOSTILE_SHARE: f64 = 0.25;
/// The receiver waits this long for more.
const SILENCE: Duration = Duration::from_millis(200);

/// Why a gateway could not be measured.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum GatewayCheckError {
    /// What it is measured with.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The gateway.
    #[error(transparent)]
    Gateway(#[from] GatewayError),
    /// No namespaces.
    #[error(transparent)]
    Namespace(#[from] NamespaceError),
    /// Frames could not be moved.
    #[error(transparent)]
    Forward(#[from] ForwardError),
}

/// What a gateway can do with packets of one length.
#[derive(Clone, Copy, Debug, Default)]
pub struct GatewayRow {
    /// Of the interfaces.
    pub mtu: usize,
    /// Of RDMA.
    pub rdma_mtu: usize,
    /// Data packets a second that left the gateway, next to the repair packets that it added.
    pub packets_per_second: f64,
    /// The same of a forwarder that does nothing to frames.
    pub bare_packets_per_second: f64,
    /// The median of the ratios of both, each of one round.
    pub over_bare_forwarder: f64,
    /// Packets in blocks over those that the gateway took.
    pub protected_share: f64,
    /// Repair packets over packets in blocks.
    pub repair_share: f64,
    /// Data packets a second of processor time of the gateway's thread.
    pub packets_per_second_per_core: f64,
    /// Bits a second of data packets with their headers.
    pub bits_per_second: f64,
    /// Median and p99 of the time from the sender to the receiver, in microseconds, through the bare forwarder.
    pub bare_delay_us: Percentiles,
    /// How much longer it took through the gateway, without loss.
    pub added_delay_us: Percentiles,
    /// The same with loss, of packets that had to be restored or waited for too.
    pub added_delay_repairing_us: Percentiles,
    /// Packets that were lost before the gateway, and those that it restored.
    pub lost_packets: u64,
    /// Of them were restored.
    pub restored_packets: u64,
    /// Packets a second of processor time of a gateway that receives, at the paced rate: waking up is part of it.
    pub receiving_packets_per_second_per_core: f64,
}

/// What a gateway can do on this machine.
#[derive(Clone, Debug)]
pub struct GatewayReport {
    /// By MTU.
    pub rows: Vec<GatewayRow>,
    /// With the first MTU.
    pub attack: Attack,
    /// Whether the gateway's thread ran before all ordinary ones.
    pub has_priority: bool,
    /// Share of processor time that the host gave to others, over the whole check.
    pub steal_share: f64,
}

/// Measures, each for so long, and attacks with this many packets. The process must have one thread only. `progress` hears what is done
/// next.
pub fn check(
    duration: Duration,
    hostile_packets: u64,
    progress: &mut dyn FnMut(&str),
) -> Result<GatewayReport, GatewayCheckError> {
    let steal = witness::steal();
    let (mut rows, mut has_priority, mut attack) = (Vec::new(), false, Attack::default());
    for (mtu, rdma_mtu) in MTUS {
        let ground = Ground { namespaces: Namespaces::make(mtu)?, rdma_mtu, duration };
        progress(&format!("MTU {mtu}: packets a second, with the gateway and with a bare forwarder"));
        let mut row = GatewayRow { mtu, rdma_mtu, ..GatewayRow::default() };
        has_priority = ground.capacity(&mut row)?;
        progress(&format!("MTU {mtu}: added delay"));
        ground.delay(&mut row)?;
        if rows.is_empty() {
            progress(&format!("MTU {mtu}: {hostile_packets} hostile packets"));
            attack = ground.attack(hostile_packets, row.bare_packets_per_second)?;
        }
        rows.push(row);
        ground.namespaces.remove()?;
    }
    Ok(GatewayReport { rows, attack, has_priority, steal_share: steal.so_far() })
}

/// Where it is measured.
struct Ground {
    namespaces: Namespaces,
    rdma_mtu: usize,
    duration: Duration,
}

impl Ground {
    /// A gateway whose hosts are on this side.
    fn gateway(&self, site: Side) -> Result<RunningGateway, GatewayCheckError> {
        let wide = if site == Side::Left { Side::Right } else { Side::Left };
        let text = format!(
            "site = \"{}\"\nwide = \"{}\"\npeer = \"{}\"\ncode = \"{CODE}\"\nrdma_mtu = {}\nwait_for_peer = false\nbridge = \"\"\nmetrics = \"\"\n",
            site.name(),
            wide.name(),
            wide.address(),
            self.rdma_mtu,
        );
        let settings = Settings::parse(&text).map_err(GatewayError::from)?;
        Ok(RunningGateway::start(&settings, now().as_nanos() as u64, Some(GATEWAY_PROCESSOR))?)
    }

    /// A receiver: full at once, so that what arrives is dropped there and costs the same in every run.
    fn full_socket(&self) -> Result<UdpSocket, GatewayCheckError> {
        let socket = self.namespaces.within(Side::Right, || UdpSocket::bind((Side::Right.address(), frames::PORT)))?;
        Ok(socket.map_err(|error| CheckError::End("open a socket", error))?)
    }

    /// Packets a second, with the gateway and with a bare forwarder, interleaved. Whether the gateway had priority.
    fn capacity(&self, row: &mut GatewayRow) -> Result<bool, GatewayCheckError> {
        let mut messages = Messages::new(self.rdma_mtu);
        let frames: Arc<Vec<Vec<u8>>> = Arc::new((0..FLOOD_FRAMES).map(|_| messages.next_frame()).collect());
        let _full = self.full_socket()?;
        let (mut with, mut bare, mut ratios, mut per_core) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let (mut has_priority, mut counts) = (false, [0, 0, 0]);
        for _ in 0..CAPACITY_ROUNDS {
            let flood = self.flood(frames.clone())?;
            let forwarder = Bare::start(GATEWAY_PROCESSOR)?;
            let without = self.per_second(|| Ok(forwarder.sent()?))?;
            forwarder.end()?;
            let gateway = self.gateway(Side::Left)?;
            let before = gateway.state()?;
            let through = self.per_second(|| Ok(data_sent(&gateway.state()?)))?;
            let after = gateway.state()?;
            has_priority = gateway.has_priority();
            gateway.end()?;
            flood.end()?;
            let used = after.processor_time.saturating_sub(before.processor_time).as_secs_f64();
            per_core.push(data_sent(&after).saturating_sub(data_sent(&before)) as f64 / used.max(1e-9));
            let count = |state: &RunningState| {
                let RunningState { gateway, .. } = state;
                [gateway.frames.packets[SITE], gateway.sent.protected, gateway.sent.repairs]
            };
            for ((sum, after), before) in counts.iter_mut().zip(count(&after)).zip(count(&before)) {
                *sum += after - before;
            }
            with.push(through);
            bare.push(without);
            ratios.push(through / without.max(1.0));
        }
        let [taken, protected, repairs] = counts.map(|count| count as f64);
        row.protected_share = protected / taken.max(1.0);
        row.repair_share = repairs / protected.max(1.0);
        let bits: usize = frames.iter().map(|frame| 8 * frame.len()).sum();
        row.packets_per_second = median(with);
        row.bare_packets_per_second = median(bare);
        row.over_bare_forwarder = median(ratios);
        row.packets_per_second_per_core = median(per_core);
        row.bits_per_second = row.packets_per_second * bits as f64 / f64::from(FLOOD_FRAMES);
        Ok(has_priority)
    }

    /// How fast a count grows.
    fn per_second(&self, count: impl Fn() -> Result<u64, GatewayCheckError>) -> Result<f64, GatewayCheckError> {
        let lasts = self.duration * ROUNDS as u32 / CAPACITY_ROUNDS as u32;
        // Queues fill first.
        std::thread::sleep(lasts / 4);
        let (before, begun) = (count()?, now());
        std::thread::sleep(lasts);
        let (after, ended) = (count()?, now());
        Ok(after.saturating_sub(before) as f64 / (ended - begun).as_secs_f64())
    }

    fn flood(&self, frames: Arc<Vec<Vec<u8>>>) -> Result<Flood, GatewayCheckError> {
        let mut sink = self.namespaces.within(Side::Left, || RawSink::open(END_INTERFACE))??;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let thread = std::thread::spawn(move || {
            let _ = priority::run_on(0);
            while !ends.load(Ordering::Relaxed) {
                for batch in frames.chunks(FLOOD_BATCH) {
                    let batch: Vec<&[u8]> = batch.iter().map(|frame| &frame[..]).collect();
                    sink.send(&batch)?;
                }
            }
            Ok(())
        });
        Ok(Flood { is_over, thread })
    }

    /// Delay through the bare forwarder, and what the gateway adds, interleaved.
    fn delay(&self, row: &mut GatewayRow) -> Result<(), GatewayCheckError> {
        let (mut bare, mut lossless, mut repairing) = (Vec::new(), Vec::new(), Vec::new());
        let mut per_core = Vec::new();
        for _ in 0..ROUNDS {
            let forwarder = Bare::start(GATEWAY_PROCESSOR)?;
            bare.push(self.paced(0.0, Waits::Spinning, &self.lasting())?.delay);
            forwarder.end()?;
            for (loss, delays) in [(0.0, &mut lossless), (LOSS, &mut repairing)] {
                // What comes from the left has been through a gateway there.
                let gateway = self.gateway(Side::Right)?;
                let paced = self.paced(loss, Waits::Spinning, &self.lasting())?;
                let state = gateway.state()?;
                gateway.end()?;
                delays.push(paced.delay);
                row.lost_packets += paced.lost;
                row.restored_packets += state.gateway.received.restored;
                if loss == 0.0 {
                    let used = state.processor_time.as_secs_f64();
                    per_core.push(state.gateway.frames.packets[WIDE] as f64 / used.max(1e-9));
                }
            }
        }
        let of = |delays: &[Percentiles]| Percentiles {
            p50: median(delays.iter().map(|delay| delay.p50).collect()),
            p99: median(delays.iter().map(|delay| delay.p99).collect()),
        };
        let (bare, lossless, repairing) = (of(&bare), of(&lossless), of(&repairing));
        let added = |delay: Percentiles| Percentiles { p50: delay.p50 - bare.p50, p99: delay.p99 - bare.p99 };
        row.bare_delay_us = bare;
        row.added_delay_us = added(lossless);
        row.added_delay_repairing_us = added(repairing);
        row.receiving_packets_per_second_per_core = median(per_core);
        Ok(())
    }

    /// Whether a measurement of the usual length goes on, after so long.
    fn lasting(&self) -> impl Fn(Duration) -> bool + use<> {
        let duration = self.duration;
        move |passed| passed < duration
    }

    /// A flow with losses through the receiving gateway, without hostile packets and with them. It lasts as long as the attack.
    fn attack(&self, packets: u64, bare_packets_per_second: f64) -> Result<Attack, GatewayCheckError> {
        let wanted = HOSTILE_SHARE * bare_packets_per_second.max(1.0);
        // Before anything passes: it takes long.
        let frames = hostile::frames();
        let gateway = self.gateway(Side::Right)?;
        let begun = gateway.state()?.gateway;
        let without = self.paced(LOSS, Waits::Asleep, &self.lasting())?;
        let before = gateway.state()?.gateway;
        let mut sink = self.namespaces.within(Side::Left, || RawSink::open(END_INTERFACE))??;
        let is_over = AtomicBool::new(false);
        let (with, sent) = std::thread::scope(|scope| {
            let attacker = scope.spawn(|| {
                let sent = hostile::send(&frames, &mut sink, packets, wanted, &gateway);
                is_over.store(true, Ordering::Relaxed);
                sent
            });
            let with = self.paced(LOSS, Waits::Asleep, &|_| !is_over.load(Ordering::Relaxed));
            (with, attacker.join())
        });
        let (with, sent) = (with?, sent.map_err(|_| CheckError::Nothing)??);
        let after = gateway.state()?.gateway;
        gateway.end()?;
        let seen = |state: &GatewayState| state.frames.packets[WIDE] + state.frames.other[WIDE];
        let arrived_packets = (seen(&after) - seen(&before)).saturating_sub(with.frames);
        let packets_per_second = arrived_packets as f64 / sent.took.as_secs_f64();
        let restored_share = |paced: &Paced, after: &GatewayState, before: &GatewayState| {
            (after.received.restored - before.received.restored) as f64 / paced.lost.max(1) as f64
        };
        Ok(Attack {
            packets: sent.packets,
            arrived_packets,
            packets_per_second,
            over_bare_forwarder: packets_per_second / bare_packets_per_second.max(1.0),
            flow_share: with.arrived as f64 / with.sent as f64,
            flow_share_without: without.arrived as f64 / without.sent as f64,
            restored_share: restored_share(&with, &after, &before),
            restored_share_without: restored_share(&without, &before, &begun),
            duplicates_at_host: with.order.duplicates,
            backward_at_host: with.order.backward,
            lies_at_host: with.lies,
            repairs_at_host: with.repairs,
            memory_bytes: sent.memory_bytes,
            memory_bytes_max: after.memory_bytes_max,
        })
    }

    /// Sends packets at a steady rate, with the repair packets of a gateway, and measures when each arrives. `goes_on` is asked after so long.
    fn paced(&self, loss: f64, waits: Waits, goes_on: &dyn Fn(Duration) -> bool) -> Result<Paced, GatewayCheckError> {
        let clock = Clock::start();
        let mut sink = self.namespaces.within(Side::Left, || RawSink::open(END_INTERFACE))??;
        let mut source = self.namespaces.within(Side::Right, || RingSource::open(END_INTERFACE, clock, 32 << 20))??;
        let _full = self.full_socket()?;
        let is_over = Arc::new(AtomicBool::new(false));
        let ends = is_over.clone();
        let mut encoded = Encoded::new(self.rdma_mtu, CODE, loss).map_err(GatewayError::from)?;
        let messages = Messages::new(self.rdma_mtu);
        let receiver = std::thread::spawn(move || -> Result<_, CheckError> {
            let (mut arrived, mut lies, mut repairs, mut last) = (Vec::new(), 0, 0, now());
            while !ends.load(Ordering::Relaxed) || now() - last < SILENCE {
                let mut polled = [nix::poll::PollFd::new(source.descriptor(), nix::poll::PollFlags::POLLIN)];
                let _ = nix::poll::poll(&mut polled, nix::poll::PollTimeout::from(20_u16));
                let mut arrivals: Vec<Arrival<'_>> = Vec::new();
                source.receive(256, &mut arrivals)?;
                for arrival in &arrivals {
                    last = now();
                    let psn = frames::psn_of(arrival.bytes);
                    lies += u64::from(psn.is_some() && !messages.has_sent(arrival.bytes));
                    repairs += u64::from(frames::is_repair(arrival.bytes));
                    arrived.extend(psn.map(|psn| (psn, arrival.at.as_nanos())));
                }
            }
            Ok((arrived, lies, repairs))
        });
        let gap = Duration::from_secs_f64(1.0 / PACED_PER_SECOND);
        let (begun, mut sent, mut frame_count) = (now(), Vec::new(), 0);
        let mut next = begun;
        while goes_on(next - begun) {
            while now() < next {
                match waits {
                    Waits::Spinning => std::hint::spin_loop(),
                    Waits::Asleep => std::thread::sleep(next.saturating_sub(now())),
                }
            }
            let at = clock.now();
            let frames = encoded.next_frames(at);
            let frames: Vec<&[u8]> = frames.iter().map(|frame| &frame[..]).collect();
            frame_count += (frames.len() as u64).saturating_sub(sink.send(&frames)?);
            sent.push(at.as_nanos());
            // After a stall it goes on at the same rate: a burst would measure the sender.
            next = (next + gap).max(now());
        }
        is_over.store(true, Ordering::Relaxed);
        let (arrived, lies, repairs) = receiver.join().map_err(|_| CheckError::Nothing)??;
        let order = Order::of(arrived.iter().map(|(psn, _)| *psn), sent.len());
        let took = |(psn, at): &(u32, u64)| Some(at.saturating_sub(*sent.get(*psn as usize)?) as f64 / 1e3);
        let delays: Vec<f64> = arrived.iter().filter_map(took).collect();
        if delays.is_empty() {
            return Err(CheckError::Nothing.into());
        }
        Ok(Paced {
            delay: percentiles(delays),
            lost: encoded.lost(),
            sent: sent.len(),
            frames: frame_count,
            arrived: order.different,
            order,
            lies,
            repairs,
        })
    }
}

/// Data packets that have left: a bare forwarder is measured by the same.
fn data_sent(state: &RunningState) -> u64 {
    let sent = &state.gateway.sent;
    let added = sent.repairs + sent.announcements + sent.copies + state.gateway.frames.greetings;
    state.forwarded.sent.saturating_sub(added)
}

/// How the sender of a paced flow waits for its next packet.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Waits {
    /// On time, for a processor of its own.
    Spinning,
    /// Late by some 50 µs, and so at half the rate: the attacker needs the processor.
    Asleep,
}

struct Paced {
    delay: Percentiles,
    lost: u64,
    /// Data packets that were sent, and those of them that arrived.
    sent: usize,
    arrived: usize,
    order: Order,
    /// Frames of all kinds that the interface took.
    frames: u64,
    /// Packets for the real queue pair that nobody has sent.
    lies: u64,
    repairs: u64,
}

/// In which order packets arrived.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Order {
    /// Of those that were sent.
    different: usize,
    duplicates: u64,
    /// Packets behind later ones.
    backward: u64,
}

impl Order {
    fn of(arrived: impl Iterator<Item = u32>, sent: usize) -> Order {
        let (mut has_arrived, mut highest, mut order) = (vec![false; sent], 0, Order::default());
        for psn in arrived {
            let Some(has_arrived) = has_arrived.get_mut(psn as usize) else { continue };
            match std::mem::replace(has_arrived, true) {
                true => order.duplicates += 1,
                false => order.different += 1,
            }
            order.backward += u64::from(psn < highest);
            highest = highest.max(psn);
        }
        order
    }
}

/// As many frames as can be sent, until it is ended.
struct Flood {
    is_over: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<(), ForwardError>>,
}

impl Flood {
    fn end(self) -> Result<(), GatewayCheckError> {
        self.is_over.store(true, Ordering::Relaxed);
        Ok(self.thread.join().map_err(|_| CheckError::Nothing)??)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duplicates_and_backward_steps_are_counted() {
        let of = |arrived: &[u32]| Order::of(arrived.iter().copied(), 6);
        assert_eq!(of(&[0, 1, 3, 5]), Order { different: 4, duplicates: 0, backward: 0 });
        assert_eq!(of(&[0, 2, 1, 2, 5, 5, 7]), Order { different: 4, duplicates: 2, backward: 1 });
    }
}
